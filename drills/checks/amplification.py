"""Amplification: how many attempts one request costs, at three places. Pure; it judges nothing.

    client   attempts that the client sent    ÷ arrivals
    hop      attempts that the router started ÷ attempts of the client (each of them asks the router once)
    engine   attempts that went to engines    ÷ arrivals

An attempt counts where its arrival was meant to start, not where it was made: what a cut link holds back and lets go
later is no retry. Fallback replicas are counted apart, and a primary that was given up counts once. What was never
sent (shed) costs nothing and dilutes nothing.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import Final

import polars as pl

from drills.checks.watching import blind, on
from drills.evidence import Evidence
from drills.lang import mark, spoken, t
from drills.model import Json, Phase
from drills.strictjson import is_number

WINDOW_S: Final = 10.0
STEP_S: Final = 1.0
PLACES: Final = ("client", "hop", "engine")
#: New connections a second that a router opens to a victim to see whether it is healthy, at most; see `_background`.
HEALTH_CHECKS: Final = 1.0
#: A stretch of a rule's counter that is long enough to tell at what rate health checks come.
RATE_S: Final = 10.0
#: For so many health checks no counter stands still.
STILL_CHECKS: Final = 15
#: Longer than this without a look at the rule's counter, nobody knows when it counted.
COUNTER_GAP_S: Final = 5.0


@dataclass(frozen=True)
class Count:
    """The attempts of the arrivals of a stretch of time; `engine` None where nobody counted them."""

    begin: float
    end: float
    arrivals: int
    client: int
    engine: float | None
    fallback: int
    swallowed: float

    def of(self, place: str) -> tuple[float, int] | None:
        """Return attempts and what they are divided by; None where either is not known."""
        attempts = self.client if place == "client" else self.engine
        requests = self.client if place == "hop" else self.arrivals
        return None if attempts is None or not requests else (float(attempts), requests)

    def ratio(self, place: str) -> float | None:
        """Return attempts per request at that place."""
        counted = self.of(place)
        return counted[0] / counted[1] if counted else None


@dataclass(frozen=True)
class Series:
    """A counter over time (mono, ascending); between two looks it grows evenly."""

    times: Sequence[float]
    values: Sequence[float]

    def at(self, mono: float) -> float:
        """Return the count at that instant."""
        i = bisect_right(self.times, mono)
        if i == 0 or i == len(self.times):
            return self.values[min(i, len(self.values) - 1)] if self.values else 0.0
        left, right = self.times[i - 1], self.times[i]
        return self.values[i - 1] + (self.values[i] - self.values[i - 1]) * (mono - left) / (right - left)

    def between(self, begin: float, end: float) -> float:
        """Return how much it grew."""
        return self.at(end) - self.at(begin)


@dataclass(frozen=True)
class Rule:
    """What one fault in the network swallowed: attempts to connect, each counted once by the rule's own counter."""

    counted: Series  # without as many health checks as there are at least
    sure: Series  # without all that comes as steadily as they do
    begin: float
    end: float


def attempts_of(ev: Evidence, health_checks: float | None = HEALTH_CHECKS) -> Attempts:
    """Return the run's attempts, counted once for this evidence (and language: what is not known, they say)."""
    return ev.once(f"attempts {health_checks} {spoken()}", lambda: Attempts(ev, health_checks))


