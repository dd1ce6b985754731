"""latency: a quantile of ttft, e2e, max_gap or tpot against the SLA, a bound, or a multiple of the baseline's."""

from __future__ import annotations

import math
from typing import Literal

import polars as pl
from pydantic import Field, model_validator

from drills import stats
from drills.checks.base import Check
from drills.checks.measures import seconds
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult
from drills.params import DurationOrSla, Params, Quantile


class BaselineTimes(Params):
    """baseline_times: how many times the baseline's own quantile."""

    baseline_times: float = Field(gt=0, le=1000, allow_inf_nan=False)


class LatencyParams(Params):
    """metric, quantile and cohort say what; max is the bound; allow_small_n lets a plan with few requests pass."""

    metric: Literal["ttft", "e2e", "max_gap", "tpot"] = "ttft"
    quantile: Quantile = 0.99
    cohort: Literal["baseline", "fault"] = "fault"
    max: BaselineTimes | DurationOrSla = "sla"
    allow_small_n: bool = False

    @model_validator(mode="after")
    def _has_a_bound(self) -> LatencyParams:
        if self.metric == "tpot" and self.max == "sla":
            raise ValueError("the SLA has no bound on tpot; write max as a duration or {baseline_times: 2}")
        return self


class Latency(Check[LatencyParams]):
    """ "quantile ≤ bound" as an exact binomial test on the requests over the bound; failed ones are over any."""

    name = "latency"
    Params = LatencyParams

    @classmethod
    def judge(cls, ev: Evidence, params: LatencyParams) -> CheckResult:
        """Count violations of the bound in the cohort and test their share against 1 − quantile."""
        bound = _bound(ev, params)
        if isinstance(bound, str):
            return cls.unclear(bound)
        values = _ordered(ev, params.cohort, params.metric)
        n = len(values)
        if n == 0:
            nobody = t("no request in the {cohort} cohort", cohort=params.cohort)
            return cls.unclear(nobody, n=0, bound=seconds(bound), unit="s")
        over = sum(1 for value in values if not value <= bound)
        verdict = stats.judge_share(over, n, 1.0 - params.quantile)
        least = stats.claim_minimum(params.quantile)
        value = stats.nearest_rank(values, params.quantile) if n >= least else None
        low, high = stats.quantile_interval(values, params.quantile) if n >= least else (None, None)
        told = t(
            "{n} of {total} requests were over {seconds:.4g} s; {percent:.3g} % allowed",
            n=over,
            total=n,
            seconds=bound,
            percent=100 * (1 - params.quantile),
        )
        if n < least:
            told = t(
                "{found}; no p{quantile:g} is claimed from fewer than {n} requests",
                found=told,
                quantile=100 * params.quantile,
                n=least,
            )
        return cls.result(
            verdict,
            told,
            value=_finite(value) if value is None or math.isfinite(value) else "inf",
            bound=seconds(bound),
            unit="s",
            n=n,
            interval=(_finite(low), _finite(high)),
            detail={"violations": over, "failed": sum(1 for value in values if math.isinf(value))},
        )


def _bound(ev: Evidence, params: LatencyParams) -> float | str:
    """Return the bound in seconds, or the reason why there is none."""
    if isinstance(params.max, BaselineTimes):
        before = _ordered(ev, "baseline", params.metric)
        value = stats.nearest_rank(before, params.quantile)
        if value is None or len(before) < stats.claim_minimum(params.quantile) or not math.isfinite(value):
            return t("the baseline has no such quantile to compare with ({n} requests)", n=len(before))
        return value * params.max.baseline_times
    if params.max == "sla":
        return {"ttft": ev.sla.ttft, "e2e": ev.sla.e2e, "max_gap": ev.sla.max_gap}[params.metric].value_s
    return float(params.max)


def _ordered(ev: Evidence, cohort: str, metric: str) -> list[float]:
    column = ev.cohort(cohort).select(pl.col(metric).drop_nulls().sort())
    return [float(value) for value in column[metric].to_list()]


def _finite(value: float | None) -> float | None:
    return seconds(value) if value is not None and math.isfinite(value) else None
