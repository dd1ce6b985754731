"""Custody of a target: who drills it, and what must be put back there.

It is kept at the target, where any driver finds it when another one, its machine and its journal are gone: as files on
a host, as objects in a cluster. Here is what all of these have in common; what is the same text or rule for all of them
is in `drills.lock` and `drills.receipts`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from drills import strictjson
from drills.errors import DrillError, Refused, Unreachable
from drills.strictjson import Shape, is_count, is_number, is_text

if TYPE_CHECKING:
    from drills.clock import Clock
    from drills.model import Json, Receipt, Restored


#: The last second that has a date; a wall time beyond it is none.
WALL_MAX: Final = 253402300799.0
PID_MAX: Final = 2**22


class LockLost(DrillError):
    """Somebody else holds the target now, or nobody: the run must end."""


class LockUnreadable(Refused):
    """The lock is damaged, so nobody can tell whether a run drills the target. The text says what to do."""


def is_wall(value: Any) -> bool:
    """Whether it is a wall time that has a date, seconds since the epoch."""
    return is_number(value) and 0 <= value <= WALL_MAX


def is_pid(value: Any) -> bool:
    """Whether a process can have that number."""
    return is_count(value) and 0 < value <= PID_MAX


def is_start(value: Any) -> bool:
    """Whether a process can have begun then, in clock ticks since boot."""
    return is_count(value) and 0 <= value <= strictjson.INT_MAX


def is_word(value: Any) -> bool:
    """Whether it is text that can be written to a file and be a path: not empty, no NUL, no half of a character."""
    return is_text(value) and "" != value == value.encode("utf-8", "ignore").decode() and "\0" not in value


@dataclass(frozen=True)
class Lock:
    """Who drills the target, from where, and until when at most."""

    run: str
    owner: str
    machine: str  # where pid and start mean something (`drills.lock.machine`)
    pid: int
    start: int
    taken_wall: float
    expires_wall: float  # who cannot look at the process takes it for gone after that
    folder: str  # the run folder, on the driver's machine


@dataclass(frozen=True)
class Outstanding:
    """A receipt that lies on a target, with what its timer says."""

    receipt: Receipt
    timer: Json  # {state, pid, start, unit, deadline_wall, at}; empty: there is none

    @property
    def timer_state(self) -> str:
        """armed | released | undone | undo failed | disarmed | failed | dead | unreadable | none."""
        return str(self.timer.get("state", "none"))

    def sentence(self) -> str:
        """Say in one line what is still to be put back."""
        names = ", ".join(str(v["name"]) for v in self.receipt.victims)
        off = {
            "armed": f"its timer undoes it at {_clock(self.timer.get('deadline_wall'))}",
            "released": f"reverted; its timer checks at {_clock(self.timer.get('deadline_wall'))}",
            "undone": f"undone by its timer at {_clock(self.timer.get('at'))}, not yet verified",
            "undo failed": "its timer could NOT undo it",
            "dead": "its timer was killed, so nothing undoes it by itself",
            "unreadable": "what its timer says cannot be read",
        }.get(self.timer_state, "no timer runs" if self.receipt.undo else "it leaves nothing to undo")
        return f"{self.receipt.fault} on {names} (run {self.receipt.run}): {off}"


@dataclass(frozen=True)
class Unreadable:
    """A receipt that lies on a target and cannot be read: what to do is for people to find out."""

    id: str  # of the receipt, by its name
    what: str  # a sentence: where, what, what to do
    remove: str  # the command that takes it away

    @property
    def run(self) -> str:
        """Return whose it is; "" when its name does not say so."""
        run, _, rest = self.id.partition("-")
        return run if rest else ""


@dataclass(frozen=True)
class Found:
    """What lies on a target: one receipt that cannot be read hides none of the others, nor does one silent machine."""

    outstanding: list[Outstanding]  # oldest first
    unreadable: list[Unreadable]
    silent: list[str] = field(default_factory=list)  # of a target's machines that do not answer: a sentence each

    def all(self) -> list[Outstanding]:
        """Return them. Refused when one of them cannot be read, Unreachable when a machine does not answer."""
        for one in self.unreadable:
            raise Refused(one.what)
        return self.known()

    def known(self) -> list[Outstanding]:
        """Return those that can be read. Unreachable when a machine does not answer: nobody knows what lies there."""
        for one in self.silent:
            raise Unreachable(one)
        return self.outstanding


_TIMER: Final[dict[str, Any]] = {"state": is_text, "deadline_wall": is_wall, "at?": is_wall}
_PROCESS: Final[Shape] = {**_TIMER, "pid": is_pid, "start": is_start}
#: A unit of systemd; the process, where there is one, holds its locks.
_UNIT: Final[Shape] = {**_TIMER, "unit": is_word, "pid?": is_pid, "start?": is_start}
_STATES: Final = frozenset({"armed", "released", "undone", "undo failed", "disarmed", "failed"})


def timer_of(text: str | None) -> Json:
    """Return what a timer's file says: nothing when it is not there, the state "unreadable" when it is damaged."""
    if text is None:
        return {}
    try:
        said = strictjson.loads(text.encode("utf-8", "replace"))
    except ValueError:
        return {"state": "unreadable"}
    shape = _UNIT if isinstance(said, dict) and "unit" in said else _PROCESS
    if strictjson.misfit(said, shape) or said["state"] not in _STATES:
        return {"state": "unreadable"}
    return dict(said)