class Attempts:
    """Counts a run's attempts over any stretch of time."""

    def __init__(self, ev: Evidence, health_checks: float | None = HEALTH_CHECKS) -> None:
        self.rules, self.unknown = _rules(ev, health_checks or 0.0)
        self.doubt = _doubt(ev, health_checks or 0.0)  # why what the rules counted may be too little
        frame = _by_arrival(ev)
        self._times = array("d", frame["intended"])
        self._sums = {name: array("q", [0, *frame[name].cum_sum()]) for name in ("client", "primary", "fallback")}
        self._ledger = ev.has_ledger and not ev.ledger["arrival"].is_null().all()
        self._counters = None if self._ledger else _engine_counters(ev)
        self.baseline = self._before(ev)

    @property
    def source(self) -> str:
        """Say where the attempts at the engines come from, marked for `t`; empty when nobody counted them."""
        if self._ledger:
            return mark("ledger and the rule's counter of new connections") if self.rules else mark("ledger")
        if self._counters:
            return (
                mark("vLLM's own counters and the rule's counter of new connections")
                if self.rules
                else mark("vLLM's own counters")
            )
        return ""

    def count(self, begin: float, end: float) -> Count:
        """Count the attempts of the arrivals intended in [begin, end)."""
        low, high = bisect_left(self._times, begin), bisect_left(self._times, end)
        known = {name: sums[high] - sums[low] for name, sums in self._sums.items()}
        swallowed = sum(rule.counted.between(begin, end) for rule in self.rules)
        reached = float(known["primary"]) if self._ledger else None
        if self._counters is not None:
            reached = self._counters.between(begin, end)
        seen = reached is not None and not self.unknown
        return Count(
            begin=begin,
            end=end,
            arrivals=high - low,
            client=known["client"],
            engine=reached + swallowed if seen and reached is not None else None,
            fallback=known["fallback"],
            swallowed=swallowed,
        )

    def windows(self, begin: float, until: float, ended: float) -> list[Count]:
        """Return the windows that begin in [begin, until) and end with the load at the latest."""
        steps = max(0, math.ceil((min(until, ended - WINDOW_S + 1e-9) - begin) / STEP_S))
        return [self.count(begin + i * STEP_S, begin + i * STEP_S + WINDOW_S) for i in range(steps)]

    def over_baseline(self, count: Count, place: str) -> float | None:
        """Return attempts per request there, as a multiple of the baseline's."""
        ratio, before = count.ratio(place), self.baseline.ratio(place) if self.baseline else None
        return ratio / before if ratio is not None and before else None

    def _before(self, ev: Evidence) -> Count | None:
        span, hit = ev.phase(Phase.BASELINE), ev.t_inject
        if span is None:
            return None
        end = span.end if hit is None else min(span.end, hit - ev.sla.e2e.value_s)
        found = self.count(span.begin, end)
        return found if found.arrivals else None


def _by_arrival(ev: Evidence) -> pl.DataFrame:
    """Return the arrivals that were sent, by intended start, with their attempts at client, primaries, fallbacks."""
    frame = ev.requests.select("arrival", "intended", pl.col("attempts").list.len().fill_null(0).alias("client"))
    frame = frame.filter((pl.col("client") > 0) & pl.col("intended").is_not_null())
    primary = pl.col("role") == "primary"
    ledger = ev.ledger.group_by("arrival").agg(
        primary.sum().cast(pl.Int64).alias("primary"), (~primary).sum().cast(pl.Int64).alias("fallback")
    )
    joined = frame.join(ledger.drop_nulls("arrival"), on="arrival", how="left")
    return joined.with_columns(pl.col("primary", "fallback").fill_null(0)).sort("intended", "arrival")


# ---- what the network swallowed -----------------------------------------------------------------------


def _rules(ev: Evidence, configured: float) -> tuple[list[Rule], str]:
    """Return the rules of the run, and why what they swallowed is not known (empty when it is)."""
    found: list[Rule] = []
    for receipt in ev.receipts:
        looks = _looks(ev, receipt)
        if not looks and not _cuts(receipt):
            continue
        begin, end = on(ev, receipt)
        low, high = blind((mono for mono, _ in looks), begin, end)
        if not looks or high - low > COUNTER_GAP_S:
            return found, t(
                "nobody looked at the counter of {fault} for {seconds:.1f} s",
                fault=receipt["fault"],
                seconds=high - low,
            )
        least, most = _background(looks, begin, end, configured * (len(receipt["victims"]) or 1))
        found.append(Rule(_beyond(looks, begin, least), _beyond(looks, begin, most), begin, end))
    return found, ""


def _looks(ev: Evidence, receipt: Json) -> list[tuple[float, float]]:
    """Return when the counter of a receipt's rule was read, and what it was."""
    return sorted(
        (float(s["mono"]), float(s["values"]["new"]))
        for s in ev.samples
        if s["probe"] == "fault" and s.get("subject") == receipt["id"] and s["ok"] and _counts(s["values"])
    )


