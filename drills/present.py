"""How a stored run ended, for the terminal: judged again from its files, so that no stale verdict is shown.

Of a run that is still going only that is said; of one whose raw files are not kept, the verdict that was stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import cast

from drills import runfolder, stored
from drills.errors import EXIT_NOT_RESTORED, FileProblem
from drills.model import CheckResult, Json, Verdict
from drills.report import words
from drills.report.escape import visible

POSTMORTEM = "postmortem.md"


def run(name: str, reports: Path) -> list[str]:
    """Return a run's outcome, a line each. Raises DrillError when there is no such run, or none that can be judged."""
    folder = runfolder.find_run(name, reports / "runs")
    if stored.is_going(folder):
        lines = stored.going(folder)
    elif missing := stored.not_kept(folder):
        lines = _as_stored(folder, missing)
    else:
        lines = _judged(folder)
    return [visible(line) for line in (str(folder), *lines)]


def _judged(folder: Path) -> list[str]:
    """Return what the files say now."""
    from drills import verdict  # polars costs a second, which other commands must not pay

    found = verdict.judge(folder)
    lines = [f"verdict {found.verdict}   left {found.left}   restored {found.restored}"]
    lines += [f"reason: {found.reason}"] if found.reason else []
    lines += checks(found.checks)
    if said := verdict.stale(folder, found):
        lines.append(said)
    lines += stored.to_put_back(folder) if found.exit_code == EXIT_NOT_RESTORED else []
    there = (folder / POSTMORTEM).is_file()
    return [*lines, str(folder / POSTMORTEM) if there else f"{POSTMORTEM} is not there; `drill report` writes it"]


def _as_stored(folder: Path, missing: list[str]) -> list[str]:
    """Return what was judged while all files were there. Raises FileProblem when that was not kept either."""
    found = stored.verdict(folder)
    if found is None:
        what = f"neither {' nor '.join(missing)} nor {stored.VERDICT} of this run is here, so nothing can be said of it"
        raise FileProblem(folder, what)
    lines = [f"verdict {found['verdict']}   left {found['left']}   restored {found['restored']}"]
    lines.append(f"as it was judged: {' and '.join(missing)} are not kept, so it cannot be judged again")
    lines += [f"reason: {found['reason']}"] if found.get("reason") else []
    lines += checks(_result(row) for row in found["checks"])
    lines += stored.to_put_back(folder) if found.get("exit_code") == EXIT_NOT_RESTORED else []
    there = (folder / POSTMORTEM).is_file()
    return [*lines, *([str(folder / POSTMORTEM)] if there else [])]


def _result(row: Json) -> CheckResult:
    """Return a row of verdict.json as far as it is shown."""
    return CheckResult(
        check=row["check"],
        verdict=cast("Verdict", row["verdict"]),
        value=row.get("value"),
        bound=row.get("bound"),
        unit=row.get("unit") or "",
        reason=row.get("reason") or "",
        detail=row.get("detail") or {},
    )


def checks(rows: Iterable[CheckResult]) -> list[str]:
    """Return all checks' answers, a line each; of one that judged a table also the table's rows."""
    return [line for row in rows for line in (check(row), *map(_metric, row.detail.get("rows") or ()))]


def check(row: CheckResult) -> str:
    """Return one check's answer as a line: name, verdict, value and bound, reason."""
    value = "" if row.value is None else words.quantity(row.value, row.unit)
    bound = "" if row.bound is None or not value else f" (bound {words.quantity(row.bound, row.unit)})"
    return f"  {row.check:16} {row.verdict:13} {value}{bound}  {row.reason}".rstrip()


def _metric(row: Json) -> str:
    unit = str(row.get("unit") or "")
    value, bound = (None if row.get(key) is None else _in_unit(row[key], unit) for key in ("value", "bound"))
    limit = "" if bound is None else f" ({row.get('side') or 'bound'} {bound})"
    figures = "" if value is None else f"{value}{limit}  "
    return f"    {row['metric']:16} {row['verdict']:13} {figures}{row.get('reason') or ''}".rstrip()


def _in_unit(value: float | str, unit: str) -> str:
    return words.quantity(value, unit) + (" °C" if unit == "°C" else "")
