"""How a stored run ended, for the terminal: judged again from its files, so that no stale verdict is shown."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from drills import runfolder
from drills.model import CheckResult, Json
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
    lines += checks(found.checks)
    if said := verdict.stale(folder, found):
        lines.append(said)
    return [visible(line) for line in [*lines, str(folder / "postmortem.md")]]


def checks(rows: Iterable[CheckResult]) -> list[str]:
    """Return all checks' answers, a line each; of one that judged a table also the table's rows."""
    return [line for row in rows for line in (check(row), *map(_metric, row.detail.get("rows") or ()))]


def _metric(row: Json) -> str:
    unit = str(row["unit"])
    value, bound = _in_unit(row["value"], unit), _in_unit(row["bound"], unit)
    figures = f"{value} ({row['side']} {bound})  " if value else ""
    return f"    {row['metric']:16} {row['verdict']:13} {figures}{row['reason']}".rstrip()


def _in_unit(value: float | str | None, unit: str) -> str:
    if value is None:
        return ""
    return (
        f"{100 * value:.3g} %"
        if unit == "ratio" and not isinstance(value, str)
        else (f"{_number(value)} {unit if unit in ('s', '°C') else ''}".rstrip())
    )


def check(row: CheckResult) -> str:
    """Return one check's answer as a line: name, verdict, value and bound, reason."""
    value = "" if row.value is None else f"{_number(row.value)} {UNITS.get(row.unit, '')}".strip()
    bound = "" if row.bound is None or not value else f" (bound {_number(row.bound)})"
    return f"  {row.check:16} {row.verdict:13} {value}{bound}  {row.reason}".rstrip()


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}" if value < 100 else f"{value:.0f}"
