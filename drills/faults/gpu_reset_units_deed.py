"""The deed of the planned gpu-reset on a host, step by step; each is in the journal, and every wait is bounded.

    unit.stopped → units.paused → holders.gone → persistence.off → reset.begin → reset.end → device.verified →
    settings.restored → units.restored → unit.started

A stop is heard until a reset has begun; then the reset ends by itself, and the way back follows either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from drills.errors import DrillError, Refused, Unreachable
from drills.faults import reset_outcome
from drills.faults.common import still_the_one
from drills.faults.gpu_noted import NotedDeed
from drills.model import Context, Json, Receipt, Replica, Target
from drills.nodes import UnitHost
from drills.probes import gpu_host

TEARDOWN_TIMEOUT_S: Final = 300.0  # from the stop of a unit until nobody holds the GPU; also bounded by the run
LOOK_AGAIN_S: Final = 1.0
START_TIMEOUT_S: Final = 60.0  # longer than the program there waits
DEAD: Final = ("inactive", "failed")


class UnitsDeed(NotedDeed):
    """One injection. `units` and `paused` are {unit: {"uid", "note"}}, as the receipt has them."""

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
        self.node, self.refuse = node, refuse
        self.units: dict[str, Json] = receipt.prior["units"]
        self.paused: dict[str, Json] = receipt.prior["paused"]

    def go(self) -> None:
        """Go through all steps.

        Raises Refused before the deed; after it Stopped or DrillError while the GPU is as it was, and NotRestored
        when nobody knows how it is.
        """
        self._last_look()
        self.ctx.tell("inject.hit", {"receipt": self.receipt.id, "victims": [v["name"] for v in self.receipt.victims]})
        self._stop(self.units, "unit.stopped")
        self._stop(self.paused, "units.paused")
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

    def _stop(self, units: Mapping[str, Json], step: str) -> None:
        """Stop these units and see that they are; whether a stop got there is seen by what became of its unit."""
        for unit, one in units.items():
            self.step("unit.stopping", ok=None, unit=unit, note=one["note"])
            try:
                self.node.stop(unit, one["uid"], one["note"])
            except Unreachable as error:
                self.step("link.lost", ok=None, reason=str(error))
        if units:
            self._await_stopped(units)
        self.step(step, ok=True, units=sorted(units))

    def _await_stopped(self, units: Mapping[str, Json]) -> None:
        deadline = self.ctx.mono() + min(self.teardown_s, self.ctx.timeout_s)
        while True:
            self.heed_stop()
            try:
                now = self.node.units(list(units))
            except Unreachable:  # they stop without us
                if self.ctx.mono() > deadline:
                    raise
            else:
                up = {unit: said for unit, said in now.items() if said["state"] not in DEAD or said["job"]}
                if not up:
                    return
                idle = [u for u, said in up.items() if said["state"] == "active" and not said["job"]]
                if idle or self.ctx.mono() > deadline:
                    states = "; ".join(f"{unit} is {said['state']} ({said['sub']})" for unit, said in up.items())
                    raise DrillError(f"gpu-reset: the GPU was not reset: told to stop, and {states}")
            self.ctx.sleep(self.look_again_s)

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
        for step, units in (("units.restored", self.paused), ("unit.started", self.units)):
            bases = list(self.bases.values()) if units is self.units else []
            if units is self.units:
                expect_starts(self.node, self.receipt)
            whys = [why for unit, one in reversed(units.items()) if (why := self._start(unit, one["note"], bases))]
            self.step(step, ok=not whys, units=sorted(units), reason="; ".join(whys) or None)
            if whys:
                raise DrillError(f"{self.node.name}: {'; '.join(whys)}")

    def _start(self, unit: str, note: str, bases: Sequence[str]) -> str | None:
        done = self.host.run(self.node.command_of_start(unit, note, bases), timeout_s=START_TIMEOUT_S)
        return None if done.rc == 0 else (done.err.strip().splitlines() or [f"status {done.rc}"])[-1][:300]


def expect_starts(node: UnitHost, receipt: Receipt) -> None:
    """Say that the next start of each victim is the drill's own doing: it shows nothing about its supervisor."""
    for victim in receipt.victims:
        node.expect(victim["name"])
