"""Run folder → verdict. Pure and offline: the same files give the same bytes.

Merged pessimistically: fail over inconclusive over pass; rows that are not judged stay outside. A broken
validity gate makes the run inconclusive, whatever the rows say. `restored` and `left` stand beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from drills import evidence, files
from drills.checks import CHECKS, validity
from drills.checks.base import named
from drills.errors import (
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_NOT_RESTORED,
    EXIT_PASS,
    EXIT_REFUSED,
    EXIT_STOPPED,
    DrillError,
    nearest,
)
from drills.evidence import Evidence
from drills.lang import spoken, t
from drills.model import CheckResult, Json, Left, Restored, RunVerdict, Verdict

FILE = "verdict.json"
_EXITS = {Verdict.PASS: EXIT_PASS, Verdict.FAIL: EXIT_FAIL, Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE}


def judge(run_folder: Path | str) -> RunVerdict:
    """Judge a run by its files; raises DrillError when there is nothing to judge."""
    return of(evidence.read(run_folder))


def write(run_folder: Path | str) -> RunVerdict:
    """Judge a run and write its verdict.json in one step."""
    return written(run_folder)[0]


def written(run_folder: Path | str) -> tuple[RunVerdict, Evidence]:
    """Judge a run and write its verdict.json; returns with the verdict the evidence, for who reports on it."""
    path = Path(run_folder) / FILE
    try:
        ev = evidence.read(run_folder)
        verdict = of(ev)
    except DrillError:
        _forget(path)
        raise
    files.write(path, encode(verdict))
    return verdict, ev


def _forget(path: Path) -> None:
    """Remove a verdict of other files than those that are here now, if that can be done: what counts is said next."""
    with suppress(OSError):
        if path.is_file() or path.is_symlink():
            path.unlink()


def stale(run_folder: Path | str, verdict: RunVerdict) -> str:
    """Say that verdict.json is not there, or is not what the files give now; empty when it is."""
    try:
        stored = files.read(Path(run_folder) / FILE)
    except OSError:
        return t("{file} is not there; `drill judge` writes it", file=FILE)
    if stored == encode(verdict):
        return ""
    return t("{file} says something else than these files: `drill judge` mends it", file=FILE)


def encode(verdict: RunVerdict) -> bytes:
    """Return the content of verdict.json."""
    text = json.dumps(_plain(asdict(verdict)), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # Half a surrogate, which a damaged file may hold, stays the escape that it was there.
    return (text + "\n").encode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def of(ev: Evidence) -> RunVerdict:
    """Judge evidence, once in each language: the reasons are said in the one that is spoken, all else is the same."""
    return ev.once(f"verdict {spoken()}", lambda: _of(ev))


def _of(ev: Evidence) -> RunVerdict:
    status = _status(ev)
    rows = tuple(_row(ev, item, status) for item in ev.plan.get("experiment", {}).get("checks", ()))
    broken = list(dict.fromkeys(validity.reasons(ev)))  # two gates may miss the same thing
    if status == "refused":
        broken = broken[:1]  # the refusal; everything else follows from it
    verdict = Verdict.INCONCLUSIVE if broken else merge(row.verdict for row in rows)
    restored = restored_by(ev)
    return RunVerdict(
        run=ev.run,
        verdict=verdict,
        restored=restored,
        left=left(ev),
        exit_code=exit_code(verdict, restored, touched=_touched(ev), status=status),
        checks=rows,
        reason=t("; ").join(broken) or _why(verdict, rows),
    )


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict: fail, then inconclusive, then pass; nothing judged is inconclusive."""
    judged = {verdict for verdict in verdicts if verdict is not Verdict.NOT_JUDGED}
    if Verdict.FAIL in judged:
        return Verdict.FAIL
    return Verdict.PASS if judged == {Verdict.PASS} else Verdict.INCONCLUSIVE


