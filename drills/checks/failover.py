"""failover: how long after the injection arrivals were still hurt by the victims."""

from __future__ import annotations

import polars as pl

from drills.checks import measures
from drills.checks.base import NO_INJECTION, Check, Within, allowed, by_deadline, several
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Verdict


class Failover(Check[Within]):
    """Traffic moved by itself, within so many seconds."""

    name = "failover"
    Params = Within

    @classmethod
    def window_s(cls, params: Within) -> float:
        """Return `within`."""
        return params.within

    @classmethod
    def judge(cls, ev: Evidence, params: Within) -> CheckResult:
        """Compare the last hurt arrival with `within`."""
        measured = measures.failover(ev)
        if measured is None or ev.t_inject is None:
            return cls.unclear(t(NO_INJECTION))
        observed_s = ev.ended - ev.t_inject
        value = measures.seconds(measured.value_s)
        verdict = by_deadline(
            value if measured.affected or observed_s >= params.within else None, params.within, observed_s
        )
        detail = {
            "affected": measured.affected,
            "last_arrival": measured.last_arrival,
            "split": measures.split(ev),
            "ledger": "attempts on victims" if ev.has_ledger else "none: every violation counts",
        }
        row = {"value": value, "bound": params.within, "unit": "s", "n": measured.n, "detail": detail}
        row["events"] = (ev.hits[0].n,)
        if measured.n == 0:
            return cls.unclear(t("no arrival after the injection"), **row)
        if verdict is Verdict.PASS and (idle := idle_victims(ev)):
            nobody = t("{names} served nothing before the injection: no traffic had to move", names=several(idle))
            return cls.unclear(nobody, **row)
        if verdict is Verdict.INCONCLUSIVE:
            return cls.unclear(t("watched for {seconds:.1f} s only", seconds=observed_s), **row)
        if not measured.affected:
            return cls.result(verdict, t("no later arrival was hurt"), **row)
        reason = t(
            "{n} of {total} later arrivals were hurt, the last one {seconds:.1f} s after the injection",
            n=measured.affected,
            total=measured.n,
            seconds=value,
        )
        return cls.result(verdict, allowed(reason, params.within), **row)


def idle_victims(ev: Evidence) -> list[str]:
    """Return the victims without an attempt in the baseline, where a ledger can tell."""
    if not ev.has_ledger:
        return []
    before = ev.ledger.filter(pl.col("arrival").is_not_null() & (pl.col("start") < ev.t_inject))
    served = set(before["replica"].unique().to_list())
    return [name for name in ev.victims if name not in served]
