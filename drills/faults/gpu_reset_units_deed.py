"""The deed of the planned gpu-reset on a host, step by step; each is in the journal, and every wait is bounded.

    unit.stopped → units.paused → holders.gone → persistence.off → reset.begin → reset.end → device.verified →
    settings.restored → units.restored → unit.started

A stop is heard until a reset has begun; then the reset ends by itself, and the way back follows either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from drills.errors import DrillError, Refused
from drills.faults import reset_outcome
from drills.faults.common import still_the_one
from drills.faults.gpu_noted import NotedDeed
from drills.faults.gpu_pauses import Units
from drills.model import Context, Json, Receipt, Replica, Target
from drills.nodes import STOP_TIMEOUT_S, UnitHost
from drills.probes import gpu_host

TEARDOWN_TIMEOUT_S: Final = STOP_TIMEOUT_S  # from the stop of a unit until nobody holds the GPU
LOOK_AGAIN_S: Final = 1.0


class UnitsDeed(NotedDeed):
    """One injection."""

    after = "its unit was stopped"
    teardown_s = TEARDOWN_TIMEOUT_S
    look_again_s = LOOK_AGAIN_S
    waits = "Its unit stays stopped. "

    def __init__(
        self,
        target: Target,
        node: UnitHost,
        receipt: Receipt,
        ctx: Context,
        refuse: Callable[[Sequence[Replica]], None],
    ) -> None:
        super().__init__(target, receipt, ctx)
        self.node, self.refuse, self.hands = node, refuse, Units(self, node)
        self.units: dict[str, Json] = receipt.prior["units"]
        self.paused: dict[str, Json] = receipt.prior["paused"]

    def go(self) -> None:
        """Go through all steps.

        Raises Refused before the deed; after it Stopped or DrillError while the GPU is as it was, and NotRestored
        when nobody knows how it is.
        """
        self._last_look()
        self.ctx.tell("inject.hit", {"receipt": self.receipt.id, "victims": [v["name"] for v in self.receipt.victims]})
        self.hands.stop(self.units, "unit.stopped", within_s=STOP_TIMEOUT_S)
        self.hands.stop(self.paused, "units.paused")
        self.wait_until_gone()
        refused = [why for uuid, base in self.bases.items() if (why := self._one(uuid, base))]
        if not self.ctx.stopping():  # else revert, which does the same, is next
            self._let_back_in()
        if refused:
            raise DrillError("; ".join(refused))

    # ---- everybody leaves ------------------------------------------------------------------------------

    def _last_look(self) -> None:
        """Refuse when anything changed since the aim: this is the last moment at which nothing was touched."""
        replicas = self.target.replicas()
        found = [still_the_one(v, replicas) for v in self.receipt.victims]
        for victim, replica in zip(self.receipt.victims, found, strict=True):
            if replica is None:
                raise Refused(f"{victim['name']}: is no longer the replica that was aimed at; nothing was touched")
        self.refuse_begun()
        self.refuse([replica for replica in found if replica is not None])

    def holders(self) -> list[Json]:
        """Return who has the GPUs open now, but the daemon that leaves by itself."""
        survey = self.node.survey()
        if survey["errors"]:
            raise DrillError(f"gpu-reset: the GPU was not reset: {'; '.join(survey['errors'])}")
        return [h for h in survey["holders"] if h["gpu"] in self.bases and not gpu_host.is_daemon(h)]

    # ---- the reset -------------------------------------------------------------------------------------

    def _one(self, uuid: str, base: str) -> str:
        """Reset that GPU; returns why it was not, empty when it was."""
        self.suspend_persistence(uuid)
        outcome = self.one_gpu(uuid, base)
        return "" if outcome == "ok" else f"gpu-reset: GPU {uuid} was not reset: {reset_outcome.OUTCOMES[outcome]}"

    # ---- everybody comes back --------------------------------------------------------------------------

    def _let_back_in(self) -> None:
        """Settings, watchers, then the replica."""
        for uuid, base in self.bases.items():
            self.restore_settings(uuid, base)
        whys = self.hands.start(self.paused, "units.restored")
        expect_starts(self.node, self.receipt)
        whys += self.hands.start(self.units, "unit.started", list(self.bases.values()))
        if whys:
            raise DrillError(f"{self.node.name}: {'; '.join(whys)}")


def expect_starts(node: UnitHost, receipt: Receipt) -> None:
    """Say that the next start of each victim is the drill's own doing: it shows nothing about its supervisor."""
    for victim in receipt.victims:
        node.expect(victim["name"])
