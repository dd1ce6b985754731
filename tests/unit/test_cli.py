"""The command line itself: its help, as people see it on a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from drills.cli import app

WIDTH = 80


def commands(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """Yield (path, help) of a command and of all below it."""
    yield context.command_path, command.get_help(context)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        below = command.get_command(context, name)
        yield from commands(below, _context(below, name, context))


def _context(command: Any, name: str, parent: Any = None) -> Any:
    # As when the command line is parsed: there a context is made with the settings of its command.
    settings = command.context_settings
    return typer.Context(
        command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH, **settings
    )


DRILL = typer.main.get_command(app)
HELP = dict(commands(DRILL, _context(DRILL, "drill")))


@pytest.mark.parametrize("path", HELP)
def test_help_fits_and_nothing_of_it_is_cut_off(path: str) -> None:
    assert "..." not in re.sub(r"[\[{]?(?:ARGS|names)[\]}]?\.\.\.", "", HELP[path])
    assert max(map(len, HELP[path].splitlines())) <= WIDTH


@pytest.mark.parametrize("path", HELP)
def test_help_may_be_asked_for_in_short(path: str) -> None:
    assert "-h, --help" in HELP[path]


def test_every_command_is_looked_at() -> None:
    assert {"drill", "drill run", "drill lab", "drill lab status"} <= set(HELP)
