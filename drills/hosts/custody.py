"""Custody of GPU hosts: files on each machine. A run holds all of them or none; each has its part of a receipt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from drills import lock as locks
from drills.access.filecustody import FileCustody
from drills.clock import Clock
from drills.custody import Found, Lock, LockLost, LockUnreadable, Outstanding
from drills.errors import DrillError, Refused, Unreachable
from drills.hosts.machines import Machine, each
from drills.model import Receipt
from drills.parts import Parted, parts, whole
from drills.receipts import there

TIMER = "drills.access.unittimer"
#: Makes a folder that is ours alone, or says what is wrong with it.
OWN: Final = (
    "import pathlib, sys; from drills.access import unpack; "
    "sys.exit(unpack.own(pathlib.Path(sys.argv[1]), 'close it to others'))"
)
OWN_TIMEOUT_S: Final = 15.0


class HostsCustody(Parted):
    """Implements `Custody` on machines that are sorted the same for everybody, so that two runs cannot block for ever.

    A machine that does not answer hides what lies on it and nothing else.
    """

    def __init__(self, machines: Sequence[Machine], target: str, *, timer: str = TIMER) -> None:
        self.machines, self.target, self.run = tuple(machines), target, ""
        self._files = {m.name: FileCustody(m.host, m.custody_dir, target, timer=timer) for m in machines}

    def _keeper(self, run: str, name: str) -> FileCustody:  # noqa: ARG002 - of `Parted`
        try:
            return self._files[name]
        except KeyError:
            raise Refused(f"target {self.target}: no host '{name}' is declared any more") from None

    def _of(self, machine: Machine) -> FileCustody:
        return self._files[machine.name]

    # ---- the lock ------------------------------------------------------------------------------------

    def held(self) -> Lock | None:
        """Return the lock on any of the machines, that of a driver that lives first; None when nobody holds one."""
        answers = each(self.machines, lambda machine: self._of(machine).held())
        for error in answers.failed.values():
            if isinstance(error, LockUnreadable):
                raise error
        found = [lock for lock in answers.said.values() if lock is not None]
        if not found:
            answers.all()
            return None
        return min(found, key=lambda lock: locks.dead(lock, Clock()))

    def take(self, lock: Lock, clock: Clock) -> None:
        """Take all machines, one after the other. Refused, with none taken, when one of them is held."""
        taken: list[Machine] = []
        for machine in self.machines:
            try:
                _refuse_anybodys(machine)
                self._of(machine).take(lock, clock)
            except BaseException as error:
                for mine in (*taken, machine):  # what was just written for the one that is held, too
                    with suppress(DrillError):
                        self._of(mine).release(lock.run)
                if isinstance(error, DrillError) and not isinstance(error, Unreachable):
                    raise Refused(f"host {machine.name}: {error}") from None
                raise
            taken.append(machine)
        self.run = lock.run

    def renew(self, lock: Lock, clock: Clock) -> None:
        """See that the lock is still ours on each of them. LockLost outranks a machine that does not answer."""
        answers = each(self.machines, lambda machine: self._of(machine).renew(lock, clock))
        for name, error in answers.failed.items():
            if isinstance(error, LockLost):
                raise LockLost(f"host {name}: {error}") from None
        answers.all()

    def release(self, run: str) -> None:
        """Let the lock go where that run holds it; raises what kept one machine from that after the others did."""
        if self.run == run:
            self.run = ""
        each(self.machines, lambda machine: self._of(machine).release(run)).all()

    # ---- receipts ------------------------------------------------------------------------------------

    def outstanding(self) -> list[Outstanding]:
        """Return the receipts that lie on the machines, oldest first. Refused when one of them cannot be read."""
        return self.found().all()

    def found(self) -> Found:
        """Return the receipts that lie on the machines, what of them cannot be read, and who does not answer."""
        answers = each(self.machines, lambda machine: self._of(machine).found())
        mine = [(name, one) for name, found in answers.said.items() for one in found.outstanding]
        unreadable = [
            replace(bad, what=f"{name}: {bad.what}", remove=there(name, bad.remove))
            for name, found in answers.said.items()
            for bad in found.unreadable
        ]
        return Found(list(whole(mine)), unreadable, [str(error) for error in answers.failed.values()])

    def disarm(self, receipt: Receipt) -> bool:
        """End the timers and take the parts away. Raises Unreachable when all that is wrong is that one is silent."""
        of_each = parts(receipt)
        wanted = [machine for machine in self.machines if machine.name in of_each]
        answers = each(wanted, lambda machine: self._of(machine).disarm(of_each[machine.name]))
        return all(answers.said.values()) and all(answers.all().values())

    # ---- the stop button -----------------------------------------------------------------------------

    def ask_to_stop(self, run: str, who: str) -> None:
        """Lay down the file on each of them; one that answers is enough."""
        answers = each(self.machines, lambda machine: self._of(machine).ask_to_stop(run, who))
        if not answers.said:
            answers.all()

    def asked_to_stop(self, run: str) -> str | None:
        """Return who asked that run to stop, on any of them."""
        answers = each(self.machines, lambda machine: self._of(machine).asked_to_stop(run))
        if who := next((who for who in answers.said.values() if who), None):
            return who
        answers.all()
        return None

    def forget_stop(self, run: str) -> None:
        """Take that run's files away; one that stays means nothing to anybody else."""
        each(self.machines, lambda machine: self._of(machine).forget_stop(run))

    def sweep(self, receipts: Sequence[Receipt]) -> None:
        """Remove files that were being written when their writer died, where that can be seen."""
        split = [parts(receipt) for receipt in receipts]
        each(self.machines, lambda m: self._of(m).sweep([part[m.name] for part in split if m.name in part]))
        elsewhere = [machine for machine in self.machines if machine.state_dir != machine.custody_dir]
        each(elsewhere, lambda m: FileCustody(m.host, m.state_dir, self.target).sweep([]))


def _refuse_anybodys(machine: Machine) -> None:
    """Refuse a machine where others could put something of theirs into custody; state_dir was looked at before."""
    if machine.state_dir == machine.custody_dir:
        return
    done = machine.host.run([machine.host.python, "-c", OWN, machine.custody_dir], timeout_s=OWN_TIMEOUT_S)
    if done.rc != 0 or done.timed_out:
        why = "no answer in time" if done.timed_out else (done.err.strip().splitlines() or [f"status {done.rc}"])[-1]
        raise Refused(f"receipts and lock cannot be kept in {machine.custody_dir}: {why[:200]}")
