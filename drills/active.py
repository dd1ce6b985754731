"""Faults that are on: receipt fsynced, timer armed, deed, proof; and, whatever happened, the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from drills import receipts
from drills.access import fence
from drills.clock import Clock
from drills.errors import DrillError, Stopped, Unreachable
from drills.model import Context, CountsSwallowed, Fault, Json, Observation, Receipt, Replica, Restored, Target
from drills.probes.http import ProbeError
from drills.probes.sampler import Job

DEADLINE_SLACK_S = 15.0  # the on-target timer fires this long after the planned end of the fault
REVERT_ATTEMPTS = 2
REACH_TIMEOUT_S = 60.0  # for a target that cannot be asked to answer again, when something is to be put back there
REACH_AGAIN_S = 1.0
Tell = Callable[[str, Json], None]
Answer = TypeVar("Answer")


class ActiveFaults:
    """Puts faults on and off. `tell` must have the line on disk or raise; `note` never raises.

    Before a deed the journal comes first. On the way back it comes second: a full disk may cost us a
    line, never a revert.
    """

    def __init__(
        self,
        run: str,
        target: Target,
        clock: Clock,
        *,
        tell: Tell,
        note: Tell,
        context: Context,
        sample: Callable[[str, str, Json], None] = lambda *_: None,
    ) -> None:
        self.run, self.target, self.clock, self.sample = run, target, clock, sample
        self.tell, self.note, self.context = tell, note, context
        self.on: list[tuple[Fault, Receipt]] = []  # oldest first
        self.receipts: list[Receipt] = []  # of all that were put on
        self.timed: set[str] = set()  # receipts that a timer watches
        self.hit_mono: float | None = None  # of the first deed
        self.restored = Restored.CLEAN
        self.manual: list[str] = []

    def names(self) -> str:
        """Return the names of the faults that are on."""
        return ", ".join(fault.name for fault, _ in self.on)

    def put_on(self, number: int, fault: Fault, victims: Sequence[Replica], *, fault_s: float) -> None:
        """Receipt, timer, deed, proof. A one-shot deed is followed by its revert at once."""
        deadline_s = fault_s + DEADLINE_SLACK_S
        receipt_id = f"{self.run}-{number}-{fault.name}"
        receipt = fault.aim(self.target, victims, run=self.run, receipt=receipt_id, deadline_s=deadline_s)
        self.tell("receipt", {"receipt": receipts.to_json(receipt)})
        self.on.append((fault, receipt))
        self.receipts.append(receipt)
        armed = self.target.custody.arm(receipt)
        if armed["pid"] is not None or armed.get("unit"):  # none is needed where there is nothing to undo
            timer: Json = {key: armed[key] for key in ("pid", "start", "unit") if key in armed}
            timer |= {"deadline_s": receipt.deadline_s, "host": receipt.host}
            self.timed.add(receipt.id)
            self.tell("timer.armed", {"receipt": receipt.id, **timer})
        if self.context.stopping():
            raise Stopped("right before the deed, nothing was touched")
        self.tell("inject.begin", {"receipt": receipt.id, "fault": fault.name})
        with fence.deed(self._receipt_files(receipt, armed)):
            fault.inject(self.target, receipt, self._telling())
        self.tell("inject.end", {"receipt": receipt.id})
        if self.context.stopping():  # the way back first; a stopped run proves nothing anyway
            raise Stopped("right after the deed")
        seen = reached(self.context, partial(fault.observe, self.target, receipt, self._telling()))
        self._proof("proof.on", fault, receipt, seen)
        if not fault.held:
            self._revert(fault, receipt)

    def _receipt_files(self, receipt: Receipt, armed: Json) -> dict[str, str]:
        """Return where its parts lie on the machines that have one: what is done there belongs to it."""
        names = (*armed.get("hosts", ()), *armed.get("nodes", ()))
        return {name: f"{self.target.receipts_dir_of(name)}/{receipt.id}.json" for name in names}

    def job(self) -> Job:
        """Return the probe that writes down what the faults that are on have swallowed so far."""
        return Job("fault", "swallowed", 1.0, self._count)

    def _count(self) -> None:
        for fault, receipt in list(self.on):
            try:
                counts = fault.counts(self.target, receipt) if isinstance(fault, CountsSwallowed) else None
            except DrillError as error:
                raise ProbeError(str(error)) from None
            if counts is not None:
                self.sample("fault", receipt.id, counts)

    def lost_timer(self) -> str | None:
        """Return which timer does not watch any more, None when all do; without an undo there is none to lose."""
        watched = [(fault, receipt) for fault, receipt in list(self.on) if receipt.id in self.timed]
        there = {o.receipt.id: o.timer_state for o in self.target.custody.found().known()} if watched else {}
        for fault, receipt in watched:
            mine = there.get(receipt.id, "none")
            if mine not in ("armed", "released"):
                return f"{fault.name}: the on-target timer is {mine}"
        return None

    def revert_all(self, *, since: int = 0) -> None:
        """Newest first; one that fails does not stop the others. `since` counts receipts: those before it stay on."""
        chosen = self.receipts[since:]
        for fault, receipt in reversed([one for one in self.on if one[1] in chosen]):
            self._revert(fault, receipt)

    def _revert(self, fault: Fault, receipt: Receipt) -> None:
        fired = self._fired(receipt)
        self.note("revert.begin", {"receipt": receipt.id, "by": "driver"} | ({"timer": fired} if fired else {}))
        with suppress(Exception):  # the last look: the counters go with the rules
            self._count()
        restored, why = revert(fault, self.target, receipt, self._noting())
        if receipt.holds and restored is Restored.CLEAN:
            self.note("inject.step", {"receipt": receipt.id, "step": "gate.opened", "ok": True})
        by_hand = receipts.by_hand(receipt) or [f"drill recover {self.run}"]
        manual = [] if restored is Restored.CLEAN else by_hand
        self.on.remove((fault, receipt))
        try:
            seen = reached(self.context, partial(fault.observe, self.target, receipt, self._noting()))
            self._proof("proof.off", fault, receipt, seen)
        except Exception as error:
            self._proof("proof.off", fault, receipt, Observation(None, ({"what": "error", "error": str(error)},)))
        if restored is Restored.CLEAN:
            if not self._disarm(receipt):
                what = (
                    "on-target timer could not be ended" if receipt.id in self.timed else "receipt could not be removed"
                )
                restored, why, manual = Restored.DIRTY, f"its {what}", [f"drill recover {self.run}"]
            elif receipt.id in self.timed:
                self.note("timer.disarmed", {"receipt": receipt.id})
        outcome = {"restored": restored.value, "manual": manual, "by": "timer" if fired else "driver", "reason": why}
        self.note("revert.end", {"receipt": receipt.id, **outcome})
        if restored is not Restored.CLEAN:
            self.restored = restored
            self.manual += manual

    def _fired(self, receipt: Receipt) -> Json:
        """Return what the timer says when it was quicker than a driver that stood still; nothing when it was not."""
        try:
            left = self.target.custody.found().known() if receipt.id in self.timed else []
        except Exception:  # nobody knows, and the way back does not wait for that
            return {}
        said = next((o.timer for o in left if o.receipt.id == receipt.id), {})
        return {"state": said["state"], "at": said.get("at")} if said.get("state") == "undone" else {}

    def _disarm(self, receipt: Receipt) -> bool:
        try:
            return reached(self.context, lambda: self.target.custody.disarm(receipt))
        except Exception:
            return False

    def _proof(self, event: str, fault: Fault, receipt: Receipt, seen: Observation) -> None:
        ok = seen.on
        if event == "proof.off":
            # A deed cannot be taken back: off means that nothing of ours stays on the target.
            ok = self._nothing_left(receipt) if not fault.held else (None if seen.on is None else not seen.on)
        data = {"receipt": receipt.id, "fault": fault.name, "held": fault.held, "effect": fault.effect, "ok": ok}
        self.note(event, data | {"evidence": list(seen.evidence), "bystanders_ok": seen.bystanders_ok})

    def _nothing_left(self, receipt: Receipt) -> bool | None:
        """Whether the timer holds nothing any more; None when that cannot be told."""
        try:
            left = self.target.custody.found().known()
        except DrillError:
            return None
        return not any(o.receipt.id == receipt.id and receipt.holds and o.timer_state == "armed" for o in left)

    def _telling(self) -> Context:
        def tell(event: str, data: Json) -> None:
            if event == "inject.hit" and self.hit_mono is None:
                self.hit_mono = self.clock.mono()
            self.tell(event, data)

        c = self.context
        return Context(tell, c.sleep, c.mono, c.stopping, c.timeout_s)

    def _noting(self) -> Context:
        c = self.context
        return Context(self.note, c.sleep, c.mono, c.stopping, c.timeout_s)


def revert(fault: Fault, target: Target, receipt: Receipt, ctx: Context) -> tuple[Restored, str]:
    """Revert with a bounded retry; returns the outcome and, when it is not clean, why. Never raises."""
    restored, why = Restored.UNKNOWN, ""
    for _ in range(REVERT_ATTEMPTS):
        try:
            restored = reached(ctx, partial(fault.revert, target, receipt, ctx))
            why = "" if restored is Restored.CLEAN else "an undo step failed"
        except Exception as error:
            restored, why = Restored.UNKNOWN, f"{type(error).__name__}: {error}"
            if isinstance(error, Unreachable):  # it was waited for already
                break
        if restored is Restored.CLEAN:
            break
    return restored, why


def reached(ctx: Context, act: Callable[[], Answer]) -> Answer:
    """Do it; while the target cannot be asked try again, bounded (Unreachable)."""
    deadline = ctx.mono() + REACH_TIMEOUT_S
    while True:
        try:
            return act()
        except Unreachable:
            if ctx.mono() >= deadline:
                raise
            ctx.sleep(REACH_AGAIN_S)
