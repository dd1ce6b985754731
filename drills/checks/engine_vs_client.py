"""engine_vs_client: the engine's own latency beside what the client saw; the difference was lost in front of it."""

from __future__ import annotations

from statistics import fmean
from typing import Literal

import polars as pl

from drills.checks import engines
from drills.checks.base import NO_INJECTION, Check
from drills.checks.measures import seconds
from drills.checks.watching import PROBE_GAP_S, away, blind
from drills.evidence import Evidence, Span
from drills.lang import t
from drills.model import CheckResult, Json, Phase, Verdict
from drills.params import Duration, Params
from drills.strictjson import is_number

#: A smaller part of the answers that the ledger knows says too little: the rest went with a counter that was reset.
COUNTED_MIN = 0.9
#: What is taken out as somebody else's must not be most of it.
OTHERS_MAX = 0.5
#: Means of fewer requests swing too much.
MIN_N = 30


class EngineVsClientParams(Params):
    """metric and cohort say what; max is the most that the client's mean may be above the engine's."""

    metric: Literal["ttft", "e2e", "tpot"] = "ttft"
    cohort: Literal["baseline", "fault"] = "fault"
    max: Duration


class EngineVsClient(Check[EngineVsClientParams]):
    """Means: an engine's histogram knows its sum exactly, while a quantile of it lies somewhere in a bucket."""

    name = "engine_vs_client"
    Params = EngineVsClientParams

    @classmethod
    def judge(cls, ev: Evidence, params: EngineVsClientParams) -> CheckResult:
        """Compare the means of the cohort, and say beside them how both were in the baseline."""
        span = _span(ev, params.cohort)
        if span is None:
            return cls.unclear(t(NO_INJECTION))
        client = _client(ev, params)
        row = {"bound": params.max, "unit": "s", "n": len(client), "events": (span.event,)}
        detail: Json = {"metrics": engines.found_as(ev, f"{params.metric}_sum", f"{params.metric}_count")}
        if len(client) < MIN_N:
            few = t(
                "{n} full answers of the model in the {cohort} cohort; {needed} are needed",
                n=len(client),
                cohort=params.cohort,
                needed=MIN_N,
            )
            return cls.unclear(few, detail=detail, **row)
        found = _engine(ev, params.metric, span)
        if isinstance(found, str):
            return cls.unclear(found, detail=detail, **row)
        seen, own = fmean(client), found["mean_s"]
        detail |= {"client_mean_s": seconds(seen), "engine": found} | _before(ev, params)
        lost = seconds(seen - own)
        told = _told(params.metric, 1000 * seen, 1000 * own, 1000 * lost)
        if lost > params.max:
            told = t("{found}; {ms:.0f} ms allowed", found=told, ms=1000 * params.max)
            return cls.result(Verdict.FAIL, told, value=lost, detail=detail, **row)
        return cls.result(Verdict.PASS, told, value=lost, detail=detail, **row)


def _told(metric: str, client_ms: float, engine_ms: float, lost_ms: float) -> str:
    means = t(
        "{metric} in the mean {client:.0f} ms at the client and {engine:.0f} ms at the engine",
        metric=metric,
        client=client_ms,
        engine=engine_ms,
    )
    if lost_ms <= 0:
        return t("{means}: nothing was lost in front of it", means=means)
    return t("{means}: {ms:.0f} ms was lost in front of it", means=means, ms=lost_ms)


def _span(ev: Evidence, cohort: str) -> Span | None:
    """Return the time in which the cohort's requests begin."""
    found, hit = ev.phase(Phase.BASELINE if cohort == "baseline" else Phase.FAULT), ev.t_inject
    if found is None or hit is None:
        return None
    if cohort == "baseline":
        return Span(found.begin, min(found.end, hit - ev.sla.e2e.value_s), found.event)
    return Span(hit, found.end, found.event)


def _client(ev: Evidence, params: EngineVsClientParams) -> list[float]:
    """Return the latencies of full answers of the model itself; a fallback's are those of another engine."""
    whole = ev.cohort(params.cohort).filter((pl.col("outcome") == "ok") & pl.col(params.metric).is_finite())
    return [float(value) for value in whole[params.metric].to_list()]


