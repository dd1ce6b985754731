"""What several commands take in the same words, and how they speak."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from drills import errors, output

Reports = Annotated[Path, typer.Option("--reports", help="Folder of the reports; runs go to its folder runs.")]
Target = Annotated[str | None, typer.Option("--target", help="Name of the target (default: the file's, else the lab).")]
Targets = Annotated[Path | None, typer.Option("--targets", help="File of targets (default: ./drill.yaml).")]
Seed = Annotated[int | None, typer.Option("--seed", help="Chooses victims and arrivals (default: drawn, and told).")]
Defect = Annotated[str | None, typer.Option("--defect", help="Plant a defect into the lab; a drill must find it.")]
PortBase = Annotated[int | None, typer.Option("--port-base", help="First port of the lab (default 18000).")]
Startup = Annotated[str | None, typer.Option("--startup", help="Start-up time of the lab's engines, such as 5s.")]
Engine = Annotated[
    str | None, typer.Option("--engine", help="What the lab's replicas are: emulator, or vllm if installed.")
]
Confirm = Annotated[str, typer.Option("--confirm", help="The target's name once more: production asks for it.")]
OnCall = Annotated[str, typer.Option("--oncall", help="Who is on call and knows of it: production asks for it.")]
Junit = Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML to this file.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="At the end one JSON object a drill, a line each; all else on standard error.")
]
RUNS = Path("reports")


def say(text: str) -> None:
    """Print one line."""
    output.say(text)


def warn(text: str) -> None:
    """Print one line on standard error."""
    output.say(f"drill: {text}", to=sys.stderr)


def seconds(text: str | None) -> float | None:
    """Return a duration in seconds. Raises UsageError."""
    if text is None:
        return None
    from drills.units import UnitError, parse_duration

    try:
        return parse_duration(text)
    except UnitError as error:
        raise errors.UsageError(f"--startup {text}: {error}") from None
