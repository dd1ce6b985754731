"""Custody as files on a host: the lock, the receipts beside their timers, the stop button.

<state>/lock/lock.json       who drills, changed only under the kernel's lock of lock.json.mutex
<state>/receipts/<id>.json   with <id>.timer.json, which its timer (`drills.access.ontarget`) writes, and its fence
<state>/stop/<run>           who asked that run to stop
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from drills import lock as locks
from drills.access.local import TEMPORARY
from drills.access.remote import FailedThere
from drills.clock import Clock
from drills.custody import Found, Lock, LockLost, LockUnreadable, Outstanding, Unreadable, timer_of
from drills.errors import Refused
from drills.model import Host, Json, Receipt, Restored
from drills.receipts import Damaged, manual, parse, to_json, unreadable

COMMAND_TIMEOUT_S = 15.0
#: Of an undo beside its steps: to shut the fence, to let go of what is held, to start.
UNDO_TIMEOUT_S = 60.0
#: Of a step that does not say how long it may take.
STEP_TIMEOUT_S = 20.0
LOCK_TIMEOUT_S = 10.0
WATCHING = ("armed", "released")

#: Of a file that is being written: pid and start of its writer.
WRITER = re.compile(re.escape(TEMPORARY) + "([0-9]+)-([0-9]+)-")
#: $1 the lock's file, $2 its text as it was read, $3 the file that takes its place.
SWAP = '[ "$(cat "$1" 2>/dev/null)" = "$2" ] && if [ -s "$3" ]; then mv -f "$3" "$1"; else rm -f "$1"; fi'


class FileCustody:
    """Implements `Custody` in a folder of a host. `timer` is the program there that is told to arm, undo and disarm."""

    def __init__(self, host: Host, state_dir: str, target: str, *, timer: str = "drills.access.ontarget") -> None:
        self.host, self.state_dir, self.target, self._program = host, state_dir, target, timer

    # ---- the lock ------------------------------------------------------------------------------------

    def held(self) -> Lock | None:
        """Return the lock as it is; None when nobody holds it, LockUnreadable when it is damaged."""
        return self._lock(self._lock_text())

    def _lock(self, text: str | None) -> Lock | None:
        path = self._lock_file()
        return None if text is None else locks.parse(text, path, shlex.join(["rm", path]))

    def take(self, lock: Lock, clock: Clock) -> None:
        """Take the lock. Refused when it is held or when an earlier run is not put back."""
        locks.refuse_taken(self.target, self, clock)
        text = self._lock_text()
        locks.refuse_held(self.target, self._lock(text), clock)
        if not self._swap(text or "", json.dumps(asdict(lock)), lock.run):
            raise Refused(f"target {self.target}: another run took the lock at this moment; try again")

    def renew(self, lock: Lock, clock: Clock) -> None:  # noqa: ARG002 - of the protocol
        """See that the lock is still ours; a file needs no renewal (LockLost)."""
        try:
            held = self.held()
        except LockUnreadable as error:
            raise LockLost(str(error)) from None
        if held is None or held.run != lock.run:
            now = f"run {held.run} of {held.owner} has it" if held else "its file is gone"
            raise LockLost(f"target {self.target}: the lock of run {lock.run} was lost: {now}")

    def release(self, run: str) -> None:
        """Let the lock go if that run holds it."""
        text, held = None, None
        with suppress(LockUnreadable):  # for people to find out whose it is
            text = self._lock_text()
            held = self._lock(text)
        if held is not None and held.run == run:
            self._swap(text or "", "", run)
        else:  # of a driver that died while it took the lock
            self.host.remove(self._lock_file(run))

    def _lock_file(self, run: str | None = None) -> str:
        """Return where the lock lies, or where a run writes what takes its place."""
        return f"{self.state_dir}/lock/lock.json" + (f".{run}" if run else "")

    def _lock_text(self) -> str | None:
        path = self._lock_file()
        try:
            return self._read(path)
        except Damaged as error:
            raise locks.unreadable(path, str(error), self._removal(path)) from None

    def _swap(self, before: str, after: str, run: str) -> bool:
        """Change the lock from one text to another ("": nobody holds it), unless it is another one by now.

        Compared and changed under a lock of the kernel, which ends with whoever holds it.
        """
        path, new = self._lock_file(), self._lock_file(run)
        self.host.write(new, after)
        wait = ["flock", "-w", f"{LOCK_TIMEOUT_S / 2:g}", f"{path}.mutex"]
        done = self.host.run([*wait, "sh", "-c", SWAP, "sh", path, before, new], timeout_s=LOCK_TIMEOUT_S)
        self.host.remove(new)
        return done.rc == 0

    # ---- receipts ------------------------------------------------------------------------------------

    def outstanding(self) -> list[Outstanding]:
        """Return the receipts that lie on the host, oldest first. Refused when one of them cannot be read."""
        return self.found().all()

    def found(self) -> Found:
        """Return the receipts that lie on the host, and which of them cannot be read."""
        found = Found([], [])
        for file in self.host.list(self._receipts()):
            if file.endswith(".json") and not file.endswith(".timer.json") and not file.startswith("."):
                one = self._one(file.removesuffix(".json"))
                if isinstance(one, Outstanding):
                    found.outstanding.append(one)
                elif one is not None:
                    found.unreadable.append(one)
        return found

    def _one(self, name: str) -> Outstanding | Unreadable | None:
        path = f"{self._receipts()}/{name}.json"
        try:
            text = self._read(path)
            return None if text is None else Outstanding(parse(text, name), self._timer(path))
        except Damaged as error:
            return unreadable(name, path, error, self._removal(path))

    def _removal(self, path: str) -> str:
        """Return the command that takes away what lies there."""
        return shlex.join(["rm", "-r" if self.host.list(path) else "-f", path])

    def _read(self, path: str) -> str | None:
        """Return a file's text, None when it is not there. Raises Damaged for what is no file, on any machine."""
        try:
            return self.host.read(path)
        except OSError as error:
            raise Damaged(str(error.strerror)) from None
        except FailedThere as error:
            raise Damaged(str(error)) from None

    def _receipts(self) -> str:
        return f"{self.state_dir}/receipts"

    def arm(self, receipt: Receipt) -> Json:
        """Write the receipt to the host and start its timer there. Refused when it cannot be armed."""
        spec = self.receipt_file(receipt)
        self.host.write(spec, json.dumps(to_json(receipt)))
        answer = self._ontarget("arm", spec, COMMAND_TIMEOUT_S)
        if not answer.get("ok"):
            self._discard(receipt)
            why = answer.get("error", "no reason given")
            raise Refused(f"{self.host.name}: the on-target timer for {receipt.fault} could not be armed: {why}")
        return answer

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        """Carry out the undo steps on the host; returns the manual commands for what could not be done."""
        spec, text = self.receipt_file(receipt), json.dumps(to_json(receipt))
        if self.host.read(spec) != text:  # the journal outlived the target's copy, or that one is damaged
            self.host.write(spec, text)
        answer = self._ontarget("undo", spec, UNDO_TIMEOUT_S + _longest_s(receipt.undo))
        if answer.get("ok"):
            return Restored.CLEAN, []
        failed = [s for s in answer.get("steps", receipt.undo) if not s.get("ok")]
        return Restored.DIRTY, [manual(s, receipt.host) for s in failed] or [f"{answer.get('error')}"]

    def disarm(self, receipt: Receipt) -> bool:
        """End the timer and take the receipt away; only after the undo has been verified."""
        answer = self._ontarget("disarm", self.receipt_file(receipt), COMMAND_TIMEOUT_S)
        if answer.get("ok"):
            self._discard(receipt)
        return bool(answer.get("ok"))

    def receipt_file(self, receipt: Receipt) -> str:
        """Return where the receipt lies on the host."""
        return f"{self._receipts()}/{receipt.id}.json"

    def _discard(self, receipt: Receipt) -> None:
        base = self.receipt_file(receipt).removesuffix(".json")
        for suffix in ("timer.json", "disarm", "hold", "fence", "shut", "json"):  # found as long as anything is there
            self.host.remove(f"{base}.{suffix}")

    def _timer(self, spec: str) -> Json:
        """Return what the timer last said; one that says it watches and does not run any more is dead."""
        said = self._said(spec)
        if said.get("state") not in WATCHING or self._watches(said):
            return said
        said = self._said(spec)  # it may have come to its end between the two looks
        return {**said, "state": "dead"} if said.get("state") in WATCHING else said

    def _said(self, spec: str) -> Json:
        try:
            return timer_of(self._read(f"{spec.removesuffix('.json')}.timer.json"))
        except Damaged:
            return {"state": "unreadable"}

    def _watches(self, said: Json) -> bool:
        """Whether the timer is there: its unit, where it is one, and the process that holds its locks."""
        holds = "unit" not in said or (said["state"] == "armed" and said.get("pid") is not None)
        if holds and not self.host.alive(said["pid"], said["start"]):
            return False
        if (unit := said.get("unit")) is None:
            return True
        active = ["systemctl", "is-active", "--quiet", f"{unit}.timer", f"{unit}.service"]
        return self.host.run(active, timeout_s=COMMAND_TIMEOUT_S).rc == 0

    def _ontarget(self, command: str, spec: str, timeout_s: float) -> Json:
        done = self.host.run([self.host.python, "-m", self._program, command, spec], timeout_s=timeout_s)
        try:
            return dict(json.loads(done.out))
        except (ValueError, TypeError):
            why = "timed out" if done.timed_out else (done.err.strip().splitlines() or ["no output"])[-1]
            return {"ok": False, "error": f"{command}: status {done.rc}: {why}"}

    # ---- the stop button -----------------------------------------------------------------------------

    def ask_to_stop(self, run: str, who: str) -> None:
        """Lay down a file that the run looks for."""
        self.host.write(self._stop_file(run), who)

    def asked_to_stop(self, run: str) -> str | None:
        """Return who asked that run to stop, None when nobody did."""
        who = self.host.read(self._stop_file(run))
        return who.strip() if who else None

    def forget_stop(self, run: str) -> None:
        """Take that run's file away."""
        self.host.remove(self._stop_file(run))

    def _stop_file(self, run: str) -> str:
        return f"{self.state_dir}/stop/{run}"

    # ---- what nobody finished writing ----------------------------------------------------------------

    def sweep(self, receipts: Sequence[Receipt]) -> None:
        """Remove files that were being written when their writer died."""
        written = {str(Path(step["path"]).parent) for receipt in receipts for step in receipt.undo if "path" in step}
        ours = [self.state_dir, *(f"{self.state_dir}/{name}" for name in self.host.list(self.state_dir))]
        for folder in (*ours, *sorted(written)):
            for name in self.host.list(folder):
                writer = WRITER.match(name)
                if writer and not self.host.alive(int(writer[1]), int(writer[2])):
                    self.host.remove(f"{folder}/{name}")


def _longest_s(undo: Sequence[Json]) -> float:
    """Return how long these steps may take, each in its own time; those that go beside each other take it together."""
    longest = 0.0
    for beside, some in groupby(undo, key=lambda step: step.get("beside") is True):
        times = [float(step.get("timeout_s", STEP_TIMEOUT_S)) for step in some]
        longest += max(times) if beside else sum(times)
    return longest
