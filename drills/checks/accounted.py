"""accounted: every arrival that was drawn has exactly one record, and none of them hung."""

from __future__ import annotations

from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from drills.checks.base import Check, several
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Outcome, Verdict
from drills.params import Params


class AccountedParams(Params):
    """max_hung: how many requests may hang; a number, or those that a victim had in flight when it was hit."""

    max_hung: Literal["in_flight_on_victim"] | Annotated[int, Field(ge=0)] = 0


class Accounted(Check[AccountedParams]):
    """Arrivals drawn = records = sum of outcomes."""

    name = "accounted"
    Params = AccountedParams

    @classmethod
    def judge(cls, ev: Evidence, params: AccountedParams) -> CheckResult:
        """Reconcile the generator's count with the records, and count what hung."""
        stopped = ev.last("load.stopped")
        if stopped is None or not isinstance(stopped.data.get("drawn"), int):
            return cls.unclear(t("the generator never said how many arrivals it drew"))
        drawn, hanging = int(stopped.data["drawn"]), ev.requests.filter(pl.col("outcome") == Outcome.HUNG)
        hung, may, elsewhere = hanging.height, params.max_hung, 0
        if may == "in_flight_on_victim":
            if not ev.has_ledger:
                why = t("no ledger, so nobody knows what was in flight on the victim")
                return cls.unclear(why, value=hung, n=drawn)
            may = len(ev.in_flight_on_victims)
            elsewhere = hanging.filter(~pl.col("arrival").is_in(list(ev.in_flight_on_victims))).height
        row = {"value": hung, "bound": may, "unit": "count", "n": drawn, "events": (stopped.n,)}
        if drawn == 0:
            return cls.unclear(t("no arrival was drawn"), **row)
        if gap := mismatch(ev):
            return cls.result(Verdict.FAIL, gap, **row)
        if elsewhere:
            far = t("{n} of {hung} that hung were not in flight on the victim", n=elsewhere, hung=hung)
            return cls.result(Verdict.FAIL, far, **row)
        if hung > may:
            return cls.result(Verdict.FAIL, t("{n} requests hung; {allowed} may", n=hung, allowed=may), **row)
        told = t("{n} arrivals, {n} records, {hung} hung", n=drawn, hung=hung)
        return cls.result(Verdict.PASS, told, **row)


def mismatch(ev: Evidence) -> str:
    """Say where arrivals, records and outcomes do not agree; empty when they do."""
    stopped = ev.last("load.stopped")
    if stopped is None:
        return t("the generator never said how many arrivals it drew")
    said, records = stopped.data, ev.requests.height
    counted = dict(ev.requests.group_by("outcome").len().iter_rows())
    outcomes = {name: count for name, count in (said.get("outcomes") or {}).items() if count}
    if said.get("drawn") is None or said.get("records") is None:
        return t("the generator never said how many arrivals it drew and wrote down")
    if said["drawn"] != records:
        return t("{drawn} arrivals were drawn, {records} have a record", drawn=said["drawn"], records=records)
    if ev.requests["arrival"].n_unique() != records:
        return t(
            "{records} records are of {arrivals} arrivals", records=records, arrivals=ev.requests["arrival"].n_unique()
        )
    if said.get("records") != records:
        return t("the generator wrote {written} records, {here} are here", written=said["records"], here=records)
    if unknown := set(counted) - {str(o) for o in Outcome}:
        return t("records with no valid outcome: {outcomes}", outcomes=several(sorted(map(str, unknown))))
    if counted == outcomes:
        return ""
    return t(
        "outcomes: the generator counted {counted}; the records say {recorded}",
        counted=_listed(outcomes),
        recorded=_listed(counted),
    )


def _listed(counts: dict[str, int]) -> str:
    return several(f"{count} {name}" for name, count in sorted(counts.items())) or t("none")
