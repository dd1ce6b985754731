"""engine-hang: the engine process of a replica stops computing and does not die.

Its server keeps taking requests, sends the head of every stream at once and then nothing; its own `/health` and
`/metrics` go on answering 200. Whoever trusts them keeps sending traffic there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from drills import receipts
from drills.access import procs
from drills.faults.common import FaultParams, bystanders, pinned, receipt_of, untouched
from drills.faults.engines import signal_engines, unknown_engines
from drills.model import Context, Json, Observation, Receipt, Replica, Restored, Target
from drills.probes import completion, http
from drills.probes.http import ProbeError
from drills.watch import model_of

#: How long one token may take before the engine counts as silent.
SILENT_S = 1.0
#: How long an engine that goes on may need until it answers: what had queued comes first.
PROOF_TIMEOUT_S = 15.0
BYSTANDER_TRIES = 3


class EngineHang:
    """A held fault: SIGSTOP of the engine, SIGCONT to end it."""

    name: ClassVar[str] = "engine-hang"
    held: ClassVar[bool] = True
    effect: ClassVar[bool] = True

    class Params(FaultParams):
        """victims: how many replicas have their engine stopped."""

    def __init__(self, params: Params, kind: str) -> None:
        self.params, self.kind = params, kind

    def needs(self) -> frozenset[str]:
        """Return that processes can be signalled there."""
        return frozenset({"NodeAccess"})

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        """Refuse a victim whose engine cannot be named, or is stopped already."""
        stopped = [v for v in victims if v.engine_pid and _state(target, pinned(v)) == "T"]
        return unknown_engines(victims) + [
            f"{v.name}: its engine is stopped already, by somebody else" for v in stopped
        ]

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Pin the engines and the bystanders."""
        steps = [
            {"do": "signal", "pid": v.engine_pid, "start": v.engine_start, "signal": "CONT", "host": v.host}
            for v in victims
        ]
        prior: Json = {"bystanders": bystanders(target, victims)}
        return receipt_of(
            self, target, victims, run=run, receipt=receipt, deadline_s=deadline_s, prior=prior, undo=steps
        )

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Stop each engine, if all victims are still those that were aimed at; each is looked at again right before."""
        signal_engines(target, receipt, ctx, "STOP", done="stopped")

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:
        """Prove that the engines are stopped and silent while the others answer; or that they go on and answer."""
        deadline = ctx.mono() + PROOF_TIMEOUT_S
        while True:
            evidence = [_look(target, victim) for victim in receipt.victims]
            hangs = [e["hangs"] for e in evidence]
            if None not in hangs or ctx.mono() > deadline or ctx.stopping():
                break
            ctx.sleep(0.1)
        on = True if all(hangs) else False if not any(h is not False for h in hangs) else None
        others = [_other(target, r) for r in target.replicas() if r.name not in {v["name"] for v in receipt.victims}]
        well = untouched(receipt.prior["bystanders"], target.replicas()) and all(o["answers"] for o in others)
        return Observation(on, (*evidence, *others), well)

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Let the engines go on."""
        return receipts.revert(target, receipt, ctx)


def _state(target: Target, victim: Json) -> str | None:
    """Return the state letter of the victim's engine; None when that very process is gone."""
    host = target.host(victim["host"])
    text = host.read(f"/proc/{victim['engine_pid']}/stat")
    if text is None or not host.alive(victim["engine_pid"], victim["engine_start"]):
        return None
    return procs.parse_stat(text)[0]


def _look(target: Target, victim: Json) -> Json:
    """Return what an engine does. It hangs when stopped and silent, does not when going on and answering or gone."""
    now = next((r for r in target.replicas() if r.name == victim["name"]), None)
    answers, error = _answers(target, now) if now else (False, "the replica is gone")
    state = _state(target, victim)  # last: right after the signal a process may not have stopped yet
    stopped = state == "T"
    hangs = None if stopped == answers and state is not None else stopped
    return {
        "what": f"engine of {victim['name']}",
        "meaning": f"state {state or 'gone'}, {'answers' if answers else f'no token: {error}'}",
        "replica": victim["name"],
        "pid": victim["engine_pid"],
        "state": state,
        "answers": answers,
        "error": error,
        "hangs": hangs,
    }


def _other(target: Target, replica: Replica) -> Json:
    """Return whether somebody who was not hit answers; a busy one may need a second try."""
    answers, error = False, ""
    for _ in range(BYSTANDER_TRIES):
        answers, error = _answers(target, replica)
        if answers:
            break
    return {"what": f"bystander {replica.name}", "replica": replica.name, "answers": answers, "error": error}


def _answers(target: Target, replica: Replica) -> tuple[bool, str]:
    """Return whether the replica makes one token within `SILENT_S`, and the reason when not."""
    try:
        completion.complete(http.pool_for(target), replica.url, model_of(target, replica), timeout_s=SILENT_S)
    except ProbeError as error:
        return False, str(error)
    return True, ""
