"""Which runs may be compared, and which differences between them are more than chance. Pure.

Runs are comparable when they did the same: fault, load, phases, kind and name of the target, model and SLA. Seed and
versions do not count: a seed chooses among equals, and versions are what a comparison is made for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

from drills import stats
from drills.lang import mark
from drills.model import Json
from drills.strictjson import is_count, is_number

#: The rule in one line, for whoever reads a comparison.
RULE: Final = mark(
    "A difference is beyond chance only where the 95 % intervals of both values do not overlap: order statistics for "
    "quantiles of latency, Clopper-Pearson for shares; a value without an interval stands for its own run alone."
)

#: The checks whose interval says what chance may do, and whether more of their value is better.
MORE_IS_BETTER: Final = {"latency": False, "availability": True, "goodput": True, "sessions": True, "degraded": True}

#: Parameters that say what a check measures. All others are bounds: they judge a value and do not change it.
_MEASURED: Final = ("metric", "quantile", "cohort", "name", "labels", "by", "preset")

#: Low and high end; None is an end that is not known.
Interval = Sequence[float | None]


class Change(StrEnum):
    """What a value did from one run to the next."""

    BETTER = "better"
    WORSE = "worse"
    CHANCE = "within chance"
    NO_INTERVAL = "no interval"  # at least one of both values has none: nothing is claimed


def key(plan: Json) -> Json:
    """Return what two runs must have in common to be compared; equal keys, comparable runs. `plan` is plan.json."""
    experiment, target, phases = (_map(plan.get(name)) for name in ("experiment", "target", "phases"))
    lab = _map(target.get("lab"))
    return _map(
        _without_nulls(
            {
                "drill": experiment.get("name"),
                "faults": [_fault(item) for item in _list(experiment.get("faults"))],
                "target": {name: target.get(name) for name in ("name", "kind", "expected_replicas")}
                | {"engine": lab.get("engine")},
                "load": experiment.get("load"),
                # How long it watches afterwards is its checks' doing, and changes nothing of what it measures.
                "phases": {name: phases.get(name) for name in ("warmup_s", "baseline_s", "fault_s", "recovery_from")},
                "sla": target.get("sla"),
                "model": target.get("model"),
                "defect": plan.get("defect"),
            }
        )
    )


def differences(a: Json, b: Json) -> list[str]:
    """Return why two plans are not comparable, a part of the plan each ("load.arrivals.rate: 20, 30"); empty: they are.

    The texts come from the files as they are: whoever shows them makes them inert.
    """
    return diff(key(a), key(b))


def diff(a: Any, b: Any) -> list[str]:
    """Return where two pieces of plain data differ, a line each: "where: one, other"."""
    return [f"{where}: {_said(one)}, {_said(other)}" for where, one, other in _parts(a, b, "")]


def row_key(check: Json) -> str:
    """Return what a row of verdict.json measures: rows with the same key stand beside each other."""
    params = _map(check.get("params"))
    measured = {name: params[name] for name in _MEASURED if params.get(name) not in (None, {}, [])}
    return json.dumps([check.get("check"), measured], sort_keys=True)


def interval(check: Json) -> tuple[float | None, float | None] | None:
    """Return the interval that says what chance may do with a row's value; None when it has none.

    JSON has no infinity: an end that failed requests make infinite is null there, and infinite here.
    """
    ends = check.get("interval")
    if check.get("check") not in MORE_IS_BETTER or not isinstance(ends, list | tuple) or len(ends) != 2:
        return None
    low, high = (float(end) if is_number(end) else None for end in ends)
    if check.get("value") == "inf":
        low, high = (low if low is not None else _infinite_low(check)), math.inf
    return None if low is None and high is None else (low, high)


def beyond_chance(a: Interval | None, b: Interval | None) -> bool:
    """Whether two intervals do not overlap. An end that is not known may be anywhere."""
    if a is None or b is None:
        return False
    (a_low, a_high), (b_low, b_high) = a, b
    return _below(a_high, b_low) or _below(b_high, a_low)


def change(before: Json, after: Json) -> Change:
    """Return what the value of a check did, from its rows in two verdicts of comparable runs."""
    more_is_better = MORE_IS_BETTER.get(str(after.get("check")), False)
    return change_of(interval(before), interval(after), more_is_better=more_is_better)


def change_of(a: Interval | None, b: Interval | None, *, more_is_better: bool) -> Change:
    """Return what a value did, from its intervals before and after."""
    if a is None or b is None:
        return Change.NO_INTERVAL
    if not beyond_chance(a, b):
        return Change.CHANCE
    return Change.BETTER if _below(a[1], b[0]) == more_is_better else Change.WORSE


# ---- how --------------------------------------------------------------------------------------------------


def _fault(item: Any) -> Json:
    """Return a planned fault without the words about it."""
    planned = _map(item)
    return {name: planned.get(name) for name in ("fault", "params", "route")}


def _infinite_low(check: Json) -> float | None:
    """Return infinity where so many requests do have a low end, for then it was a failure."""
    n: Any = check.get("n")
    quantile: Any = _map(check.get("params")).get("quantile")
    if not is_count(n) or not is_number(quantile) or not 0 < quantile < 1 or not 0 < n < 10**9:
        return None
    return math.inf if stats.lowest_rank(n, quantile) >= 1 else None


def _below(high: float | None, low: float | None) -> bool:
    return high is not None and low is not None and high < low


def _parts(a: Any, b: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            yield from _parts(a.get(name), b.get(name), f"{where}.{name}" if where else str(name))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _parts(one, other, f"{where}[{i}]")
    elif a != b:
        yield where, a, b


def _said(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _without_nulls(value: Any) -> Any:
    """Return plain data without what is not said: a parameter that is newer than a plan changes nothing there."""
    if isinstance(value, dict):
        return {str(name): _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _map(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