def _background(
    looks: Sequence[tuple[float, float]], begin: float, end: float, configured: float
) -> tuple[float, float]:
    """Return how many health checks a second there are at least, and what may be health checks at most.

    At least: what is configured, and no more than the counter grew by where it grew least. At most: what is
    configured, and all that comes at a steady pace, for nobody can tell it from health checks.
    """
    inside = [(mono, new) for mono, new in looks if begin <= mono <= end]
    times = [mono for mono, _ in inside]
    grown = []
    for mono, new in inside:
        after = bisect_left(times, mono + RATE_S)
        if after < len(times):
            grown.append((inside[after][1] - new, times[after] - mono))
    if not grown:
        return configured, configured
    # They come one by one: a stretch may hold one less than their rate says.
    least = min((new + 1) / length for new, length in grown)
    return max(0.0, min(configured, least)), max(configured, median(new / length for new, length in grown))


def _doubt(ev: Evidence, configured: float) -> str:
    """Say that a rule's counter cannot have counted all; empty when nothing speaks against it."""
    for receipt in ev.receipts:
        begin, end = on(ev, receipt)
        looks = [(mono, new) for mono, new in _looks(ev, receipt) if begin <= mono <= end]
        if any(b < a for (_, a), (_, b) in pairwise(looks)):
            return t("the counter of {fault} ran backwards", fault=receipt["fault"])
        if not looks or (receipt.get("params") or {}).get("loss") is not None:  # where all comes through in the end
            continue
        grew = [mono for (_, a), (mono, b) in pairwise(looks) if b > a]
        low, high = blind([looks[0][0], *grew], begin, end)
        rate = configured * (len(receipt["victims"]) or 1)
        if high - low > RATE_S and (high - low) * rate > STILL_CHECKS:
            return t(
                "the counter of {fault} stood still for {seconds:.0f} s, although {rate:g} health checks a second are "
                "taken off it; write health_checks: null where nobody makes any",
                fault=receipt["fault"],
                seconds=high - low,
                rate=rate,
            )
    return ""


def _beyond(looks: Iterable[tuple[float, float]], begin: float, background: float) -> Series:
    """Return a rule's count without the health checks, which come one by one and not by the clock.

    What was seen beyond them stays seen: it is the most that there ever was, so that a second without a check takes
    nothing back.
    """
    after = [(begin, 0.0), *((mono, new) for mono, new in sorted(looks) if mono > begin)]
    beyond = accumulate((max(0.0, new - background * (mono - begin)) for mono, new in after), max)
    return Series([mono for mono, _ in after], list(beyond))


def _counts(values: Json) -> bool:
    return is_number(values.get("new")) and values["new"] >= 0


def _cuts(receipt: Json) -> bool:
    """Whether a rule of the receipt stands in the way of packets: its undo takes one out."""
    undo = receipt.get("undo")
    return isinstance(undo, list) and any(isinstance(step, dict) and step.get("do") == "unrule" for step in undo)


# ---- engines without a ledger -------------------------------------------------------------------------


def _engine_counters(ev: Evidence) -> Series | None:
    """Return the requests that the primaries took, by vLLM's own counters; None where one of them does not tell.

    Taken = ended, running or waiting. An engine that starts anew counts from 0 again.
    """
    gate = ev.last("gate")
    listed = (gate.data.get("replicas") or ()) if gate else ()
    primaries = {str(r["name"]) for r in listed if r.get("role", "primary") == "primary"}
    grown: list[tuple[float, float]] = []
    for name in sorted(primaries):
        looks = [s for s in ev.samples if s["probe"] == "vllm" and s.get("subject") == name and s["ok"]]
        if not looks:
            return None
        steps = list(_taken(looks))
        if len(steps) < len(looks) - 1:
            return None
        grown += steps
    grown.sort()
    totals = list(accumulate(step for _, step in grown))
    return Series([mono for mono, _ in grown], totals) if grown else None


def _taken(looks: Iterable[Json]) -> Iterable[tuple[float, float]]:
    """Yield when one engine was looked at and how many requests it had taken since the look before."""
    before: tuple[float, float] | None = None
    for look in sorted(looks, key=lambda s: float(s["mono"])):
        values = [look["values"].get(name) for name in ("requests", "running", "waiting")]
        if not all(is_number(value) for value in values):
            return
        ended, taken = float(values[0]), float(sum(values))
        if before is not None:
            yield float(look["mono"]), max(0.0, taken - before[1]) if ended >= before[0] else taken
        before = ended, taken
