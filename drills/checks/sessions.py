"""sessions: chats that were going on when the fault came could go on."""

from __future__ import annotations

import polars as pl

from drills import stats
from drills.checks.base import NO_INJECTION, Check
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Json, Verdict
from drills.params import Params, Share

#: Fewer chats than these show nothing about a share.
SESSIONS_MIN = 5


class SessionsParams(Params):
    """min_share: of the chats that were open at the injection."""

    min_share: Share = 0.99


class Sessions(Check[SessionsParams]):
    """Open: it has a turn before the injection and another one after it. Went on: all those later ones were good."""

    name = "sessions"
    Params = SessionsParams

    @classmethod
    def judge(cls, ev: Evidence, params: SessionsParams) -> CheckResult:
        """Count the open chats of which a later turn was not answered."""
        hit = ev.t_inject
        if hit is None:
            return cls.unclear(t(NO_INJECTION))
        known = pl.col("session").is_not_null()
        begun = ev.requests.filter(known & (pl.col("intended") < hit))["session"].unique()
        caught = pl.col("arrival").is_in(list(ev.in_flight_on_victims))
        later = ev.watched.filter(known & pl.col("session").is_in(begun.implode()) & ~caught)
        chats = later.group_by("session").agg(pl.col("good").all(), pl.len().alias("turns")).sort("session")
        broken = chats.filter(~pl.col("good"))
        n, lost = chats.height, broken.height
        low, high = stats.share_interval(n - lost, n) if n else (0.0, 1.0)
        row = {
            "value": round(1.0 - lost / n, 6) if n else None,
            "bound": round(params.min_share, 6),
            "unit": "ratio",
            "n": n,
            "interval": (round(low, 6), round(high, 6)) if n else None,
            "events": (ev.hits[0].n,),
            "detail": {
                "later_turns": int(chats["turns"].sum()),
                "turns_not_answered": later.height - int(later["good"].sum()),
                "broken": broken["session"].head(20).to_list(),
            },
        }
        allowed = 1.0 - params.min_share
        verdict = stats.judge_counted(lost, n, allowed)
        if n < SESSIONS_MIN and verdict is not Verdict.FAIL:
            few = t("{n} chats of several turns were open at the injection: too few to see a share", n=n)
            return cls.unclear(few, **row)
        told = t(
            "{n} of {total} chats could go on; {percent:.3g} % are needed",
            n=n - lost,
            total=n,
            percent=100 * params.min_share,
        )
        return cls.result(verdict, told, **row)

    @classmethod
    def plan_errors(cls, params: SessionsParams, plan: Json) -> list[str]:  # noqa: ARG003
        """Refuse a workload of single questions."""
        turns = plan["experiment"]["load"]["workload"]["turns"]
        return ["a chat of one turn cannot go on; make load.workload.turns 2 or more"] if turns < 2 else []
