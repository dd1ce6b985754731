"""retried: requests that the fault hit before their first token, and that a retry of client or router saved."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from drills import stats
from drills.checks.amplification import HEALTH_CHECKS, Attempts, attempts_of
from drills.checks.base import NO_INJECTION, Check
from drills.checks.streams import BROKEN
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Outcome, Phase, Verdict
from drills.params import Params, Rate, Share

#: How an attempt ends at a replica that failed it.
_CUT = ("refused", "upstream_reset", "upstream_fin", "cut")


class RetriedParams(Params):
    """min_share: of those hit; health_checks: connections a second to a victim that are no attempts."""

    min_share: Share = 0.95
    health_checks: Rate | None = HEALTH_CHECKS


@dataclass(frozen=True)
class Hits:
    """Requests without a first token that lost an attempt to the fault, and what became of them.

    Where a link is cut, the attempts are counted by the rule, and nobody can say whose they were.
    """

    at_replicas: int  # by the ledger
    at_client: int  # by the client's own attempts, others than those
    swallowed: int  # new connections by the rule's counter
    sure: int  # of these what cannot be health checks
    degraded: int  # answered in another way: by no retry
    lost: int
    told_apart: int  # of those known one by one the ones that no fallback answered
    arrivals: int  # that the fault could hit

    @property
    def count(self) -> int:
        """Return how many were hit; what the client saw of a cut link is among what the rule counted."""
        return self.at_replicas + max(self.at_client, self.swallowed)

    @property
    def left_to_retries(self) -> int:
        """Return those that no fallback answered: the most that there can be."""
        return max(0, min(self.count, self.arrivals) - self.degraded)

    @property
    def contradiction(self) -> str:
        """Say that the rule counted more than there were requests; empty when it did not."""
        if self.swallowed <= self.arrivals:
            return ""
        return t(
            "the rule counted {n} attempts to connect, and only {arrivals} requests could be hit",
            n=self.swallowed,
            arrivals=self.arrivals,
        )


def hits(ev: Evidence, attempts: Attempts) -> Hits | None:
    """Count the hits among the requests open at the injection or begun in the fault; None without an injection."""
    hit, span = ev.t_inject, ev.phase(Phase.FAULT)
    if hit is None or span is None:
        return None
    frame = pl.concat([ev.cohort("caught"), ev.cohort("fault")])
    at_replicas = _broken_at_victims(ev, frame, hit)
    at_client = _broken_at_client(frame, hit) - at_replicas
    swallowed, sure = (
        int(sum(series.between(hit, span.end) for series in counted))
        for counted in ([rule.counted for rule in attempts.rules], [rule.sure for rule in attempts.rules])
    )
    seen = pl.col("arrival").is_in(list(at_replicas | at_client))
    bad = pl.col("outcome").is_in(BROKEN) & pl.col("first_token").is_null()
    primaries = ev.ledger.filter(pl.col("role") == "primary")["arrival"].drop_nulls()
    unseen = ~pl.col("arrival").is_in(primaries.implode()) if swallowed and ev.has_ledger else pl.lit(value=False)
    degraded = pl.col("outcome") == Outcome.DEGRADED
    return Hits(
        at_replicas=len(at_replicas),
        at_client=len(at_client),
        swallowed=swallowed,
        sure=sure,
        degraded=frame.filter(degraded & (seen | unseen)).height,
        lost=frame.filter(seen & bad).height,
        told_apart=frame.filter(seen & ~degraded).height,
        arrivals=frame.height,
    )


def _broken_at_client(frame: pl.DataFrame, hit: float) -> set[int]:
    """Return the arrivals of which the client itself saw an attempt fail before its first token."""
    rows = frame.select("arrival", pl.col("attempts").alias("one")).explode("one").unnest("one")
    rows = rows.filter(pl.col("outcome").is_in(BROKEN) & pl.col("first_token").is_null() & (pl.col("end") >= hit))
    return set(rows["arrival"].drop_nulls().to_list())


def _broken_at_victims(ev: Evidence, frame: pl.DataFrame, hit: float) -> set[int]:
    """Return the arrivals with an attempt that a victim failed, or that was given up there and made elsewhere."""
    mine = ev.ledger.filter((pl.col("role") == "primary") & pl.col("arrival").is_not_null())
    again = pl.col("start") < pl.col("start").max().over("arrival", "attempt")
    given_up = (pl.col("close") == "client_gone") & pl.col("first_byte").is_null() & again
    failed = pl.col("close").is_in(_CUT) | (pl.col("status") >= 500).fill_null(value=False) | given_up
    on_victim = pl.col("replica").is_in(list(ev.victims)) & (pl.col("end") >= hit)
    rows = mine.filter(failed & on_victim).select("arrival", pl.col("end").alias("broken"))
    before_token = pl.col("first_token").is_null() | (pl.col("first_token") > pl.col("broken"))
    found = rows.join(frame.select("arrival", "first_token"), on="arrival", how="inner").filter(before_token)
    return set(found["arrival"].to_list())


class Retried(Check[RetriedParams]):
    """A degraded answer is no retry, so who got one is left out and told apart."""

    name = "retried"
    Params = RetriedParams

    @classmethod
    def judge(cls, ev: Evidence, params: RetriedParams) -> CheckResult:
        """Compare the share of those hit that got a full answer with `min_share`."""
        attempts = attempts_of(ev, params.health_checks)
        found = hits(ev, attempts)
        if found is None:
            return cls.unclear(t(NO_INJECTION))
        n, lost = found.left_to_retries, found.lost
        row = {
            "value": round(1.0 - lost / n, 6) if n else None,
            "bound": round(params.min_share, 6),
            "unit": "ratio",
            "n": n,
            "events": (ev.hits[0].n,),
            "detail": {
                "hit_at_replicas": found.at_replicas,
                "hit_at_client": found.at_client,
                "swallowed": found.swallowed,
                "saved": n - lost,
                "lost": lost,
                "degraded": found.degraded,
            },
        }
        allowed = 1.0 - params.min_share
        verdict = stats.judge_counted(lost, n, allowed)
        if verdict is Verdict.FAIL:
            told = t(
                "{n} of {total} hit requests were lost; {percent:.3g} % may be", n=lost, total=n, percent=100 * allowed
            )
            return cls.result(verdict, told, **row)
        if why := _unknown(found, attempts, params):
            return cls.unclear(why, **row)
        told = t(
            "{n} of {total} hit requests were saved by a retry; {percent:.3g} % are needed",
            n=n - lost,
            total=n,
            percent=100 * params.min_share,
        )
        return cls.result(verdict, told, **row)


def _unknown(found: Hits, attempts: Attempts, params: RetriedParams) -> str:
    """Say why what was not seen to fail has not passed; empty when it has."""
    if not found.arrivals:
        return t("no request was open at the injection or begun in the fault")
    if why := attempts.unknown or attempts.doubt or found.contradiction:
        return why
    seen = found.at_replicas + found.at_client
    if not seen and not found.sure and found.swallowed:
        return t("the rule counted {n} attempts to connect, as steadily as health checks come", n=found.swallowed)
    if not found.count:
        return t("nothing to retry: no request was hit before its first token")
    if not found.left_to_retries:
        return t("nothing was left to retry: all {n} hit got a degraded answer", n=found.count)
    # A rule counts connections, and a request that is lost in the end may have made any number of them.
    fewest = max(found.lost, found.told_apart)
    if found.lost and stats.judge_counted(found.lost, fewest, 1.0 - params.min_share) is not Verdict.PASS:
        return t(
            "{n} were lost, of at least {fewest} and at most {most} hit requests: the rule counts connections, and "
            "cannot tell whose they were",
            n=found.lost,
            fewest=fewest,
            most=found.left_to_retries,
        )
    return ""
