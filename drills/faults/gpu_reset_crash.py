"""The deed of a gpu-reset as a crash, step by step; each is in the journal, and every wait is bounded.

    gate.held → engine.killed → holders.gone → reset.begin → reset.end → device.verified → settings.restored

The reset runs detached on the host (`drills.faults.gpu_noted`). Where units of the host watch the GPU they are stopped
after the kill (units.paused), and started again before the gate opens (units.restored).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from drills.errors import DrillError, Refused
from drills.faults import gpu_noted, gpu_preflight
from drills.faults.common import still_the_one
from drills.faults.gpu_deed import POLL_S
from drills.faults.gpu_noted import NotedDeed
from drills.faults.gpu_pauses import START_TIMEOUT_S, Units
from drills.model import Context, HasUnits, Json, Receipt, Replica, Target
from drills.probes import gpu_host

TEARDOWN_TIMEOUT_S: Final = 60.0  # from the kill until nobody holds the GPU
#: From the kill until the settings are back; the way back waits for one that is under way.
DEED_S: Final = 2 * TEARDOWN_TIMEOUT_S + gpu_noted.GPU_S + START_TIMEOUT_S


class CrashDeed(NotedDeed):
    """One injection."""

    after = "the engine was killed"
    teardown_s = TEARDOWN_TIMEOUT_S
    look_again_s = POLL_S

    def __init__(self, target: Target, receipt: Receipt, ctx: Context) -> None:
        super().__init__(target, receipt, ctx)
        self.hands = Units(self, target.unit_host(receipt.host)) if isinstance(target, HasUnits) else None
        self.paused: dict[str, Json] = receipt.prior.get("paused", {})

    def go(self) -> None:
        """Go through all steps.

        Raises Refused before the deed; after it Stopped or DrillError while the GPU is as it was, and NotRestored
        when nobody knows how it is.
        """
        self._last_look()
        self.ctx.tell("inject.hit", {"receipt": self.receipt.id, "victims": [v["name"] for v in self.receipt.victims]})
        self._kill_engines()
        if self.hands and self.paused:
            self.hands.stop(self.paused, "units.paused")
        self.wait_until_gone()
        for uuid, base in self.bases.items():
            self.one_gpu(uuid, base)
            if not self.ctx.stopping():  # else revert, which does the same, is next
                self.restore_settings(uuid, base)
        if self.hands and self.paused and not self.ctx.stopping():
            self.hands.start(self.paused, "units.restored")

    def _last_look(self) -> None:
        """Refuse when anything changed since the aim: this is the last moment at which nothing was touched."""
        replicas = self.target.replicas()
        for victim in self.receipt.victims:
            if still_the_one(victim, replicas) is None:
                raise Refused(f"{victim['name']}: is no longer the replica that was aimed at; nothing was touched")
        self.refuse_begun()
        holders, victims = self.holders(), [r for r in replicas if self._is_victim(r)]
        reasons = list(gpu_preflight.of_holders(staying(self.target, self.receipt.host, holders, self.paused), victims))
        reasons += gpu_preflight.of_unheld(holders, victims)
        if reasons:
            raise Refused(f"{'; '.join(reasons)}; nothing was touched")
        for gate in self.receipt.holds:
            if gpu_host.gate_is_free(self.host, gate) is not False:
                raise Refused(f"gate {gate} is not held by the on-target timer; nothing was touched")
        self.step("gate.held", ok=True, gates=list(self.receipt.holds))

    def _is_victim(self, replica: Replica) -> bool:
        return any(v["name"] == replica.name for v in self.receipt.victims)

    def holders(self) -> list[Json]:
        """Return who has the GPUs open now."""
        return gpu_host.holders(self.target, self.receipt.host, list(self.bases))

    def _kill_engines(self) -> None:
        for victim in self.receipt.victims:
            hit = self.host.signal(victim["engine_pid"], victim["engine_start"], "KILL")
            self.step("engine.killed", ok=hit, replica=victim["name"], pid=victim["engine_pid"], signal="KILL")
            if not hit:
                raise DrillError(f"{victim['name']}: its engine (pid {victim['engine_pid']}) was gone before the kill")


def watchers(target: Target, host: str, gpus: Sequence[str], victims: Sequence[Replica]) -> dict[str, str]:
    """Return the units that watch these GPUs and are to be paused, with the run of each; none where there are none."""
    if not isinstance(target, HasUnits):
        return {}
    node = target.unit_host(host)
    return node.to_pause(node.survey(), gpus, [victim.name for victim in victims])


def staying(target: Target, host: str, held: list[Json], paused: Container[str]) -> list[Json]:
    """Return those of the holders who are of none of the units that are paused."""
    if not isinstance(target, HasUnits) or not held:
        return held
    going = {h["pid"] for h in target.unit_host(host).survey()["holders"] if h["unit"] in paused}
    return [h for h in held if h["pid"] not in going]
