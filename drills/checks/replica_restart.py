"""replica_restart: every victim came back by itself: a new incarnation, Ready, and a real completion from it."""

from __future__ import annotations

from typing import Literal

from drills.checks import measures
from drills.checks.base import NO_INJECTION, Check, allowed, by_deadline, of_replica
from drills.checks.measures import Restart
from drills.evidence import Evidence, at
from drills.lang import t
from drills.model import CheckResult, Event, Json, Verdict
from drills.params import Duration, Params


class ReplicaRestartParams(Params):
    """within: from the injection; by: who has to have done it (any but the drill, if not said)."""

    within: Duration
    by: Literal["supervisor", "controller"] | None = None


class ReplicaRestart(Check[ReplicaRestartParams]):
    """The slowest victim counts. What the drill itself restarted proves nothing."""

    name = "replica_restart"
    Params = ReplicaRestartParams

    @classmethod
    def window_s(cls, params: ReplicaRestartParams) -> float:
        """Return `within`."""
        return params.within

    @classmethod
    def judge(cls, ev: Evidence, params: ReplicaRestartParams) -> CheckResult:
        """Judge each victim; the worst one decides."""
        hit = ev.t_inject
        if hit is None or not ev.victims:
            return cls.unclear(t(NO_INJECTION))
        if not ev.of("replica") and not ev.of("completion"):
            return cls.unclear(t("no replica was watched: the journal has neither replica nor completion events"))
        rows = [_one(ev, name, measures.restart(ev, name), params, hit) for name in ev.victims]
        worst = min(rows, key=lambda row: _ORDER.index(row.verdict))
        known = [float(row.value) for row in rows if isinstance(row.value, float)]
        return cls.result(
            worst.verdict,
            worst.reason,
            value=max(known) if len(known) == len(rows) else None,
            bound=params.within,
            unit="s",
            n=len(rows),
            events=tuple(sorted({number for row in rows for number in row.events})),
            detail={name: row.detail for name, row in zip(ev.victims, rows, strict=True)},
        )


_ORDER = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)


def _one(ev: Evidence, name: str, restart: Restart | None, params: ReplicaRestartParams, hit: float) -> CheckResult:
    observed_s = ev.ended - hit
    served = restart.served if restart and restart.complete else None
    value = measures.seconds(served - hit) if served is not None else None
    verdict = by_deadline(value, params.within, observed_s)
    reason = of_replica(name, _how_far(restart, value))
    if verdict is Verdict.FAIL:
        reason = allowed(reason, params.within)
    if verdict is Verdict.INCONCLUSIVE:
        reason = t("{found}; watched for {seconds:.1f} s only", found=reason, seconds=observed_s)
    if restart and verdict is Verdict.PASS:
        if restart.by == "drill":
            verdict = Verdict.INCONCLUSIVE
            reason = t("{replica}: the drill itself restarted it, so nothing is shown", replica=name)
        elif params.by and restart.by != params.by:
            verdict = Verdict.FAIL if restart.by else Verdict.INCONCLUSIVE
            reason = t(
                "{replica}: restarted by {who}, not by the {expected}",
                replica=name,
                who=_by(restart),
                expected=params.by,
            )
    events = restart.events() if restart else ()
    return CheckResult(
        "replica_restart", verdict, value=value, reason=reason, events=events, detail=_detail(restart, hit)
    )


def _how_far(restart: Restart | None, value_s: float | None) -> str:
    if restart is None:
        return t("no new incarnation was seen")
    if restart.gone:
        return t("a new incarnation started and went again")
    if restart.ready is None:
        return t("a new incarnation started and never became ready")
    if restart.completion is None:
        return t("ready, but no completion straight from the new incarnation was seen")
    if value_s is None:
        return t("back, by {who}", who=_by(restart))
    return t("back {seconds:.1f} s after the injection, by {who}", seconds=value_s, who=_by(restart))


def _by(restart: Restart) -> str:
    return restart.by or t("nobody knows whom")


def _detail(restart: Restart | None, hit: float) -> Json:
    if restart is None:
        return {"started_s": None, "ready_s": None, "first_completion_s": None, "by": None}

    def since(event: Event | None) -> float | None:
        return None if event is None else measures.seconds(at(event) - hit)

    return {
        "started_s": since(restart.started),
        "ready_s": since(restart.ready),
        "first_completion_s": since(restart.completion),
        "by": restart.by,
        "uid": restart.started.data.get("uid"),
        "pid": restart.started.data.get("pid"),
        "restarts": restart.started.data.get("restarts"),
    }
