"""How much of a month's error budget the drill burnt, at the load it ran with. Plain numbers, and a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from drills.lang import t
from drills.report import words
from drills.report.facts import Facts

WINDOW_DAYS = 30
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Budget:
    """One promise: how many broke it that were caught by the fault or begun after it, and how many may in 30 days."""

    promise: str  # answers | first tokens
    share: float  # of arrivals that may break it
    bad: int
    n: int
    rate_per_s: float
    allowed: float

    @property
    def burnt(self) -> float | None:
        """Return the share of the 30 days' budget that this run used; None where nothing is allowed."""
        return self.bad / self.allowed if self.allowed else None


def budgets(facts: Facts) -> list[Budget]:
    """Return the budget of failed answers and that of late first tokens; nothing without an injection."""
    begun, caught, hit = facts.evidence.watched, facts.cohorts["caught"], facts.hit
    if hit is None or begun.is_empty():
        return []
    sla, n = facts.evidence.sla, begun.height + caught.height
    rate = begun.height / max(facts.evidence.ended - hit, 1.0)
    failed = n - sum(int(frame["good"].sum()) for frame in (begun, caught))
    late = sum(int(frame["violation"].sum()) for frame in (begun, caught))

    def one(promise: str, share: float, bad: int) -> Budget:
        return Budget(promise, share, bad, n, rate, share * rate * WINDOW_DAYS * _DAY_S)

    return [one("answers", sla.errors, failed), one("first tokens", round(1.0 - sla.ttft.quantile, 9), late)]


def lines(facts: Facts) -> list[str]:
    """Return what was burnt, a sentence for each promise."""
    found = budgets(facts)
    if not found:
        return [t("Error budget: no data: no request began after an injection.")]
    return [_line(facts, budget) for budget in found]


def _line(facts: Facts, budget: Budget) -> str:
    if budget.promise == "answers":
        broke = t(
            "Error budget of answers: {n:,} of {total:,} arrivals open at the injection or begun after it were not "
            "answered",
            n=budget.bad,
            total=budget.n,
        )
    else:
        broke = t(
            "Error budget of first tokens: {n:,} of {total:,} arrivals open at the injection or begun after it had no "
            "first token within {bound}",
            n=budget.bad,
            total=budget.n,
            bound=words.seconds(facts.sla_ttft_s),
        )
    if budget.burnt is None:
        return t("{broke}; the SLA allows none, so there is no budget to burn.", broke=broke)
    return t(
        "{broke}; the SLA allows {share}, at this load {allowed:,.0f} in {days} days: {percent} of it is burnt.",
        broke=broke,
        share=words.share(budget.share),
        allowed=budget.allowed,
        days=WINDOW_DAYS,
        percent=percent(budget.burnt),
    )


def percent(share: float) -> str:
    """Return a share that may be very small as a percentage."""
    return t("nothing") if share == 0 else f"{100 * share:.3g} %"