class Custody(Protocol):
    """Lock, receipts with their timers, and stop button of one target. Every call has a deadline of its own.

    Any of them may raise `Unreachable`: the target cannot be asked at this moment. A run goes on without an answer to
    what it only asks (`renew`, `asked_to_stop`, `outstanding`); its on-target timers do not need it.
    """

    def held(self) -> Lock | None:
        """Return the lock as it is; None when nobody holds it. Whether its driver lives is for `lock.dead` to say.

        Raises LockUnreadable when it is damaged.
        """

    def take(self, lock: Lock, clock: Clock) -> None:
        """Take the target. Refused when it is held, when an earlier run is not put back, or another one is quicker.

        The lock of a driver that is gone is taken over, but only when nothing is left to put back. Of many who try at
        once one gets it.
        """

    def renew(self, lock: Lock, clock: Clock) -> None:
        """Say that the driver lives; called about every ten seconds, from a thread of its own.

        Raises LockLost when the target is not held by that run any more.
        """

    def release(self, run: str) -> None:
        """Let the lock go if that run holds it, and remove what it left of one that it was about to take."""

    def outstanding(self) -> list[Outstanding]:
        """Return the receipts that lie on the target, oldest first. Refused when one of them cannot be read."""

    def found(self) -> Found:
        """Return what lies on the target, and what of it cannot be read."""

    def arm(self, receipt: Receipt) -> Json:
        """Lay the receipt down at the target, start its timer there, and return {"ok": true, "pid", "start", ...}.

        A receipt with nothing to undo may do without a timer: then the pid is None.

        Refused, with nothing left behind, when the timer cannot be armed: then there must be no fault.
        """

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        """Carry out the undo steps; returns with it the manual commands for what could not be done.

        May be repeated, and works for a receipt that the target has lost. It lets go of what the timer holds; the timer
        itself watches on until `disarm`.
        """

    def disarm(self, receipt: Receipt) -> bool:
        """End the timer and take the receipt away, whether it is there or not; only after the undo was verified."""

    def ask_to_stop(self, run: str, who: str) -> None:
        """Ask a run to put everything back and end. `who` is for people."""

    def asked_to_stop(self, run: str) -> str | None:
        """Return who asked that run to stop, None when nobody did. Called each second of a run."""

    def forget_stop(self, run: str) -> None:
        """Take back what was asked of that run, if anything was."""

    def sweep(self, receipts: Sequence[Receipt]) -> None:
        """Remove what drivers that are gone left half written, there and where these receipts' undo steps lead."""


def _clock(wall: float | None) -> str:
    return "an unknown time" if wall is None else time.strftime("%H:%M:%S UTC", time.gmtime(wall))
