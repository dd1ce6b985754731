"""noop: the control. It goes through every step, leaves a marker file while it is on, and harms nothing.

A service that "fails" a noop drill has a problem, or a drill, of its own. Copy this file to begin a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from drills import receipts
from drills.faults.common import FaultParams, bystanders, receipt_of, refuse_others, untouched
from drills.model import Context, Observation, Receipt, Replica, Restored, Target


class Noop:
    """A held fault without an effect on the service."""

    name: ClassVar[str] = "noop"
    held: ClassVar[bool] = True
    effect: ClassVar[bool] = False

    class Params(FaultParams):
        """victims: how many replicas to pretend to harm."""

    def __init__(self, params: Params, kind: str) -> None:
        self.params, self.kind = params, kind

    def needs(self) -> frozenset[str]:
        """Return that something can be laid down beside the replicas."""
        return frozenset({"NodeAccess"})

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:  # noqa: ARG002
        """Return no reason to refuse."""
        return []

    def aim(self, target: Target, victims: Sequence[Replica], *, run: str, receipt: str, deadline_s: float) -> Receipt:
        """Name the marker file that will be the only change."""
        marker = f"{target.state_dir_of(victims[0].host)}/{receipt}.marker"
        prior = {"bystanders": bystanders(target, victims), "marker": marker, "marker_present": False}
        undo = [{"do": "remove", "path": marker}]
        return receipt_of(
            self, target, victims, run=run, receipt=receipt, deadline_s=deadline_s, prior=prior, undo=undo
        )

    def inject(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        """Write the marker file, if the victims are still those that were aimed at."""
        refuse_others(receipt, target.replicas())
        ctx.tell("inject.hit", {"receipt": receipt.id, "victims": [v["name"] for v in receipt.victims]})
        target.host(receipt.host).write(receipt.prior["marker"], receipt.id)
        ctx.tell("inject.step", {"receipt": receipt.id, "step": "marker.written", "ok": True})

    def observe(self, target: Target, receipt: Receipt, ctx: Context) -> Observation:  # noqa: ARG002
        """Look for the marker file, and that nobody was touched."""
        found = target.host(receipt.host).read(receipt.prior["marker"])
        evidence = {"what": "marker file", "path": receipt.prior["marker"], "present": found is not None}
        return Observation(found == receipt.id, (evidence,), untouched(receipt.prior["bystanders"], target.replicas()))

    def revert(self, target: Target, receipt: Receipt, ctx: Context) -> Restored:
        """Remove the marker file."""
        return receipts.revert(target, receipt, ctx)
