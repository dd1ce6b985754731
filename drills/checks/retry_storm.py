"""retry_storm: retries do not multiply the load, neither while the fault is on nor after it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import polars as pl

from drills import stats
from drills.checks.amplification import HEALTH_CHECKS, PLACES, STEP_S, WINDOW_S, Attempts, Count, attempts_of
from drills.checks.base import NO_INJECTION, Check
from drills.checks.measures import WINDOW_MIN_N
from drills.evidence import Evidence
from drills.lang import mark, t
from drills.model import CheckResult, Json, Outcome, Verdict
from drills.params import Duration, Params, Rate, Share
from drills.strictjson import is_number

#: What a client without a budget of its own may add.
BUDGET = 0.1
#: What may be left once the storm should be over.
SETTLED = 0.05


class RetryStormParams(Params):
    """budget: extra attempts a request while the fault is on; settles_within: after it, until they are 5 %."""

    budget: Share | None = None
    settles_within: Duration = 20.0
    health_checks: Rate | None = HEALTH_CHECKS


@dataclass(frozen=True)
class Seen:
    """The attempts of one stretch at one place, over the baseline's, and what may be."""

    place: str
    count: Count
    ratio: float
    limit: float
    chance: float  # that so many come of the limit by accident

    @property
    def excess(self) -> float:
        """Return how far it is over what is allowed."""
        return self.ratio - self.limit

    def over(self, rare: float) -> bool:
        """Whether it is over by more than chance explains."""
        return self.ratio > self.limit and self.chance < rare


class RetryStorm(Check[RetryStormParams]):
    """The largest of three ratios decides, in every window of 10 s and over the whole of each stretch."""

    name = "retry_storm"
    Params = RetryStormParams

    @classmethod
    def window_s(cls, params: RetryStormParams) -> float:
        """Return `settles_within` and the window that proves it."""
        return params.settles_within + WINDOW_S

    @classmethod
    def judge(cls, ev: Evidence, params: RetryStormParams) -> CheckResult:
        """Compare attempts per request with 1 + budget, and from `settles_within` after the fault with 1.05."""
        hit = ev.t_inject
        if hit is None:
            return cls.unclear(t(NO_INJECTION))
        attempts = attempts_of(ev, params.health_checks)
        if attempts.baseline is None:
            return cls.unclear(t("there is no baseline to compare with"))
        budget = budget_of(ev) if params.budget is None else params.budget
        off = ev.ended if ev.t_off is None else ev.t_off
        due = min(ev.ended, off + params.settles_within)
        during = _seen(attempts, hit, due, ev.ended, 1.0 + budget, whole=off if off > hit else due)
        after = _seen(attempts, off, ev.ended, ev.ended, 1.0 + SETTLED, whole=None)
        late = _seen(attempts, due, ev.ended, ev.ended, 1.0 + SETTLED, whole=ev.ended)
        rare = _rare(len(during) + len(after))
        over = max((s for s in (*during, *late) if s.over(rare)), key=lambda s: s.excess, default=None)
        row = _row(ev, attempts, during, after, budget, _settled_s(after, off, rare))
        if over is not None:
            return cls.result(Verdict.FAIL, _too_many(ev, over), **row | {"value": _r(over.ratio), "bound": over.limit})
        if why := _unknown(ev, attempts, during, after, rare):
            return cls.unclear(why, **row)
        return cls.result(Verdict.PASS, _calm(during, after), **row)


def budget_of(ev: Evidence) -> float:
    """Return the budget of the experiment's client; what is usual for a client that has none, or never retries."""
    found: Any = ev.plan
    for key in ("experiment", "load", "client", "retries"):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not found.get("max"):
        return BUDGET
    budget: Any = found.get("budget")
    return float(budget) if is_number(budget) and 0 <= budget <= 1 else BUDGET


def _seen(
    attempts: Attempts, begin: float, until: float, ended: float, limit: float, *, whole: float | None
) -> list[Seen]:
    """Return what was seen in each window that begins in [begin, until), and in all from `begin` to `whole`."""
    counts = attempts.windows(begin, until, ended)
    if counts and whole is not None:
        counts.append(attempts.count(begin, max(whole, begin + WINDOW_S)))
    found = (_at(attempts, place, count, limit) for count in counts for place in PLACES)
    return [seen for seen in found if seen is not None]


def _at(attempts: Attempts, place: str, count: Count, limit: float) -> Seen | None:
    before = attempts.baseline.ratio(place) if attempts.baseline else None
    counted, ratio = count.of(place), attempts.over_baseline(count, place)
    if counted is None or ratio is None or before is None:
        return None
    expected = before * counted[1]
    mean = expected * (limit - 1.0)
    return Seen(
        place=place,
        count=count,
        ratio=ratio,
        limit=limit,
        chance=stats.chance_of_more(counted[0] - expected, mean),
    )


def _rare(looks: int) -> float:
    """Return how unlikely each of many looks has to be, so that all of them together are as one is elsewhere."""
    apart = math.ceil(looks * STEP_S / WINDOW_S) + 2 * len(PLACES)  # windows overlap; and two wholes
    return (1.0 - stats.CONFIDENCE) / apart


def _settled_s(after: list[Seen], off: float, rare: float) -> float | None:
    """Return from when on after the fault no window is over; None when the last one is, or there is none."""
    bad = [seen.count.begin for seen in after if seen.over(rare)]
    last = max((seen.count.begin for seen in after), default=off)
    if not after or (bad and bad[-1] >= last):
        return None
    return round(bad[-1] + STEP_S - off, 6) if bad else 0.0


