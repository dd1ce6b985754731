"""goodput: the share of arrivals that got all that was promised: whole, full, and in the SLA from end to end."""

from __future__ import annotations

from typing import Literal

import polars as pl

from drills import stats
from drills.checks.base import Check
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Json, Outcome, Verdict
from drills.params import Params, Share


class GoodputParams(Params):
    """cohort: whose arrivals; min: the least share, or `sla`."""

    cohort: Literal["baseline", "fault"] = "fault"
    min: Literal["sla"] | Share = "sla"


class Goodput(Check[GoodputParams]):
    """Complete, of the right length, TTFT, longest gap and E2E in the SLA ÷ all arrivals. Degraded is not enough."""

    name = "goodput"
    Params = GoodputParams

    @classmethod
    def judge(cls, ev: Evidence, params: GoodputParams) -> CheckResult:
        """Test that the true share of arrivals that fell short of something is at most 1 − min."""
        frame, sla = ev.cohort(params.cohort), ev.sla
        n, full = frame.height, frame.filter(pl.col("outcome") == Outcome.OK)
        if n == 0:
            return cls.unclear(t("no arrival in the {cohort} cohort", cohort=params.cohort), n=0)
        whole = full.filter(~pl.col("dup").fill_null(value=False))
        bounds = {"ttft": sla.ttft.value_s, "max_gap": sla.max_gap.value_s, "e2e": sla.e2e.value_s}
        good = whole.filter(pl.all_horizontal(*(pl.col(name) <= bound for name, bound in bounds.items()))).height
        allowed = tails(ev) if params.min == "sla" else 1.0 - params.min
        verdict = stats.judge_share(n - good, n, allowed)
        low, high = stats.share_interval(good, n)
        late = {f"late_{name}": whole.filter(pl.col(name) > bound).height for name, bound in bounds.items()}
        reason = t(
            "{n} of {total} arrivals fell short of something; {percent:.3g} % may",
            n=n - good,
            total=n,
            percent=100 * allowed,
        )
        if verdict is Verdict.INCONCLUSIVE and (few := stats.shortage(n, allowed)):
            reason = t("{found}; {reason}", found=reason, reason=few)
        return cls.result(
            verdict,
            reason,
            value=round(good / n, 6),
            bound=round(1.0 - allowed, 6),
            unit="ratio",
            n=n,
            interval=(round(low, 6), round(high, 6)),
            detail={
                "not_in_full": n - full.height,
                "degraded": frame.filter(pl.col("outcome") == Outcome.DEGRADED).height,
                "repeated": full.height - whole.height,
                **late,
            },
        )

    @classmethod
    def plan_notes(cls, params: GoodputParams, plan: Json) -> list[str]:
        """Say when fewer arrivals are expected than the bound needs."""
        sla = plan["target"]["sla"]
        promised = sla["errors"] + sum(1.0 - sla[name]["quantile"] for name in ("ttft", "max_gap", "e2e"))
        return cls.too_few(plan, params.cohort, promised if params.min == "sla" else 1.0 - params.min)

    @classmethod
    def plan_errors(cls, params: GoodputParams, plan: Json) -> list[str]:  # noqa: ARG003
        """Refuse a bound that no sample can show."""
        return (
            ["min: 100% can be refuted by a sample but never shown; write for example 95%"] if params.min == 1 else []
        )


def tails(ev: Evidence) -> float:
    """Return the share that may fall short while each promise of the SLA is just kept, one by one."""
    sla = ev.sla
    return min(1.0, sla.errors + sum(1.0 - bound.quantile for bound in (sla.ttft, sla.max_gap, sla.e2e)))