def _engine(ev: Evidence, metric: str, span: Span) -> Json | str:
    """Return the engines' own mean over the load's requests, or why it cannot be told."""
    total, count, answered, reached, names = 0.0, 0.0, 0, 0, engines.primaries(ev)
    for name in names:
        if unread := next(filter(None, (engines.unread(ev, [name], f"{metric}_{part}", span.begin, span.end)
                                        for part in ("sum", "count"))), ""):  # fmt: skip
            return t("{metric}: {reason}", metric=metric, reason=unread)
        added = engines.inside(engines.counter(ev, name, f"{metric}_sum"), span.begin, span.end)
        counted = engines.inside(engines.counter(ev, name, f"{metric}_count"), span.begin, span.end)
        if added is None or counted is None:
            continue
        total, count = total + added[2], count + counted[2]
        mine = _attempts(ev, name, metric, counted[0], counted[1])
        answered, reached = answered + mine[0], reached + mine[1]
    if not count:
        return t("no engine told its {metric} in that time", metric=metric)
    if metric == "tpot" or not ev.has_ledger:  # tpot is counted per further token: completions of one have none
        return {"mean_s": seconds(total / count), "count": round(count), "not_ours": None}
    if reached < MIN_N:
        return t("{n} attempts reached the engines in that time; {needed} are needed", n=reached, needed=MIN_N)
    if count < COUNTED_MIN * answered:
        return t(
            "the engines counted {n:.0f} answers and the ledger {answered}: counters were reset in between",
            n=count,
            answered=answered,
        )
    # Completions of one token, of our probe and of health checks, are in the engine's histogram as well.
    others, probe_s = max(0.0, count - reached), _probe_s(ev, span, names)
    if others > OTHERS_MAX * count:
        return t(
            "{n:.0f} of the {total:.0f} requests that the engines counted were not the run's, or were given up",
            n=others,
            total=count,
        )
    if isinstance(probe_s, str):
        return probe_s
    mean = (total - others * probe_s) / (count - others)
    if mean <= 0:
        return t(
            "the engines' sum and count do not go together: {seconds:.3f} s for {n:.0f} requests",
            seconds=total,
            n=count,
        )
    return {"mean_s": seconds(mean), "count": round(count), "not_ours": round(others), "probe_s": seconds(probe_s)}


def _attempts(ev: Evidence, replica: str, metric: str, begin: float, end: float) -> tuple[int, int]:
    """Return how many of the run's attempts the replica answered in that time, and how many it took; by the ledger.

    What somebody gave up while a delay in front of the engine held it has no first byte, and yet the engine made its
    first token. An answer that was given up half-way has no e2e at the engine.
    """
    if not ev.has_ledger:
        return 0, 0
    accepted = pl.col("connected").is_not_null() & (pl.col("status").is_null() | (pl.col("status") == 200))
    mine = ev.ledger.filter(pl.col("arrival").is_not_null() & (pl.col("replica") == replica) & accepted)
    if metric == "e2e":
        whole = mine.filter(
            (pl.col("close") == "complete") & pl.col("last_byte").is_between(begin, end, closed="right")
        )
        return whole.height, whole.height
    answered = mine.filter(pl.col("first_byte").is_between(begin, end, closed="right"))
    return answered.height, mine.filter(pl.col("start").is_between(begin, end, closed="right")).height


def _probe_s(ev: Evidence, span: Span, names: list[str]) -> float | str:
    """Return how long a completion of one token took in the mean, seconds, or why that is not known."""
    took: list[float] = []
    for name in names:
        mine = [s for s in ev.samples if s["probe"] == "completion" and s.get("subject") == name and s["ok"]]
        told = [(float(s["mono"]), s["values"].get("ttft_ms")) for s in mine]
        good = [(mono, float(ms)) for mono, ms in told if is_number(ms) and ms > 0]
        low, high = blind((mono for mono, _ in good), span.begin, span.end, away(ev, name))
        if high - low > PROBE_GAP_S:
            return t(
                "{replica}: no completion of one token was measured for {seconds:.0f} s, {allowed:g} s may be",
                replica=name,
                seconds=high - low,
                allowed=PROBE_GAP_S,
            )
        took += [ms / 1000 for mono, ms in good if span.begin <= mono <= span.end]
    return fmean(took) if took else t("no completion of one token was measured")


def _before(ev: Evidence, params: EngineVsClientParams) -> Json:
    """Return the same means of the baseline, to see where what was lost in the fault was lost."""
    if params.cohort == "baseline":
        return {}
    span = _span(ev, "baseline")
    client = _client(ev, params.model_copy(update={"cohort": "baseline"}))
    found = _engine(ev, params.metric, span) if span else "there is no baseline"
    if isinstance(found, str) or not client:
        return {"baseline": None}
    return {"baseline": {"client_mean_s": seconds(fmean(client)), "engine_mean_s": found["mean_s"]}}
