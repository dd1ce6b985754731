"""availability: the share of arrivals that were answered, in full or degraded, against the SLA's error share."""

from __future__ import annotations

from typing import Literal

from drills import stats
from drills.checks.base import Check
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Json, Verdict
from drills.params import Params, Share


class AvailabilityParams(Params):
    """cohort: whose arrivals; min: the least share answered, or `sla`."""

    cohort: Literal["baseline", "fault"] = "fault"
    min: Literal["sla"] | Share = "sla"


class Availability(Check[AvailabilityParams]):
    """(ok + degraded) ÷ arrivals, by the exact binomial test."""

    name = "availability"
    Params = AvailabilityParams

    @classmethod
    def judge(cls, ev: Evidence, params: AvailabilityParams) -> CheckResult:
        """Test that the true share of unanswered arrivals is at most 1 − min."""
        cohort = ev.cohort(params.cohort)
        n, good = cohort.height, int(cohort["good"].sum())
        if n == 0:
            return cls.unclear(t("no arrival in the {cohort} cohort", cohort=params.cohort), n=0)
        allowed = ev.sla.errors if params.min == "sla" else 1.0 - params.min
        verdict = stats.judge_share(n - good, n, allowed)
        low, high = stats.share_interval(good, n)
        reason = t(
            "{n} of {total} arrivals were not answered; {percent:.3g} % allowed",
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
            detail={"not_answered": n - good, "outcomes": _outcomes(cohort["outcome"].to_list())},
        )

    @classmethod
    def plan_notes(cls, params: AvailabilityParams, plan: Json) -> list[str]:
        """Say when fewer arrivals are expected than the bound needs."""
        allowed = plan["target"]["sla"]["errors"] if params.min == "sla" else 1.0 - params.min
        return cls.too_few(plan, params.cohort, allowed)

    @classmethod
    def plan_errors(cls, params: AvailabilityParams, plan: Json) -> list[str]:  # noqa: ARG003
        """Refuse a bound that no sample can show."""
        return (
            ["min: 100% can be refuted by a sample but never shown; write for example 99%"] if params.min == 1 else []
        )


def _outcomes(outcomes: list[str | None]) -> dict[str, int]:
    named = [outcome or "none" for outcome in outcomes]
    return {outcome: named.count(outcome) for outcome in sorted(set(named))}