def restored_by(ev: Evidence) -> Restored:
    """Return whether every receipt's revert ended clean; one without an end, or a journal with a hole, is unknown."""
    lost = {"receipt", "revert.end"} & ev.damaged or not ev.numbered
    found = {Restored.UNKNOWN if lost else Restored.CLEAN}
    for receipt in ev.all_receipts:
        ends = [e.data.get("restored") for e in ev.of("revert.end") if e.data.get("receipt") == receipt["id"]]
        found.add(Restored(ends[-1]) if ends and ends[-1] in set(Restored) else Restored.UNKNOWN)
    return next(r for r in (Restored.DIRTY, Restored.UNKNOWN, Restored.CLEAN) if r in found)


def _touched(ev: Evidence) -> bool:
    return bool(ev.all_receipts or ev.hits or "receipt" in ev.damaged)


def left(ev: Evidence) -> Left:
    """Return how the service was when it was last looked at; a passed gate is the last look of a refused run."""
    seen = ev.last("left")
    if seen is not None:
        return Left.HEALTHY if seen.data.get("left") == Left.HEALTHY else Left.DEGRADED
    gate = ev.last("gate")
    if ev.receipts or gate is None:
        return Left.UNKNOWN
    return Left.HEALTHY if gate.data.get("ok") else Left.DEGRADED


def exit_code(verdict: Verdict, restored: Restored, *, touched: bool, status: str) -> int:
    """Return the exit code of one run; not restored outranks all."""
    if touched and restored is not Restored.CLEAN:
        return EXIT_NOT_RESTORED
    if status == "stopped":
        return EXIT_STOPPED
    if status == "refused":
        return EXIT_REFUSED
    return _EXITS.get(verdict, EXIT_INCONCLUSIVE)


def _status(ev: Evidence) -> str:
    """Return how the run ended; a later recovery does not change that."""
    ends = ev.of("end")
    return str(ends[0].data.get("status")) if ends else "crashed"


def _row(ev: Evidence, item: Json, status: str) -> CheckResult:
    name, raw = named(item)
    if name not in CHECKS:
        unknown = t("unknown check{nearest}", nearest=nearest(name, CHECKS))
        return CheckResult(name, Verdict.INCONCLUSIVE, reason=unknown, params=raw)
    check = CHECKS[name]
    try:
        params = check.Params.model_validate(raw)
    except ValidationError as exc:
        where = ".".join(str(part) for part in exc.errors()[0]["loc"])
        damaged = t("its parameters are damaged: {where}", where=where)
        return CheckResult(name, Verdict.INCONCLUSIVE, reason=damaged, params=raw)
    try:
        window_s, watched_s = check.window_s(params), _planned_watch_s(ev.plan)
        if status == "refused":
            found = CheckResult(name, Verdict.NOT_JUDGED, reason=t("refused before anything was touched"))
        elif window_s > watched_s:
            short = t("needs {needed:g} s, the plan watches {seconds:g} s", needed=window_s, seconds=watched_s)
            found = CheckResult(name, Verdict.NOT_JUDGED, reason=short)
        else:
            found = check.judge(ev, params)
    except Exception as exc:
        # A judge that breaks has shown nothing about the service. What broke is for whoever mends it.
        broke: Json = {"broke": f"{type(exc).__name__}: {exc}"}
        told = t("cannot be told from these files")
        found = CheckResult(name, Verdict.INCONCLUSIVE, reason=told, detail=broke)
    return _finite(replace(found, params=raw))


def _planned_watch_s(plan: Json) -> float:
    """Return how long the plan watches after the injection, or after a held fault is off."""
    phases = plan["phases"]
    if "recovery_from" in phases:
        return float(phases["recovery_s"])
    return float(phases["fault_s"]) + float(phases["recovery_s"])


def _finite(row: CheckResult) -> CheckResult:
    """A value that is no number is no evidence."""
    if isinstance(row.value, float) and not math.isfinite(row.value):
        return replace(row, verdict=Verdict.INCONCLUSIVE, value=None, reason=t("the value is no number"))
    return row


def _why(verdict: Verdict, rows: tuple[CheckResult, ...]) -> str:
    """Say which rows made the verdict."""
    if verdict is Verdict.PASS:
        return ""
    causes = [t("{check}: {reason}", check=row.check, reason=row.reason) for row in rows if row.verdict is verdict]
    return t("; ").join(causes) or t("no check was judged")
