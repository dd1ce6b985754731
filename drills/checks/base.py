"""What every check is: a name, parameters, and one pure function from evidence to a result.

A check judges, it never measures. It passes only on evidence: no data, too few samples and broken data are
inconclusive with the reason. To add one, copy a short one (`accounted.py`), and add a line to `CHECKS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

from drills import stats
from drills.evidence import Evidence
from drills.lang import mark, t
from drills.model import CheckResult, Json, Verdict
from drills.params import Duration, Params

P = TypeVar("P", bound=Params)
#: Arrivals by chance: a cohort of 300 may well have a tenth fewer.
LEAN = 0.9


class Within(Params):
    """within: the most it may take."""

    within: Duration


class Check(ABC, Generic[P]):
    """One question to a run; stateless, so the class itself is used."""

    name: ClassVar[str]
    Params: ClassVar[type[Params]]

    @classmethod
    @abstractmethod
    def judge(cls, ev: Evidence, params: P) -> CheckResult:
        """Answer from the evidence."""

    @classmethod
    def window_s(cls, params: P) -> float:  # noqa: ARG003
        """Return how long the run must watch after the fault for this check, in seconds (0: not at all)."""
        return 0.0

    @classmethod
    def plan_errors(cls, params: P, plan: Json) -> list[str]:  # noqa: ARG003
        """Return why this check could never decide in a run of that plan (the content of plan.json)."""
        return []

    @classmethod
    def plan_notes(cls, params: P, plan: Json) -> list[str]:  # noqa: ARG003
        """Return what may keep this check from deciding in a run of that plan."""
        return []

    @classmethod
    def too_few(cls, plan: Json, cohort: str, allowed: float) -> list[str]:
        """Return that fewer arrivals are expected than it takes to show "at most the share `allowed`"."""
        expected = plan["expected_requests"].get(cohort)
        if expected is None or not (few := stats.shortage(int(expected * LEAN), allowed)):
            return []
        return [f"{cls.name}: {expected:.0f} requests expected in the cohort {cohort}: may be {few}"]

    @classmethod
    def result(cls, verdict: Verdict, reason: str = "", **more: Any) -> CheckResult:
        """Return this check's row."""
        return CheckResult(cls.name, verdict, reason=reason, **more)

    @classmethod
    def unclear(cls, reason: str, **more: Any) -> CheckResult:
        """Return an inconclusive row."""
        return cls.result(Verdict.INCONCLUSIVE, reason, **more)


def by_deadline(value_s: float | None, within_s: float, observed_s: float) -> Verdict:
    """Judge something that had to happen: late is a fail, absent is a fail only when watched long enough."""
    if value_s is not None:
        return Verdict.PASS if value_s <= within_s else Verdict.FAIL
    return Verdict.FAIL if observed_s >= within_s else Verdict.INCONCLUSIVE


NO_INJECTION = mark("nothing was injected, so there is nothing to judge")


def several(items: Iterable[str]) -> str:
    """Return items one after the other, as a sentence lists them."""
    return t(", ").join(items)


def allowed(told: str, within_s: float) -> str:
    """Return what was found with the time that was allowed, in seconds."""
    return t("{found}; {seconds:g} s allowed", found=told, seconds=within_s)


def of_replica(name: str, told: str) -> str:
    """Return what was found of one replica."""
    return t("{replica}: {found}", replica=name, found=told)


def named(item: Json) -> tuple[str, Json]:
    """Read `{"check": name, "params": {...}}`, or `{name: {...}}` as people write it."""
    if "check" in item:
        return str(item["check"]), dict(item.get("params") or {})
    name, params = next(iter(item.items()))
    return str(name), dict(params or {})
