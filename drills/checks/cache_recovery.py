"""cache_recovery: after the victim is back, its prefix cache serves as before, and so do later turns of a chat."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import polars as pl
from pydantic import Field

from drills.checks import base, engines, measures
from drills.checks.base import NO_INJECTION, Check, by_deadline, of_replica
from drills.checks.measures import seconds
from drills.evidence import Evidence, Span
from drills.lang import t
from drills.model import CheckResult, Json, Phase, Verdict
from drills.params import Duration, Params, Share

WINDOW_S = 10.0
STEP_S = 1.0
#: Fewer later turns in a window than this have no median worth a comparison.
WINDOW_MIN_N = 10
_COUNTERS = ("prefix_hits", "prefix_queries")


class CacheRecoveryParams(Params):
    """within: from the victim's return; part: of the baseline that is enough; baseline_min: hit rate before."""

    within: Duration
    part: Share = Field(default=0.9, gt=0)
    baseline_min: Share = 0.5


class CacheRecovery(Check[CacheRecoveryParams]):
    """The slowest victim counts."""

    name = "cache_recovery"
    Params = CacheRecoveryParams

    @classmethod
    def window_s(cls, params: CacheRecoveryParams) -> float:
        """Return `within` and the window that proves it."""
        return params.within + WINDOW_S

    @classmethod
    def judge(cls, ev: Evidence, params: CacheRecoveryParams) -> CheckResult:
        """Find for each victim the first window after its return that is as good as the baseline."""
        hit, span = ev.t_inject, ev.phase(Phase.BASELINE)
        if hit is None or span is None or not ev.victims:
            return cls.unclear(t(NO_INJECTION))
        baseline = Span(span.begin, min(span.end, hit), span.event)
        rows = [_one(ev, victim, params, baseline) for victim in ev.victims]
        worst = min(rows, key=lambda row: _ORDER.index(row.verdict))
        known = [float(row.value) for row in rows if isinstance(row.value, float)]
        return cls.result(
            worst.verdict,
            worst.reason,
            value=max(known) if len(known) == len(rows) else None,
            bound=params.within,
            unit="s",
            n=sum(row.n or 0 for row in rows),
            events=tuple(sorted({number for row in rows for number in row.events})),
            detail={name: row.detail for name, row in zip(ev.victims, rows, strict=True)}
            | {"metrics": engines.found_as(ev, "prefix_hits", "prefix_queries")},
        )


_ORDER = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)


@dataclass(frozen=True)
class _Victim:
    """What is compared: the engine's counters, and the times to first token of its later turns, by intended start."""

    hits: engines.Counter
    queries: engines.Counter
    intended: Sequence[float]
    ttft: Sequence[float]

    def hit_rate(self, begin: float, end: float) -> float | None:
        hits, queries = self.hits.rise(begin, end), self.queries.rise(begin, end)
        return hits / queries if hits is not None and queries else None

    def ttft_s(self, begin: float, end: float) -> float | None:
        """Return the median of the later turns begun in that time; None when they are too few."""
        inside = self.ttft[bisect_left(self.intended, begin) : bisect_left(self.intended, end)]
        return median(inside) if len(inside) >= WINDOW_MIN_N else None


