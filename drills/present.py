"""How a stored run ended, for the terminal: judged again from its files, so that no stale verdict is shown."""

from __future__ import annotations

from pathlib import Path

from drills import runfolder
from drills.model import CheckResult
from drills.report.escape import visible

#: How units are shown; shares and counts are plain numbers.
UNITS = {"s": "s"}


def run(name: str, reports: Path) -> list[str]:
    """Return a run's outcome, a line each. Raises DrillError when there is no such run, or none that can be judged."""
    from drills import verdict  # polars costs a second, which other commands must not pay

    folder = runfolder.find_run(name, reports / "runs")
    found = verdict.judge(folder)
    lines = [str(folder), f"verdict {found.verdict}   left {found.left}   restored {found.restored}"]
    lines += [f"reason: {found.reason}"] if found.reason else []
    lines += [check(row) for row in found.checks]
    if said := verdict.stale(folder, found):
        lines.append(said)
    return [visible(line) for line in [*lines, str(folder / "postmortem.md")]]


def check(row: CheckResult) -> str:
    """Return one check's answer as a line: name, verdict, value and bound, reason."""
    value = "" if row.value is None else f"{_number(row.value)} {UNITS.get(row.unit, '')}".strip()
    bound = "" if row.bound is None or not value else f" (bound {_number(row.bound)})"
    return f"  {row.check:16} {row.verdict:13} {value}{bound}  {row.reason}".rstrip()


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}" if value < 100 else f"{value:.0f}"
