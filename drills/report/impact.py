"""What users saw, counted from the request records and the ledger. Values stay plain numbers here."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from pydantic import ValidationError

from drills import stats
from drills.checks.degraded import Degraded, DegradedParams, needed
from drills.checks.streams import BROKEN
from drills.model import Outcome
from drills.report.facts import Facts
from drills.strictjson import is_number

WINDOW_S = 10.0
MINUTE_S = 60.0


@dataclass(frozen=True)
class Quantile:
    """A quantile of a cohort: value and 95 % interval in seconds, None where there is no data or no end."""

    cohort: str
    metric: str
    quantile: float
    value_s: float | None
    n: int
    interval: tuple[float | None, float | None] | None


def quantiles(facts: Facts) -> list[Quantile]:
    """Return p50 and p99 of TTFT, longest gap and E2E for the baseline and fault cohorts."""
    rows = []
    for metric in ("ttft", "max_gap", "e2e"):
        for quantile in (0.5, 0.99):
            rows += [quantile_of(facts, cohort, metric, quantile) for cohort in ("baseline", "fault")]
    return rows


def quantile_of(facts: Facts, cohort: str, metric: str, quantile: float) -> Quantile:
    """Return one quantile; failed requests count as infinitely slow."""
    ordered = _ordered(facts, cohort, metric)
    value = stats.nearest_rank(ordered, quantile)
    interval = stats.quantile_interval(ordered, quantile) if len(ordered) else None
    return Quantile(cohort, metric, quantile, value, len(ordered), interval)


def _ordered(facts: Facts, cohort: str, metric: str) -> Sequence[float]:
    values = facts.cohorts[cohort][metric]
    return facts.evidence.once(f"{metric} of {cohort}, ordered", lambda: array("d", values.sort()))


def by_outcome(facts: Facts) -> dict[str, dict[str, int]]:
    """Return outcome, with the class of its error → cohort → number of arrivals, in the order of the model."""
    return {label_of(key): counts for key, counts in by_class(facts).items()}


def by_class(facts: Facts) -> dict[tuple[str, str], dict[str, int]]:
    """Return (outcome, class of error) → cohort → number of arrivals, in the order of the model."""
    groups = {**facts.cohorts, "whole run": facts.evidence.measured}
    counted: dict[str, dict[tuple[str, str], int]] = {}
    for name, frame in groups.items():
        rows = frame.group_by("outcome", pl.col("error").fill_null("")).len().rows()
        counted[name] = {(str(outcome), str(error)): number for outcome, error, number in rows}
    keys = sorted({key for counter in counted.values() for key in counter}, key=_order)
    return {key: {name: counter.get(key, 0) for name, counter in counted.items()} for key in keys}


def label_of(key: tuple[str, str]) -> str:
    """Return an outcome with the class of its error, if it has one."""
    return f"{key[0]}: {key[1]}" if key[1] else key[0]


def _order(key: tuple[str, str]) -> tuple[int, str, str]:
    known = [str(outcome) for outcome in Outcome]
    return (known.index(key[0]) if key[0] in known else len(known), *key)


@dataclass(frozen=True)
class Streams:
    """Requests in flight on victims at the injection, and how many of them got no whole answer.

    `reached`: those among them that were begun while a held fault was still coming on.
    """

    in_flight: int
    cut: int
    reached: int


def streams(facts: Facts) -> Streams | None:
    """Return the streams on victims at the injection; None without a ledger or without an injection."""
    if facts.hit is None or not facts.evidence.has_ledger:
        return None
    arrivals = list(facts.evidence.in_flight_on_victims)
    began = pl.concat([facts.cohorts["caught"], facts.evidence.watched])
    rows = began.filter(pl.col("arrival").is_in(arrivals))
    reached = rows.filter(pl.col("intended") >= facts.hit).height
    return Streams(rows.height, rows.filter(pl.col("outcome").is_in(BROKEN)).height, reached)


@dataclass(frozen=True)
class Window:
    """The worst seconds of a run: begin (seconds from the zero), arrivals and violations in them."""

    begin_s: float
    n: int
    violations: int


def worst_window(facts: Facts, span_s: float = WINDOW_S) -> Window | None:
    """Return the stretch of that length with the largest share of violations after the zero, by intended start."""
    found: Window | None = facts.evidence.once(f"worst {span_s:g} s", lambda: _worst_window(facts, span_s))
    return found


def _worst_window(facts: Facts, span_s: float) -> Window | None:
    frame = facts.evidence.measured.lazy().filter(pl.col("intended") >= facts.zero)
    after = frame.select("intended", "violation").collect().sort("intended")
    if after.is_empty():
        return None
    times = array("d", after["intended"] - facts.zero)
    sums = array("q", [0, *after["violation"].cast(pl.Int64).cum_sum()])
    best: Window | None = None
    for second in range(int(max(times[-1] - span_s, 0)) + 1):
        low, high = bisect_left(times, second), bisect_left(times, second + span_s)
        window = Window(float(second), high - low, sums[high] - sums[low])
        if window.n and (best is None or window.violations * best.n > best.violations * window.n):
            best = window
    return best


def degraded(facts: Facts, cohort: str) -> tuple[int, int]:
    """Return how many answers of a cohort came from the degradation path, and its arrivals."""
    frame = facts.cohorts[cohort]
    return len(frame.filter(pl.col("outcome") == Outcome.DEGRADED)), len(frame)


@dataclass(frozen=True)
class Opening:
    """The first request that got a degraded answer in time: its intended start (mono), and its wait for an opening."""

    at: float
    arrival: int
    after_s: float


def opening(facts: Facts) -> Opening | None:
    """Return when degradation opened, as the check `degraded` saw it; None when it did not, or nobody asked."""
    check = next((check for check in facts.checks if check.get("check") == Degraded.name), {})
    after_s = (check.get("detail") or {}).get("opened_s")
    if after_s is None or not is_number(after_s):
        return None
    try:
        params = DegradedParams.model_validate(check.get("params") or {})
    except ValidationError:
        return None
    bound_s = facts.sla_ttft_s if params.ttft == "sla" else float(params.ttft)
    frame = needed(facts.evidence, params.of, bound_s).sort("intended", "arrival")
    served = frame.filter((pl.col("outcome") == Outcome.DEGRADED) & (pl.col("ttft") <= bound_s))
    if served.is_empty():
        return None
    first = served.row(0, named=True)
    return Opening(float(first["intended"]), int(first["arrival"]), float(after_s))
