"""pod-kill: a replica dies. `how` says which death, for they are different experiments.

delete        graceful: SIGTERM, the replica's own grace period, then a new incarnation by the controller
delete-now    the controller's delete with no grace: SIGKILL, then a new incarnation
evict         as delete, but disruption budgets are obeyed: waited for, then the drill is refused (Kubernetes only)
kill-process  a crash: SIGKILL of the replica's process tree, engine first; the supervisor restarts the same incarnation
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar, Literal, cast

from drills import receipts
from drills.access.podprocs import ENGINE_TITLE
from drills.errors import DrillError, UsageError
from drills.faults.common import (
    FaultParams,
    burial,
    bystanders,
    how_for,
    offspring,
    receipt_of,
    refuse_others,
    still_the_one,
    untouched,
)
from drills.faults.engines import engines_of
from drills.faults.eviction import await_budget
from drills.model import CanDelete, CanEvict, Context, HasUnits, Json, Observation, Receipt, Replica, Restored, Target
from drills.params import Duration

How = Literal["delete", "delete-now", "evict", "kill-process"]
NEEDS: dict[str, frozenset[str]] = {"evict": frozenset({"CanEvict"}), "kill-process": frozenset({"NodeAccess"})}
PROOF_TIMEOUT_S = 5.0


class PodKill:
    """A one-shot deed: nothing of ours stays, the deployment itself has to bring the replica back."""

    name: ClassVar[str] = "pod-kill"
    held: ClassVar[bool] = False
    effect: ClassVar[bool] = True

    class Params(FaultParams):
        """how: which death (required), one value or one per kind of target; budget_timeout: for an eviction."""

        how: How | dict[str, How]
        budget_timeout: Duration = 30.0

    def __init__(self, params: Params, kind: str) -> None:
        how = how_for(cast("str | dict[str, str]", params.how), kind)
        if how is None:
            raise UsageError(f"pod-kill: how: nothing said for a target of kind '{kind}'; add `{kind}: delete`")
        if how == "evict" and kind != "kubernetes":
            raise UsageError(f"pod-kill: how: evict needs Kubernetes; the target is of kind '{kind}': use delete")
        self.params, self.kind, self.how = params, kind, how

    @property
    def unused(self) -> tuple[str, ...]:
        """Return the parameters that mean nothing for this way of dying."""
        return () if self.how == "evict" else ("budget_timeout",)

    def needs(self) -> frozenset[str]:
        """Return what the way of dying needs."""
        return NEEDS.get(self.how, frozenset({"CanDelete"}))

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Refuse a victim whose process cannot be named, or whose unit has no engine below it, or would stay down."""
        if self.how != "kill-process":
            return []
        reasons = [f"{v.name}: its process is not known, so it cannot be killed safely" for v in victims if not v.pid]
        if isinstance(target, HasUnits):
            try:
                reasons += _of_units(target, [v for v in victims if v.pid])
            except DrillError as error:
                reasons.append(str(error))
        return reasons

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Pin the victims and their bystanders. The deployment must heal itself: only an orphan is ours to end."""
        trees = [(v, offspring(target, v)) for v in victims] if self.how == "kill-process" else []
        prior: Json = {"bystanders": bystanders(target, victims), "how": self.how}
        prior |= {"engines": {v.name: engines_of(v, tree) for v, tree in trees}} if trees else {}
        undo = [step for v, tree in trees for step in burial(v.host, v.pid, v.pid_start, tree)]
        return receipt_of(
            self, target, victims, run=run, receipt=receipt, deadline_s=deadline_s, prior=prior, undo=undo
        )

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Kill each victim, if all are still those that were aimed at; each is looked at again right before."""
        refuse_others(receipt, target.replicas())
        for victim in receipt.victims:
            replica = still_the_one(victim, target.replicas())
            if replica is None:
                raise DrillError(f"{victim['name']}: became another replica during the deed; it was not killed")
            if self.how == "evict":
                await_budget(target, [replica], ctx, self.params.budget_timeout, partial(_tell_refusal, receipt, ctx))
            ctx.tell("inject.hit", {"receipt": receipt.id, "victims": [replica.name], "how": self.how})
            hit = self._kill(target, replica)
            ctx.tell("inject.step", {"receipt": receipt.id, "step": f"{self.how}.sent", "ok": hit})
            if not hit:
                raise DrillError(f"{replica.name}: its processes were gone before the kill")

    def _kill(self, target: Target, replica: Replica) -> bool:
        if self.how == "evict":
            if refusal := cast("CanEvict", target).evict_replica(replica, grace_s=None):
                raise DrillError(f"{replica.name}: its eviction was refused at the last moment: {refusal}")
            return True
        if self.how != "kill-process":
            cast("CanDelete", target).delete_replica(replica, grace_s=None if self.how == "delete" else 0.0)
            return True
        host = target.host(replica.host)
        # The engine first, the server last: a server killed alone would leave all of them behind.
        tree = [(p["pid"], p["start"]) for p in offspring(target, replica)] + [(replica.pid, replica.pid_start)]
        hits = [host.signal(pid, start, "KILL") for pid, start in tree if pid and start]
        return any(hits)

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:
        """Prove that each victim's processes are gone, and that nobody else's are."""
        evidence: list[Json] = []
        engines = receipt.prior.get("engines", {})
        deadline = ctx.mono() + PROOF_TIMEOUT_S
        while True:
            evidence = [self._seen(target, v, engines.get(v["name"], [])) for v in receipt.victims]
            if all(e["gone"] for e in evidence) or ctx.mono() > deadline or ctx.stopping():
                break
            ctx.sleep(0.1)
        on = all(e["gone"] for e in evidence)
        return Observation(on, tuple(evidence), untouched(receipt.prior["bystanders"], target.replicas()))

    def _seen(self, target: Target, victim: Json, engines: Sequence[Json]) -> Json:
        """Look at one victim: its processes where they are known, else what the controller says of its incarnation."""
        now = next((r for r in target.replicas() if r.name == victim["name"]), None)
        replaced = now is None or now.uid != victim["uid"]
        left: list[int] = []
        if victim["pid"]:
            host = target.host(victim["host"])
            left = [p["pid"] for p in engines if host.alive(p["pid"], p["start"])]
            alive = host.alive(victim["pid"], victim["pid_start"])
            gone = not alive and not left and (now is None or replaced or not now.ready or now.pid != victim["pid"])
        else:
            gone = now is None or replaced or now.state == "terminating"
        return {
            "what": "process of the victim" if victim["pid"] else "pod of the victim",
            "replica": victim["name"],
            "pid": victim["pid"],
            "gone": gone,
            "engines_left": left,
            "uid_before": victim["uid"],
            "uid_now": now.uid if now else None,
            "state_now": now.state if now else None,
        }

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Return clean: nothing of ours stays in place."""
        return receipts.revert(target, receipt, ctx)


def _of_units(target: Target, victims: Sequence[Replica]) -> Iterator[str]:
    """Say whose unit only starts an engine that runs elsewhere, and whose would stay down."""
    for victim in victims:
        if not engines_of(victim, offspring(target, victim)):
            yield (
                f"{victim.name}: no engine ({ENGINE_TITLE}) is below the main process of its unit, so the kill would "
                "miss it: an engine in a container is not killed with the client that started it"
            )
    for host in sorted({victim.host for victim in victims}):
        there = [victim for victim in victims if victim.host == host]
        yield from cast("HasUnits", target).unit_host(host).stay_down(there, "kill")


def _tell_refusal(receipt: Receipt, ctx: Context, replica: str, reason: str) -> None:
    told = {"receipt": receipt.id, "step": "evict.refused", "ok": False, "replica": replica, "reason": reason}
    ctx.tell("inject.step", told)
