"""streams: answers cut, repeated, or silently shortened by the fault."""

from __future__ import annotations

from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from drills.checks.base import NO_INJECTION, Check
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Outcome, Verdict
from drills.params import Params

BROKEN = (Outcome.TRUNCATED, Outcome.ERROR, Outcome.HUNG)


class StreamsParams(Params):
    """max_cut: how many streams may be cut; a number (0 where a drain is promised), or those in flight on a victim."""

    max_cut: Literal["in_flight_on_victim"] | Annotated[int, Field(ge=0)]


class Streams(Check[StreamsParams]):
    """Shortened in silence or repeated: none, whatever `max_cut` allows."""

    name = "streams"
    Params = StreamsParams

    @classmethod
    def judge(cls, ev: Evidence, params: StreamsParams) -> CheckResult:
        """Count over all arrivals open at the injection or begun after it."""
        hit = ev.t_inject
        if hit is None:
            return cls.unclear(t(NO_INJECTION))
        caught = ev.cohort("caught")
        open_then = pl.concat([caught, ev.watched])
        on_victim = pl.col("arrival").is_in(list(ev.in_flight_on_victims))
        broken = pl.col("outcome").is_in(BROKEN)
        # Before the first token a request can still be saved by a retry; one that was not is lost, not cut,
        # unless the victim had it.
        silent = _silent()
        cut = open_then.filter(broken & (pl.col("first_token").is_not_null() | on_victim) & ~silent)
        shortened, repeated = open_then.filter(silent), open_then.filter(pl.col("dup").fill_null(value=False))
        in_flight = open_then.filter(on_victim).height
        bound = in_flight if params.max_cut == "in_flight_on_victim" else params.max_cut
        row = {
            "value": cut.height, "bound": bound, "unit": "count", "n": in_flight, "events": (ev.hits[0].n,),
            "detail": {
                "caught": caught.height,
                "in_flight_on_victim": in_flight,
                "cut_on_victim": cut.filter(on_victim).height,
                "cut_elsewhere": cut.filter(~on_victim).height,
                "shortened": shortened["arrival"].head(20).to_list(),
                "repeated": repeated["arrival"].head(20).to_list(),
            },
        }  # fmt: skip
        return cls._judge(ev, params, cut.height, bound, shortened.height, repeated.height, row)

    @classmethod
    def _judge(
        cls,
        ev: Evidence,
        params: StreamsParams,
        cut: int,
        bound: int,
        short: int,
        repeated: int,
        row: dict[str, object],
    ) -> CheckResult:
        if short or repeated:
            told = t(
                "{n} answers shortened in silence and {repeated} repeated; none may be", n=short, repeated=repeated
            )
            return cls.result(Verdict.FAIL, told, **row)
        if params.max_cut == "in_flight_on_victim" and not ev.has_ledger:
            return cls.unclear(t("no ledger, so nobody knows what was in flight on the victim"), **row)
        if cut > bound:
            told = t("{n} streams were cut, {allowed} may be", n=cut, allowed=bound)
            return cls.result(Verdict.FAIL, told, **row)
        if _nothing_to_cut(ev, bool(row["n"])):
            return cls.unclear(t("no stream was in flight on the victim at the injection"), **row)
        if not ev.has_ledger:
            return cls.result(Verdict.PASS, t("{n} streams were cut", n=cut), **row)
        told = t("{n} streams were cut; {in_flight} were in flight on the victim", n=cut, in_flight=row["n"])
        return cls.result(Verdict.PASS, told, **row)


def _nothing_to_cut(ev: Evidence, on_victim: bool) -> bool:
    """Whether the fault met no stream; the control harms nobody, so any open stream will do for it."""
    if ev.has_ledger and not ev.control:
        return not on_victim
    return ev.cohort("caught").is_empty()


def _silent() -> pl.Expr:
    """Everything says complete (status, finish reason, [DONE]), and tokens are missing, or nobody vouches for them.

    The load's own judge calls such an answer truncated only for that: where there is no usage, as behind a gateway
    that makes up the end of a cut stream, it is what tells.
    """
    looks_complete = pl.col("done") & pl.col("finish").is_in(["stop", "length"]) & (pl.col("status") == 200)
    truncated = pl.col("outcome") == Outcome.TRUNCATED.value
    short = (pl.col("tokens") < pl.col("tokens_asked")).fill_null(value=False) | truncated
    answered = pl.col("outcome").is_in([Outcome.OK, Outcome.TRUNCATED])
    return (answered & looks_complete & short).fill_null(value=False)
