"""`drill actions`: what is to be done, by whom, and which check proves it done."""

from __future__ import annotations

from typing import Annotated

import typer

from drills.cli_options import RUNS, Reports, say

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What is to be done, and which check proves it done.",
)

Id = Annotated[str, typer.Argument(metavar="ID", help="Of an action item; its beginning will do.")]
Kind = Annotated[str, typer.Option("--type", help="prevent, detect, mitigate or process.")]
Owner = Annotated[str | None, typer.Option("--owner", help="One person.")]
Due = Annotated[str | None, typer.Option("--due", help="A day, such as 2026-12-24.")]
Link = Annotated[str | None, typer.Option("--link", help="Where it is tracked.")]


@app.command("list")
def list_(
    every: Annotated[bool, typer.Option("--all", help="Also what is done or closed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    reports: Reports = RUNS,
) -> int:
    """List what is to be done, what was seen too often first."""
    from drills.actions import commands

    for line in commands.as_json(reports, every=every) if as_json else commands.listed(reports, every=every):
        say(line)
    return 0


@app.command()
def add(
    text: Annotated[str, typer.Argument(help="What is to be done, in one line.")],
    kind: Kind = "process",
    priority: Annotated[str, typer.Option("--priority", help="P1 to P4.")] = "P3",
    owner: Owner = None,
    due: Due = None,
    link: Link = None,
    drill: Annotated[str | None, typer.Option("--drill", help="With --check: the drill that is to prove it.")] = None,
    check: Annotated[str | None, typer.Option("--check", help="The check whose pass proves it done.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="The target that it is about.")] = None,
    reports: Reports = RUNS,
) -> int:
    """Add an item by hand. With a drill and a check it is done when that check passes."""
    from drills.actions import commands

    given = {"owner": owner, "due": due, "link": link, "target": target}
    say(commands.add(reports, text, kind, priority, given, drill, check))
    return 0


@app.command("set")
def set_(
    name: Id,
    owner: Owner = None,
    due: Due = None,
    priority: Annotated[str | None, typer.Option("--priority", help="P1 to P4.")] = None,
    link: Link = None,
    reports: Reports = RUNS,
) -> int:
    """Say who does it, by when, how urgent it is, where it is tracked. An empty text takes a word away."""
    from drills.actions import commands

    say(commands.change(reports, name, {"owner": owner, "due": due, "link": link, "priority": priority}))
    return 0


@app.command()
def close(
    name: Id,
    reason: Annotated[str, typer.Option("--reason", help="Why nothing is left to be done; needed.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Who closes it (default: you).")] = None,
    reports: Reports = RUNS,
) -> int:
    """Close an item by hand, with the reason. A later drill whose check does not pass opens it again."""
    from drills.actions import commands

    say(commands.close(reports, name, reason, by))
    return 0
