"""How a stored run ended, for the terminal: judged again from its files, so that no stale verdict is shown."""

from __future__ import annotations

from pathlib import Path

from drills import runfolder
from drills.report.escape import visible


def run(name: str, reports: Path) -> list[str]:
    """Return a run's outcome, a line each. Raises DrillError when there is no such run, or none that can be judged."""
    from drills import verdict  # polars costs a second, which other commands must not pay

    folder = runfolder.find_run(name, reports / "runs")
    found = verdict.judge(folder)
    lines = [str(folder), f"verdict {found.verdict}   left {found.left}   restored {found.restored}"]
    lines += [f"reason: {found.reason}"] if found.reason else []
    for row in found.checks:
        value = "-" if row.value is None else f"{row.value} {row.unit}".strip()
        bound = "" if row.bound is None else f" (bound {row.bound})"
        lines.append(f"  {row.check:16} {row.verdict:13} {value}{bound}  {row.reason}".rstrip())
    if said := verdict.stale(folder, found):
        lines.append(said)
    return [visible(line) for line in [*lines, str(folder / "postmortem.md")]]
