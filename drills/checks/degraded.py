"""degraded: users got a smaller model's or a cached answer, in time, instead of waiting."""

from __future__ import annotations

from typing import Literal

import polars as pl

from drills import stats
from drills.checks.base import NO_INJECTION, Check, allowed
from drills.checks.measures import seconds
from drills.checks.watching import on
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Json, Outcome, Verdict
from drills.params import Duration, DurationOrSla, Params, Share

#: Fewer requests than these show nothing about a share.
NEEDED_MIN = 5


class DegradedParams(Params):
    """of: whom; min_share: of them; ttft: how fast an answer must be; within: until the first one."""

    of: Literal["all", "hit"] = "all"
    min_share: Share = 0.9
    ttft: DurationOrSla = "sla"
    within: Duration = 5.0


class Degraded(Check[DegradedParams]):
    """Of all requests begun in the fault, or of those that no primary answered in time."""

    name = "degraded"
    Params = DegradedParams

    @classmethod
    def judge(cls, ev: Evidence, params: DegradedParams) -> CheckResult:
        """Count the degraded answers that came in time."""
        if ev.t_inject is None:
            return cls.unclear(t(NO_INJECTION))
        if not _declared(ev):
            undeclared = t("the target names neither fallback models nor a cache (degradation)")
            return cls.result(Verdict.NOT_JUDGED, undeclared)
        bound = ev.sla.ttft.value_s if params.ttft == "sla" else float(params.ttft)
        frame = needed(ev, params.of, bound).sort("intended", "arrival")
        answered = frame.filter(pl.col("outcome") == Outcome.DEGRADED)
        served = answered.filter(pl.col("ttft") <= bound)
        n, opened = frame.height, None
        if n and served.height:
            opened = seconds(served["intended"][0] - frame["intended"][0])
        low, high = stats.share_interval(served.height, n) if n else (None, None)
        row = {
            "value": round(served.height / n, 6) if n else None,
            "bound": round(params.min_share, 6),
            "unit": "ratio",
            "n": n,
            "interval": (round(low, 6), round(high, 6)) if low is not None and high is not None else None,
            "events": (ev.hits[0].n,),
            "detail": {"opened_s": opened, "degraded_late": answered.height - served.height, **told(frame)},
        }
        return cls._verdict(params, bound, n, served.height, answered.height - served.height, opened, row)

    @classmethod
    def _verdict(
        cls, params: DegradedParams, bound: float, n: int, served: int, late: int, opened: float | None, row: Json
    ) -> CheckResult:
        whom = t("arrivals") if params.of == "all" else t("arrivals that no primary answered in time")
        said = t(
            "{n} of {total} {whom} got a degraded answer within {seconds:g} s",
            n=served,
            total=n,
            whom=whom,
            seconds=bound,
        )
        said = t("{found}, {n} a later one", found=said, n=late) if late else said
        said = t("{found}; {percent:.3g} % are needed", found=said, percent=100 * params.min_share)
        verdict = stats.judge_counted(n - served, n, 1.0 - params.min_share)
        if verdict is Verdict.FAIL:
            return cls.result(verdict, said, **row)
        if n < NEEDED_MIN:
            return cls.unclear(t("{n} {whom}: too few to see a share", n=n, whom=whom), **row)
        if verdict is Verdict.PASS and opened is not None and opened > params.within:
            slow = t(
                "the first degraded answer was for an arrival {seconds:.1f} s after the first that needed one",
                seconds=opened,
            )
            return cls.result(Verdict.FAIL, allowed(slow, params.within), **row)
        return cls.result(verdict, said, **row)

    @classmethod
    def plan_errors(cls, params: DegradedParams, plan: Json) -> list[str]:
        """Refuse what ends before it can be seen."""
        fault_s = plan["phases"]["fault_s"]
        if params.within <= fault_s:
            return []
        return [f"within: {params.within:g} s is longer than the fault, {fault_s:g} s"]


def needed(ev: Evidence, of: str, bound_s: float) -> pl.DataFrame:
    """Return the requests that the degradation path is asked about.

    All that had the fault before them for as long as the bound (seconds): who comes shortly before it goes off is
    answered in time by whom he asked. Or those begun in its phase without a full answer within the bound; what the
    victim had begun to answer when the link was cut is a stream, and no other model can go on with it.
    """
    frame = ev.cohort("fault")
    if of == "all":
        ends = [on(ev, receipt)[1] for receipt in ev.receipts] if ev.held else []
        return frame.filter(pl.col("intended") < min(ends) - bound_s) if ends else frame
    in_time = (pl.col("outcome") == Outcome.OK) & (pl.col("ttft") <= bound_s)
    cut = pl.col("arrival").is_in(list(ev.in_flight_on_victims)) & (pl.col("outcome") != Outcome.DEGRADED)
    return frame.filter(~in_time.fill_null(value=False) & ~(cut & pl.col("first_token").is_not_null()))


def _declared(ev: Evidence) -> bool:
    """Whether the target says how a degraded answer is told; plans that do not say are asked nothing."""
    declared = ev.plan["target"].get("degradation")
    return not isinstance(declared, dict) or bool(declared.get("fallback_models") or declared.get("cached"))


def told(frame: pl.DataFrame) -> Json:
    """Return what users got: counts by source and class, and quantiles (seconds) of the degraded answers."""
    answers = frame.filter(pl.col("outcome") == Outcome.DEGRADED)
    cached = answers.filter(pl.col("cached").fill_null(value=False)).height
    times = answers["ttft"].sort().to_list()
    quantiles = {f"degraded_ttft_p{round(100 * q)}_s": stats.nearest_rank(times, q) for q in (0.5, 0.99)}
    counts = frame.group_by("outcome").len().sort("outcome").rows()
    return {
        "fallback": answers.height - cached,
        "cached": cached,
        **{name: seconds(value) if value is not None else None for name, value in quantiles.items()},
        "outcomes": {str(outcome): count for outcome, count in counts},
    }
