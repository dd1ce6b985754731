"""rejoin: the restarted replica serves its share through the router again."""

from __future__ import annotations

from bisect import bisect_left

import polars as pl

from drills.checks import measures
from drills.checks.base import NO_INJECTION, Check, Within, allowed
from drills.evidence import Evidence, at
from drills.lang import t
from drills.model import CheckResult, Json, Verdict

WINDOW_S = 5.0
FAIR_PART = 0.5  # of the fair share; random and load-aware policies do not give exact shares
WINDOW_MIN_N = 10


class Rejoin(Check[Within]):
    """Counted from Ready; the slowest victim counts."""

    name = "rejoin"
    Params = Within

    @classmethod
    def window_s(cls, params: Within) -> float:
        """Return `within` and the window that proves it."""
        return params.within + WINDOW_S

    @classmethod
    def judge(cls, ev: Evidence, params: Within) -> CheckResult:
        """Find the first window after Ready in which each victim has at least half its fair share of attempts."""
        if ev.t_inject is None or not ev.victims:
            return cls.unclear(t(NO_INJECTION))
        if not ev.has_ledger:
            return cls.unclear(t("no ledger, so nobody knows which replica served an attempt"))
        rows = [cls._one(ev, name, params) for name in ev.victims]
        order = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)
        worst = min(rows, key=lambda row: order.index(row.verdict))
        known = [float(row.value) for row in rows if isinstance(row.value, float)]
        return cls.result(
            worst.verdict,
            worst.reason,
            value=max(known) if len(known) == len(rows) else None,
            bound=params.within,
            unit="s",
            n=sum(row.n or 0 for row in rows),
            events=tuple(sorted({number for row in rows for number in row.events})),
            detail={name: row.detail for name, row in zip(ev.victims, rows, strict=True)},
        )

    @classmethod
    def _one(cls, ev: Evidence, victim: str, params: Within) -> CheckResult:
        restart = measures.restart(ev, victim)
        if restart is None or restart.ready is None:
            never = t("{replica}: never became ready again, so it serves nothing", replica=victim)
            return cls.result(Verdict.FAIL, never, n=0)
        ready, events = at(restart.ready), (restart.ready.n,)
        everyone, mine = _starts(ev, ready, None), _starts(ev, ready, victim)
        fair = 1.0 / _primaries(ev)
        windows = 0
        detail: Json
        for begin in [ready, *mine]:
            if begin + WINDOW_S > ev.ended:
                break
            total, own = _count(everyone, begin), _count(mine, begin)
            windows += total >= WINDOW_MIN_N
            if total >= WINDOW_MIN_N and own / total >= FAIR_PART * fair:
                value = measures.seconds(begin - ready)
                detail = {"rejoined_s": value, "share": round(own / total, 6), "fair_share": round(fair, 6)}
                verdict = Verdict.PASS if value <= params.within else Verdict.FAIL
                reason = t(
                    "{replica}: {n} of {total} attempts in {seconds:g} s",
                    replica=victim,
                    n=own,
                    total=total,
                    seconds=WINDOW_S,
                )
                if verdict is Verdict.FAIL:
                    late = t("{found}, {seconds:.1f} s after Ready", found=reason, seconds=value)
                    reason = allowed(late, params.within)
                return cls.result(verdict, reason, value=value, n=total, events=events, detail=detail)
        observed_s = ev.ended - ready - WINDOW_S
        detail = {"rejoined_s": None, "attempts": len(mine), "fair_share": round(fair, 6)}
        served = t("{replica}: {n} of {total} attempts after Ready", replica=victim, n=len(mine), total=len(everyone))
        if observed_s < params.within or not windows:
            why = (
                t("too few attempts to see a share")
                if observed_s >= params.within
                else t("watched for {seconds:.1f} s only", seconds=observed_s)
            )
            unclear = t("{found}; {reason}", found=served, reason=why)
            return cls.unclear(unclear, n=len(everyone), events=events, detail=detail)
        reason = t(
            "{found}; {percent:.3g} % in {seconds:g} s are needed within {within:g} s",
            found=served,
            percent=100 * FAIR_PART * fair,
            seconds=WINDOW_S,
            within=params.within,
        )
        return cls.result(Verdict.FAIL, reason, n=len(everyone), events=events, detail=detail)


def _starts(ev: Evidence, since: float, replica: str | None) -> list[float]:
    """Return when the run's attempts on primaries (or one replica) began, ascending."""
    rows = ev.ledger.filter(
        pl.col("arrival").is_not_null() & (pl.col("role") == "primary") & (pl.col("start") >= since)
    )
    rows = rows if replica is None else rows.filter(pl.col("replica") == replica)
    return sorted(rows["start"].to_list())


def _count(starts: list[float], begin: float) -> int:
    return bisect_left(starts, begin + WINDOW_S) - bisect_left(starts, begin)


def _primaries(ev: Evidence) -> int:
    seen = ev.ledger.filter(pl.col("role") == "primary")["replica"].n_unique()
    return max(1, ev.expected_replicas or seen)
