"""Custody in a cluster: a Lease and ConfigMaps in the target's own namespace."""

from __future__ import annotations

from collections.abc import Sequence

from drills import lock as locks
from drills.access.kubernetes import Api
from drills.clock import Clock
from drills.cluster.lease import LeaseLock, name_of
from drills.cluster.receipts import ReceiptMaps
from drills.custody import Lock, Outstanding
from drills.errors import Refused
from drills.model import Json, Receipt, Restored
from drills.receipts import manual


class ClusterCustody:
    """Implements `Custody` for faults that leave nothing to undo; others need a timer on the node."""

    def __init__(self, api: Api, namespace: str, selector: str, target: str) -> None:
        lease = name_of(selector)
        self.target = target
        self.lock = LeaseLock(api, namespace, lease, target)
        self.receipts = ReceiptMaps(api, namespace, lease)

    def held(self) -> Lock | None:
        """Return the lock as it is; None when nobody holds it."""
        return self.lock.held()

    def take(self, lock: Lock, clock: Clock) -> None:
        """Take the lock. Refused when it is held or when an earlier run is not put back."""
        locks.refuse_leftovers(self.target, self.outstanding())
        self.lock.take(lock, clock)

    def renew(self, lock: Lock, clock: Clock) -> None:
        """Say that the driver lives (LockLost)."""
        self.lock.renew(lock, clock)

    def release(self, run: str) -> None:
        """Let the lock go if that run holds it."""
        self.lock.release(run)

    def outstanding(self) -> list[Outstanding]:
        """Return the receipts in the namespace, oldest first."""
        return [Outstanding(receipt, {}) for receipt in self.receipts.all()]

    def arm(self, receipt: Receipt) -> Json:
        """Lay the receipt down; there is no timer where there is nothing to undo."""
        if receipt.undo or receipt.holds:
            raise Refused(f"{receipt.fault}: needs a timer on the node, which is not in this version")
        self.receipts.lay_down(receipt)
        return {"ok": True, "pid": None, "start": None}

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        """Undo nothing; a receipt of another version with something to undo is for people."""
        if receipt.undo:
            return Restored.DIRTY, [manual(step) for step in receipt.undo]
        return Restored.CLEAN, []

    def disarm(self, receipt: Receipt) -> bool:
        """Take the receipt away."""
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

    def sweep(self, receipts: Sequence[Receipt]) -> None:
        """Do nothing: the API server writes objects whole or not at all."""
