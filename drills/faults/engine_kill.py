"""engine-kill: the engine process of a replica dies, as it does of a fault of its own or of its GPU.

Its server hears of it, fails what is in flight and then ends by itself **with status 0**: a supervisor that restarts on
failure only leaves the replica down. Nothing of ours stays in place; workers that the dead engine leaves behind are
ended, by pid and start time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from drills import receipts
from drills.faults.common import FaultParams, burial, bystanders, offspring, receipt_of, untouched
from drills.faults.engines import signal_engines, unknown_engines
from drills.model import Context, Json, Observation, Receipt, Replica, Restored, Target

#: A server notices at the next request, or at a look every 5 s, and takes a second to end.
PROOF_TIMEOUT_S = 12.0
#: A killed process may be there for a moment still; what is there after so long was not killed.
DYING_S = 2.0


class EngineKill:
    """A one-shot deed: SIGKILL of the engine; the deployment itself has to bring the replica back."""

    name: ClassVar[str] = "engine-kill"
    held: ClassVar[bool] = False
    effect: ClassVar[bool] = True

    class Params(FaultParams):
        """victims: how many replicas lose their engine."""

    def __init__(self, params: Params, kind: str) -> None:
        self.params, self.kind = params, kind

    def needs(self) -> frozenset[str]:
        """Return that processes can be signalled there."""
        return frozenset({"NodeAccess"})

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:  # noqa: ARG002
        """Refuse a victim whose engine cannot be named."""
        return unknown_engines(victims)

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Pin the victims, their engines' workers and the bystanders."""
        undo: list[Json] = []
        for victim in victims:
            workers = [p for p in offspring(target, victim) if p["pid"] != victim.engine_pid]
            undo += burial(victim.host, victim.engine_pid, victim.engine_start, workers)
        prior: Json = {"bystanders": bystanders(target, victims)}
        return receipt_of(
            self, target, victims, run=run, receipt=receipt, deadline_s=deadline_s, prior=prior, undo=undo
        )

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Kill each engine, if all victims are still those that were aimed at; each is looked at again right before."""
        signal_engines(target, receipt, ctx, "KILL", done="killed")

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:
        """Prove that each victim's engine is gone and its server with it, and that nobody else's is."""
        begun = ctx.mono()
        while True:
            evidence = [self._seen(target, v) for v in receipt.victims]
            over = [e["engine_gone"] and not e["serving"] for e in evidence]
            limit_s = PROOF_TIMEOUT_S if any(e["engine_gone"] for e in evidence) else DYING_S
            if all(over) or ctx.mono() - begun > limit_s or ctx.stopping():
                break
            ctx.sleep(0.1)
        # An engine that is gone under a server that says it is ready is proof of nothing.
        on = all(over) or (None if all(e["engine_gone"] for e in evidence) else False)
        return Observation(on, tuple(evidence), untouched(receipt.prior["bystanders"], target.replicas()))

    def _seen(self, target: Target, victim: Json) -> Json:
        host = target.host(victim["host"])
        now = next((r for r in target.replicas() if r.name == victim["name"]), None)
        server_alive = bool(victim["pid"]) and host.alive(victim["pid"], victim["pid_start"])
        same = now is not None and (now.uid, now.pid) == (victim["uid"], victim["pid"])
        gone = not host.alive(victim["engine_pid"], victim["engine_start"])
        serving = server_alive and same and now is not None and now.ready
        server = "says it is ready" if serving else "is not ready" if server_alive else "is gone"
        return {
            "what": f"engine of {victim['name']}",
            "meaning": f"{'gone' if gone else 'still there'}, its server {server}",
            "replica": victim["name"],
            "pid": victim["engine_pid"],
            "engine_gone": gone,
            "server_pid": victim["pid"],
            "server_gone": not server_alive,
            "serving": serving,
        }

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """End workers that the dead engine left behind; nothing else of ours stays in place."""
        return receipts.revert(target, receipt, ctx)
