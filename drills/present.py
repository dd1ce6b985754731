"""How a stored run ended, for the terminal."""

from __future__ import annotations

import json
from pathlib import Path

from drills import runfolder
from drills.model import Json


def run(name: str, reports: Path) -> list[str]:
    """Return a run's outcome, a line each. Raises FileProblem when there is no such run."""
    folder = runfolder.find_run(name, reports / "runs")
    verdict = folder / "verdict.json"
    if not verdict.is_file():
        return [f"{folder}", "not judged yet: `drill judge` does it, `drill status` says whether it ended"]
    found: Json = json.loads(verdict.read_text())
    lines = [str(folder), f"verdict {found['verdict']}   left {found['left']}   restored {found['restored']}"]
    lines += [f"reason: {found['reason']}"] if found["reason"] else []
    for row in found["checks"]:
        value = "-" if row["value"] is None else f"{row['value']} {row['unit']}".strip()
        bound = "" if row["bound"] is None else f" (bound {row['bound']})"
        lines.append(f"  {row['check']:16} {row['verdict']:13} {value}{bound}  {row['reason']}".rstrip())
    return [*lines, str(folder / "postmortem.md")]