def _one(ev: Evidence, name: str, params: CacheRecoveryParams, baseline: Span) -> CheckResult:
    turns = _later_turns(ev, name)
    hits, queries = engines.counter(ev, name, "prefix_hits"), engines.counter(ev, name, "prefix_queries")
    victim = _Victim(hits, queries, turns["intended"].to_list(), turns["ttft"].to_list())
    before = victim.hit_rate(baseline.begin, baseline.end)
    ttft = victim.ttft_s(baseline.begin, baseline.end)
    detail: Json = {
        "baseline_hit_rate": None if before is None else round(before, 6),
        "baseline_ttft_s": None if ttft is None else seconds(ttft),
        "turns": turns.height,
    }
    if before is None or before < params.baseline_min:
        return _row(name, *_no_baseline(ev, name, victim, baseline, params), detail)
    if ttft is None:
        few = t("too few second and later turns in the baseline to compare with")
        return _row(name, Verdict.INCONCLUSIVE, few, detail)
    # A median of few requests swings; the worst 10 s of the baseline itself are no sign of a cold cache.
    medians = [victim.ttft_s(begin, begin + WINDOW_S) for begin in _steps(baseline.begin, baseline.end)]
    allowed = max([ttft / params.part, *(m for m in medians if m is not None)])
    # Requests dealt in turn can, by chance, come back to one replica and not to another for as long as nobody is away.
    fleet = _fleet_rate(ev, baseline.begin, baseline.end)
    needed = params.part * min(before, before if fleet is None else fleet)
    detail |= {"hit_rate_needed": round(needed, 6), "ttft_allowed_s": seconds(allowed)}
    back, events = _back(ev, name)
    if back is None:
        verdict = by_deadline(None, params.within, ev.ended - baseline.end)
        return _row(name, verdict, t("it never came back"), detail, events)
    return _after(ev, name, victim, params, (back, needed, allowed), detail, events)


def _row(
    name: str, verdict: Verdict, reason: str, detail: Json, events: tuple[int, ...] = (), value: float | None = None
) -> CheckResult:
    return CheckResult(
        "cache_recovery",
        verdict,
        value=value,
        n=int(detail["turns"]),
        reason=of_replica(name, reason),
        events=events,
        detail=detail,
    )


def _no_baseline(
    ev: Evidence, name: str, victim: _Victim, baseline: Span, params: CacheRecoveryParams
) -> tuple[Verdict, str]:
    """Say why there is nothing to come back to."""
    rate = victim.hit_rate(baseline.begin, baseline.end)
    least = 100 * params.baseline_min
    if rate is not None:
        return Verdict.FAIL, t(
            "its prefix cache served {percent:.3g} % of the baseline's prompt tokens; at least {least:.3g} % are "
            "needed, so there is nothing to come back to",
            percent=100 * rate,
            least=least,
        )
    asked = victim.queries.rise(baseline.begin, baseline.end)
    prompts = engines.counter(ev, name, "prompt_tokens").rise(baseline.begin, baseline.end)
    if asked == 0 and prompts:
        return Verdict.FAIL, t(
            "not one of the baseline's {n:.0f} prompt tokens was looked up in a prefix cache: it is off; at least "
            "{least:.3g} % are needed, so there is nothing to come back to",
            n=prompts,
            least=least,
        )
    return Verdict.INCONCLUSIVE, t("its prefix cache's counters were not read in the baseline, or no prompt came to it")


def _after(
    ev: Evidence,
    name: str,
    victim: _Victim,
    params: CacheRecoveryParams,
    bounds: tuple[float, float, float],
    detail: Json,
    events: tuple[int, ...],
) -> CheckResult:
    """Look for the first window from `back` on with the hit rate that is needed and the TTFT that is allowed."""
    back, needed, allowed = bounds
    last: tuple[float, float] | None = None
    others = _later_turns(ev, *(name for name in engines.primaries(ev) if name not in ev.victims))
    peers = replace(victim, intended=others["intended"].to_list(), ttft=others["ttft"].to_list())
    for begin in _steps(back, ev.ended):
        rate, ttft = victim.hit_rate(begin, begin + WINDOW_S), victim.ttft_s(begin, begin + WINDOW_S)
        if rate is None or ttft is None:
            continue
        last = rate, ttft
        # What slows those down that kept their caches has another cause.
        beside = (peers.ttft_s(begin, begin + WINDOW_S) or 0.0) / params.part if ev.has_ledger else 0.0
        if rate >= needed and ttft <= max(allowed, beside):
            value = seconds(begin - back)
            detail |= _told(ev, name, last, back, begin + WINDOW_S)
            verdict = Verdict.PASS if value <= params.within else Verdict.FAIL
            figures = _figures(last, needed, allowed)
            reason = t("{figures} {seconds:.1f} s after it was back", figures=figures, seconds=value)
            reason = base.allowed(reason, params.within) if verdict is Verdict.FAIL else reason
            return _row(name, verdict, reason, detail, events, value)
    if last is None:
        few = t(
            "after it was back there are no {seconds:g} s with its counters and {n} later turns",
            seconds=WINDOW_S,
            n=WINDOW_MIN_N,
        )
        return _row(name, Verdict.INCONCLUSIVE, few, detail, events)
    detail |= _told(ev, name, last, back, ev.ended)
    observed_s = ev.ended - back - WINDOW_S
    figures = _figures(last, needed, allowed)
    reason = t("{figures} at last, never both in the {seconds:.0f} s watched", figures=figures, seconds=observed_s)
    verdict = by_deadline(None, params.within, observed_s)
    return _row(name, verdict, base.allowed(reason, params.within), detail, events)


