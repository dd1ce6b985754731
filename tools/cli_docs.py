"""Writes docs/cli.md from `--help` of every command: `python tools/cli_docs.py [--check]`.

With --check it writes nothing, and the exit status is 1 when the file is not what it would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from drills.cli import app

FILE = Path(__file__).parents[1] / "docs" / "cli.md"
WIDTH = 100
HEAD = """# The command line

Made by `tools/cli_docs.py` from `--help` of every command; do not edit. What the exit codes mean in detail is in
[how it works](how-it-works.md#exit-codes), what goes into files in [experiments and targets](experiments.md).
"""


def commands(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """Yield (path, help) of a command and of all below it, in the order of the help."""
    yield context.command_path, command.get_help(context)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        below = command.get_command(context, name)
        yield from commands(below, _context(below, name, context))


def _context(command: Any, name: str, parent: Any = None) -> Any:
    # The width is fixed, or the terminal of whoever runs this would be in the file.
    return typer.Context(command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH)


def text() -> str:
    """Return the whole file."""
    drill = typer.main.get_command(app)
    sections = [
        f"## `{path}`\n\n```text\n{said.rstrip()}\n```\n" for path, said in commands(drill, _context(drill, "drill"))
    ]
    return "\n".join([HEAD, *sections])


def main(argv: list[str]) -> int:
    """Write the file, or compare it."""
    made = text()
    if argv == ["--check"]:
        current = FILE.is_file() and FILE.read_text() == made
        if not current:
            print(f"{FILE}: is not current; run: python tools/cli_docs.py", file=sys.stderr)
        return 0 if current else 1
    if argv:
        print("usage: python tools/cli_docs.py [--check]", file=sys.stderr)
        return 64
    FILE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
