"""Which failing checks are the consequence of another one: a table, on purpose a short one.

A check follows its cause only when it failed for that reason, told by what it measured. Whatever has a fault of its
own beside it stays an item of its own: advice too many costs a look, advice too few costs the next outage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from drills.model import Json, Verdict
from drills.report.lessons import number


def _victims(check: Json) -> list[Json]:
    """Return what a check tells of each victim."""
    return [told for name, told in (check.get("detail") or {}).items() if name != "metrics" and isinstance(told, dict)]


def _never_ready(_cause: Json, check: Json) -> bool:
    """Whether no victim was ready again: of one that was, `rejoin` tells its share."""
    told = _victims(check)
    return bool(told) and not any(told)


def _never_back(_cause: Json, check: Json) -> bool:
    """Whether every victim's cache was fit to be compared, and no victim came back to be."""
    told = _victims(check)
    return bool(told) and all("hit_rate_needed" in one and "hit_rate" not in one for one in told)


def _cannot_resolve(cause: Json, check: Json) -> bool:
    """Whether the alert did its work, and only could not end while the replica was away."""
    params, detail = check.get("params") or {}, check.get("detail") or {}
    resolves_s, notified_s = number(params.get("resolves_within")), number(params.get("notified_within"))
    if resolves_s is None or not _within(check.get("value"), number(check.get("bound"))):
        return False
    if notified_s is not None and not _within(detail.get("notified_s"), notified_s):
        return False
    return not _within(cause.get("value"), resolves_s)


def _within(value: object, bound: float | None) -> bool:
    found = number(value)
    return found is not None and bound is not None and found <= bound


def _too_slow(_cause: Json, check: Json) -> bool:
    """Whether it is about how long those waited for their answers who came in the fault."""
    params = check.get("params") or {}
    return params.get("cohort", "fault") == "fault" and params.get("metric", "ttft") in ("ttft", "e2e")


#: cause → check that follows it → whether it does (cause, check).
FOLLOWS: dict[str, dict[str, Callable[[Json, Json], bool]]] = {
    "replica_restart": {"rejoin": _never_ready, "cache_recovery": _never_back, "alert": _cannot_resolve},
    "degraded": {"latency": _too_slow, "goodput": _too_slow},
}


def cause_of(check: Json, checks: Iterable[Json]) -> Json | None:
    """Return the failing check of which this failing one is the consequence, None when it stands for itself."""
    if check.get("verdict") != Verdict.FAIL:
        return None
    failing = [other for other in checks if other.get("verdict") == Verdict.FAIL]
    for cause in failing:
        test = FOLLOWS.get(str(cause.get("check")), {}).get(str(check.get("check")))
        if test and test(cause, check):
            return cause
    return None