def _unknown(ev: Evidence, attempts: Attempts, during: list[Seen], after: list[Seen], rare: float) -> str:
    """Say why a run that did not fail has not passed; empty when it has."""
    if not attempts.source:
        return t("only the client's attempts are known: neither a ledger nor vLLM's request counters saw the engines")
    if why := attempts.unknown or attempts.doubt:
        return why
    if ev.t_off is None:
        return t("the fault was never proven off, so what came after it cannot be judged")
    watched_s = ev.ended - ev.t_off
    if not during or not after:
        return t(
            "there was no whole window of {window:g} s in the {seconds:.1f} s watched after the fault",
            window=WINDOW_S,
            seconds=watched_s,
        )
    if _settled_s(after, ev.t_off, rare) is None:
        return t(
            "retries were over {ratio:g} attempts a request still in the {seconds:.1f} s watched after the fault",
            ratio=1 + SETTLED,
            seconds=watched_s,
        )
    thinnest = min(seen.count.arrivals for seen in (*during, *after))
    if thinnest < WINDOW_MIN_N:
        return t(
            "too few arrivals to see a ratio: {n} in {seconds:g} s, {needed} are needed",
            n=thinnest,
            seconds=WINDOW_S,
            needed=WINDOW_MIN_N,
        )
    return "" if _provoked(ev, attempts, during) else t("nothing to retry: no request was hurt by the fault")


def _provoked(ev: Evidence, attempts: Attempts, during: list[Seen]) -> bool:
    """Whether the fault gave anybody a reason to try again."""
    hurt = pl.col("violation") | (pl.col("outcome") != Outcome.OK.value)
    if not ev.cohort("fault").filter(hurt).is_empty() or any(seen.ratio > 1.0 for seen in during):
        return True
    lost = pl.col("replica").is_in(list(ev.victims)) & (pl.col("end") >= ev.t_inject) & (pl.col("close") != "complete")
    return not ev.ledger.filter(lost & pl.col("arrival").is_not_null()).is_empty() or any(
        rule.counted.between(rule.begin, rule.end) >= 1 for rule in attempts.rules
    )


def _largest(seen: list[Seen], place: str | None = None) -> Seen | None:
    mine = [s for s in seen if place in (None, s.place) and s.count.end - s.count.begin <= WINDOW_S + 1e-6]
    return max(mine, key=lambda s: s.ratio, default=None)


def _last(seen: list[Seen], place: str) -> Seen | None:
    return max((s for s in seen if s.place == place), key=lambda s: s.count.begin, default=None)


def _row(
    ev: Evidence, attempts: Attempts, during: list[Seen], after: list[Seen], budget: float, settled_s: float | None
) -> Json:
    worst = _largest(during)
    detail = {
        "during": {place: _r(s.ratio) if (s := _largest(during, place)) else None for place in PLACES},
        "settled_s": settled_s,
        "at_the_end": {place: _r(s.ratio) if (s := _last(after, place)) else None for place in PLACES},
        "baseline": {place: _r(attempts.baseline.ratio(place)) if attempts.baseline else None for place in PLACES},
        "budget": round(budget, 6),
        "windows": len({(s.count.begin, s.count.end) for s in (*during, *after)}),
        "fewest_arrivals": min((s.count.arrivals for s in (*during, *after)), default=0),
        "swallowed": round(sum(rule.counted.between(rule.begin, rule.end) for rule in attempts.rules)),
        "source": attempts.source or "client only",
    }
    return {
        "value": _r(worst.ratio) if worst else None,
        "bound": round(1.0 + budget, 6),
        "n": detail["windows"],
        "events": (ev.hits[0].n,),
        "detail": detail,
    }


def _r(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


#: What was too much, and who made it, by place.
_TOO_MANY = {
    "client": mark(
        "the client sent {ratio:.2f} attempts a request in the {seconds:.0f} s from {since:.0f} s after the injection "
        "({n} arrivals); {limit:.2f} allowed"
    ),
    "hop": mark(
        "the router started {ratio:.2f} attempts a request in the {seconds:.0f} s from {since:.0f} s after the "
        "injection ({n} arrivals); {limit:.2f} allowed"
    ),
    "engine": mark(
        "the engines were sent {ratio:.2f} attempts a request in the {seconds:.0f} s from {since:.0f} s after the "
        "injection ({n} arrivals); {limit:.2f} allowed"
    ),
}
_AT_MOST = {
    "client": mark("at most {ratio:.2f} attempts a request in 10 s (the client sent), {limit:.2f} allowed"),
    "hop": mark("at most {ratio:.2f} attempts a request in 10 s (the router started), {limit:.2f} allowed"),
    "engine": mark("at most {ratio:.2f} attempts a request in 10 s (the engines were sent), {limit:.2f} allowed"),
}


def _too_many(ev: Evidence, over: Seen) -> str:
    return t(
        _TOO_MANY[over.place],
        ratio=over.ratio,
        seconds=over.count.end - over.count.begin,
        since=over.count.begin - (ev.t_inject or 0.0),
        n=over.count.arrivals,
        limit=over.limit,
    )


def _calm(during: list[Seen], after: list[Seen]) -> str:
    worst, ends = _largest(during), [_last(after, place) for place in PLACES]
    last = max((seen.ratio for seen in ends if seen is not None), default=1.0)
    if worst is None:
        return ""
    told = t(_AT_MOST[worst.place], ratio=worst.ratio, limit=worst.limit)
    if worst.ratio > worst.limit:
        told = t("{found}, and what is over it is within the noise of counting", found=told)
    return t("{found}; {ratio:.2f} at the end, {limit:.2f} allowed", found=told, ratio=last, limit=1 + SETTLED)