def _told(ev: Evidence, name: str, last: tuple[float, float], back: float, end: float) -> Json:
    rate, ttft = last
    again = _re_prefilled(ev, name, back, end)
    return {"hit_rate": round(rate, 6), "ttft_s": seconds(ttft), "re_prefilled_tokens": again}


def _figures(found: tuple[float, float], needed: float, allowed: float) -> str:
    rate, ttft = found
    return t(
        "hit rate {percent:.3g} % ({needed:.3g} % needed), first token of later turns after "
        "{ttft:.0f} ms ({allowed:.0f} ms allowed)",
        percent=100 * rate,
        needed=100 * needed,
        ttft=1000 * ttft,
        allowed=1000 * allowed,
    )


def _back(ev: Evidence, victim: str) -> tuple[float | None, tuple[int, ...]]:
    """Return when the victim was back: its new incarnation served, or without one the fault was off."""
    restart = measures.restart(ev, victim)
    if restart is not None:
        return restart.served if restart.complete else None, restart.events()
    off = [e.n for e in ev.of("proof.off") if e.data.get("held") and e.data.get("ok")]
    return (ev.t_off, tuple(off)) if ev.held else (None, ())


def _later_turns(ev: Evidence, *replicas: str) -> pl.DataFrame:
    """Return second and later turns that these replicas answered, by the ledger; without one those of all."""
    later = ev.measured.lazy().filter((pl.col("turn") > 1) & (pl.col("outcome") == "ok"))
    turns = later.select("arrival", "intended", "ttft").collect().sort("intended")
    if not ev.has_ledger:
        return turns
    served = ev.ledger.filter(pl.col("replica").is_in(replicas) & (pl.col("close") == "complete"))
    return turns.join(served, on="arrival", how="semi", maintain_order="left")


def _steps(begin: float, end: float) -> Iterator[float]:
    """Yield the begins of all whole windows."""
    step = 0
    while begin + step * STEP_S + WINDOW_S <= end:
        yield begin + step * STEP_S
        step += 1


def _fleet_rate(ev: Evidence, begin: float, end: float) -> float | None:
    """Return the hit rate of all primaries together."""
    hits, queries = (engines.rise(ev, engines.primaries(ev), name, begin, end) for name in _COUNTERS)
    return hits / queries if hits is not None and queries else None


def _re_prefilled(ev: Evidence, victim: str, back: float, end: float) -> int | None:
    """Return how many prompt tokens the victim computed since its return, beyond the baseline's share of them."""
    span, hit = ev.phase(Phase.BASELINE), ev.t_inject
    if span is None or hit is None:
        return None
    before = [engines.rise(ev, [victim], name, span.begin, min(span.end, hit)) for name in _COUNTERS]
    after = [engines.rise(ev, [victim], name, back, end) for name in _COUNTERS]
    if before[0] is None or not before[1] or after[0] is None or after[1] is None:
        return None
    return max(0, round(after[1] * before[0] / before[1] - after[0]))
