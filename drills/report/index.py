"""The index of a month: all its runs, and the drills that were asked for and did not run.

Pure and offline: made from the folders under `runs` and the month's own files, the same bytes each time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from drills import files, runfolder
from drills.errors import EXIT_REFUSED, EXIT_STOPPED
from drills.model import Json
from drills.report.escape import code, prose

INDEX: Final = "index.md"
MONTH: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])")
#: How an exit code is called where the verdict is not the whole answer.
ENDED: Final = {EXIT_REFUSED: "refused", EXIT_STOPPED: "stopped"}


@dataclass(frozen=True)
class Row:
    """One run, as the table has it; `stamp` is when it began, as its folder says it."""

    stamp: str
    began: str
    target: str
    drill: str
    outcome: str
    left: str
    restored: str
    link: str


def write(reports: Path, month: str) -> Path:
    """Write the month's index and return its path. Raises FileProblem."""
    path = reports / month / INDEX
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, render(reports, month).encode())
    return path


def render(reports: Path, month: str) -> str:
    """Return the index of a month, `2026-11`, as Markdown."""
    begun = date.fromisoformat(f"{month}-01")
    rows = list(_rows(reports, month))
    missing = list(_missing(reports / month, rows))
    lines = [f"# Drills in {begun:%B %Y}", "", _summary(rows, len(missing))]
    if rows:
        lines += [
            "",
            "| began (UTC) | target | drill | outcome | left | restored | run |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r.began} | {code(r.target)} | {code(r.drill)} | {r.outcome} | {r.left} | {r.restored} | {r.link} |"
            for r in rows
        ]
    if missing:
        lines += ["", "## Asked for, and not run", "", *missing]
    return "\n".join(lines) + "\n"


def _summary(rows: list[Row], missing: int) -> str:
    if not rows:
        return f"No run. {missing} drills were asked for and did not run." if missing else "No run."
    counts = {word: sum(row.outcome == word for row in rows) for word in dict.fromkeys(row.outcome for row in rows)}
    said = f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}: " + ", ".join(f"{n} {w}" for w, n in counts.items())
    dirty = sum(row.restored not in ("clean", "–") for row in rows)
    said += f"; **{dirty} not restored**" if dirty else ""
    return said + (f"; {missing} asked for and not run." if missing else ".")


def _rows(reports: Path, month: str) -> Iterator[Row]:
    for folder in runfolder.list_runs(reports / "runs"):
        if folder.name.startswith(month.replace("-", "")):
            yield _row(folder)


def _row(folder: Path) -> Row:
    plan, verdict = _json(folder / "plan.json"), _json(folder / "verdict.json")
    time, run = folder.name.split("-", 1)[0], runfolder.run_id(folder)
    shown = next((name for name in ("postmortem.md", "journal.jsonl") if (folder / name).is_file()), "")
    outcome = ENDED.get(verdict.get("exit_code", 0)) or str(verdict.get("verdict") or "no verdict yet")
    return Row(
        stamp=time,
        began=f"{time[6:8]} {time[9:11]}:{time[11:13]}",
        target=_text(plan, "target", "name"),
        drill=_text(plan, "experiment", "name"),
        outcome=prose(outcome),
        left=prose(verdict.get("left") or "–"),
        restored=prose(verdict.get("restored") or "–"),
        link=f"[{run}](../runs/{folder.name}/{shown})",
    )


def _missing(folder: Path, rows: list[Row]) -> Iterator[str]:
    """Yield a line for each drill that was asked for and has no run.

    Whoever was killed in the middle of one has not written down that it ran: its folder tells.
    """
    for path in sorted(folder.glob("*.json")):
        asked = _json(path)
        since = re.sub(r"[-:]|\..*", "", str(asked.get("began", "")))
        ran = {row.drill for row in rows if row.target == asked.get("target") and row.stamp >= since}
        drills = asked.get("drills")
        for row in drills if isinstance(drills, list) else ():
            if isinstance(row, dict) and not row.get("run") and row.get("drill") not in ran:
                when, target = str(asked.get("began", "?"))[:16].replace("T", " "), code(asked.get("target", "?"))
                yield f"- {code(row.get('drill', '?'))} at {target}, {when} UTC: {prose(row.get('why') or 'not known')}"


def _text(plan: Json, *keys: str) -> str:
    found: Any = plan
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return str(found or "?")


def _json(path: Path) -> Json:
    """Return a file's content, nothing when it is not there or damaged: the index lists what it can."""
    try:
        found = json.loads(files.read(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
