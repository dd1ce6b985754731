"""Custody in a cluster: a Lease and ConfigMaps in the target's own namespace."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from drills import lock as locks
from drills.access.kubernetes import Api
from drills.access.kubetypes import ClusterError
from drills.clock import Clock
from drills.cluster import cordon, helpers
from drills.cluster.lease import LeaseLock, name_of
from drills.cluster.nodework import NodeWork
from drills.cluster.receipts import LOCK, MANAGED, ReceiptMaps
from drills.custody import Found, Lock, Outstanding
from drills.errors import Refused, Unreachable
from drills.model import Json, Receipt, Restored
from drills.receipts import manual
from drills.targetfile import Helper as HelperFile

#: How long helpers live that a recovery has to make.
RECOVERY_S = 900.0


class ClusterCustody:
    """Implements `Custody`. A fault that leaves something to undo has its timers in helper pods on the nodes.

    `run` is whose helpers are meant now: those of the run that took the lock, or whose receipt is undone.
    """

    def __init__(self, api: Api, namespace: str, selector: str, target: str, helper: HelperFile | None = None) -> None:
        lease = name_of(selector)
        self.target, self.run = target, ""
        self._api, self._namespace, self._helper = api, namespace, helper
        self.labels = {LOCK: lease, **MANAGED}
        self._lives_s = RECOVERY_S
        self.nodes = NodeWork(self._helpers_of, target)
        self.lock = LeaseLock(api, namespace, lease, target)
        self.receipts = ReceiptMaps(api, namespace, lease)

    def held(self) -> Lock | None:
        """Return the lock as it is; None when nobody holds it, LockUnreadable when it is damaged."""
        return self.lock.held()

    def take(self, lock: Lock, clock: Clock) -> None:
        """Take the lock. Refused when it is held or when an earlier run is not put back."""
        locks.refuse_taken(self.target, self, clock)
        self.lock.take(lock, clock)
        self.run, self._lives_s = lock.run, lock.expires_wall - lock.taken_wall

    def renew(self, lock: Lock, clock: Clock) -> None:
        """Say that the driver lives (LockLost)."""
        self.lock.renew(lock, clock)

    def release(self, run: str) -> None:
        """End the run's helpers, then let the lock go if that run holds it."""
        if self._helper is not None:
            self.nodes.end(run)
        self.lock.release(run)
        if self.run == run:  # whoever looks at the target now makes no helper for it
            self.run = ""

    def outstanding(self) -> list[Outstanding]:
        """Return the receipts in the namespace, oldest first. Refused when one of them cannot be read."""
        return self.found().all()

    def found(self) -> Found:
        """Return the receipts in the namespace, and which of them cannot be read."""
        good, bad = self.receipts.found()
        return Found([Outstanding(receipt, self._timer(receipt)) for receipt in good], bad)

    def _timer(self, receipt: Receipt) -> Json:
        """Return what its timer says. Where that cannot be asked nobody knows, which is no reason to stop a run."""
        if not (receipt.undo or receipt.holds):
            return {}
        try:
            return self.nodes.timer(receipt)
        except Unreachable:
            raise
        except Refused:
            return {"state": "dead"}

    def arm(self, receipt: Receipt) -> Json:
        """Lay the receipt down and start its timers; there is none where there is nothing to undo."""
        timed = bool(receipt.undo or receipt.holds)
        if timed:
            self.nodes.helpers(receipt.run)  # refused before anything is written, where there can be none
        self.receipts.lay_down(receipt)
        if not timed:
            return {"ok": True, "pid": None, "start": None}
        try:
            return self.nodes.arm(receipt)
        except BaseException:
            with suppress(ClusterError):
                self.receipts.take_away(receipt)
            raise

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        """Carry out the undo steps: those on their nodes, then those of the API from here.

        A node is opened when it is as it was; one that does not answer keeps nobody from that, and is told last.
        """
        self.run = receipt.run
        rest = replace(receipt, undo=tuple(step for step in receipt.undo if step["do"] not in cordon.STEPS))
        restored, silent = Restored.CLEAN, None
        by_hand: list[str] = []
        try:
            if rest.undo or rest.holds:
                restored, by_hand = self.nodes.undo(rest)
        except Unreachable as error:
            silent = error
        failed = self._undo_here(receipt)
        if silent is not None:
            raise silent
        return (Restored.DIRTY if failed else restored), [*failed, *by_hand]

    def _undo_here(self, receipt: Receipt) -> list[str]:
        """Carry out the steps of the API, nodes first: a job tells how its reset ended, so it stays while one fails."""
        failed: list[str] = []
        here = [step for step in receipt.undo if step["do"] in cordon.STEPS]
        for step in sorted(here, key=lambda step: cordon.STEPS.index(step["do"])):
            if failed and step["do"] == "job":
                break
            if why := cordon.carry_out(self._api, step):
                failed += [f"# {why}", manual(step)]
        return failed

    def disarm(self, receipt: Receipt) -> bool:
        """End the timers and take the receipt away."""
        if (receipt.undo or receipt.holds) and not self.nodes.disarm(receipt):
            return False
        self.receipts.take_away(receipt)
        return True

    def ask_to_stop(self, run: str, who: str) -> None:
        """Note it on the Lease."""
        self.lock.ask_to_stop(run, who)

    def asked_to_stop(self, run: str) -> str | None:
        """Return who asked that run to stop, None when nobody did."""
        return self.lock.asked_to_stop(run)

    def forget_stop(self, run: str) -> None:
        """Take the note away."""
        self.lock.forget_stop(run)

    def sweep(self, receipts: Sequence[Receipt]) -> None:  # noqa: ARG002 - of the protocol
        """End the helpers of runs that are gone and have nothing left to put back."""
        if self._helper is None:
            return
        held, left = self.lock.held(), self.receipts.runs()
        for run in helpers.runs(self._api, self._namespace, self.labels):
            if run not in left and (held is None or held.run != run):
                self.nodes.end(run)

    def _helpers_of(self, run: str) -> helpers.Helpers:
        if self._helper is None:
            raise Refused(
                f"target {self.target}: what works on a node needs a helper: name its image in kubernetes.helper"
            )
        file = self._helper
        made = helpers.Helper(file.image, file.pull_secret, self._lives_s, file.service_account)
        return helpers.Helpers(self._api, self._namespace, made, run=run, labels=self.labels, clock=self._api.clock)
