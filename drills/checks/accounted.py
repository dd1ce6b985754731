"""accounted: every arrival that was drawn has exactly one record, and none of them hung."""

from __future__ import annotations

from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from drills.checks.base import Check
from drills.evidence import Evidence
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
            return cls.unclear("the generator never said how many arrivals it drew")
        drawn, hanging = int(stopped.data["drawn"]), ev.requests.filter(pl.col("outcome") == Outcome.HUNG)
        hung, may, elsewhere = hanging.height, params.max_hung, 0
        if may == "in_flight_on_victim":
            if not ev.has_ledger:
                return cls.unclear("no ledger, so nobody knows what was in flight on the victim", value=hung, n=drawn)
            may = len(ev.in_flight_on_victims)
            elsewhere = hanging.filter(~pl.col("arrival").is_in(list(ev.in_flight_on_victims))).height
        row = {"value": hung, "bound": may, "unit": "count", "n": drawn, "events": (stopped.n,)}
        if drawn == 0:
            return cls.unclear("no arrival was drawn", **row)
        if gap := mismatch(ev):
            return cls.result(Verdict.FAIL, gap, **row)
        if elsewhere:
            return cls.result(Verdict.FAIL, f"{elsewhere} of {hung} that hung were not in flight on the victim", **row)
        if hung > may:
            return cls.result(Verdict.FAIL, f"{hung} requests hung; {may} may", **row)
        return cls.result(Verdict.PASS, f"{drawn} arrivals, {drawn} records, {hung} hung", **row)


def mismatch(ev: Evidence) -> str:
    """Say where arrivals, records and outcomes do not agree; empty when they do."""
    stopped = ev.last("load.stopped")
    if stopped is None:
        return "the generator never said how many arrivals it drew"
    said, records = stopped.data, ev.requests.height
    counted = dict(ev.requests.group_by("outcome").len().iter_rows())
    outcomes = {name: count for name, count in (said.get("outcomes") or {}).items() if count}
    if said.get("drawn") is None or said.get("records") is None:
        return "the generator never said how many arrivals it drew and wrote down"
    if said["drawn"] != records:
        return f"{said.get('drawn')} arrivals were drawn, {records} have a record"
    if ev.requests["arrival"].n_unique() != records:
        return f"{records} records are of {ev.requests['arrival'].n_unique()} arrivals"
    if said.get("records") != records:
        return f"the generator wrote {said.get('records')} records, {records} are here"
    if unknown := set(counted) - {str(o) for o in Outcome}:
        return f"records with no valid outcome: {', '.join(sorted(map(str, unknown)))}"
    if counted == outcomes:
        return ""
    return f"outcomes: the generator counted {_listed(outcomes)}; the records say {_listed(counted)}"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
