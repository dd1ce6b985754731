"""Units that a reset stops on its host and starts again: who watches the GPU, and in the planned way the replica's own.

In a receipt they are {unit: {"uid", "note"}}: the run of the unit that is meant, and the file that says that it was
stopped by us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from drills.errors import DrillError, Unreachable
from drills.faults.gpu_deed import GpuDeed
from drills.model import Json
from drills.nodes import UnitHost

START_TIMEOUT_S: Final = 60.0  # longer than the program there waits
DEAD: Final = ("inactive", "failed")


def noted(folder: str, receipt: str, uid_of: Mapping[str, str]) -> dict[str, Json]:
    """Return units as a receipt has them."""
    return {unit: {"uid": uid, "note": f"{folder}/{receipt}-{unit}"} for unit, uid in uid_of.items()}


def start_steps(node: UnitHost, units: Mapping[str, Json], bases: Sequence[str] = ()) -> list[Json]:
    """Return the undo steps that start them again, the last one first; none while one of these GPUs is in question."""

    def step(unit: str, note: str) -> dict[str, Any]:
        return {"do": "run", "argv": node.command_of_start(unit, note, bases), "timeout_s": START_TIMEOUT_S}

    return [step(unit, one["note"]) for unit, one in units.items()]


class Units:
    """Stops and starts units for a deed, and tells its steps."""

    def __init__(self, deed: GpuDeed, node: UnitHost) -> None:
        self.deed, self.node, self.ctx = deed, node, deed.ctx

    def stop(self, units: Mapping[str, Json], step: str, *, within_s: float | None = None) -> None:
        """Stop these units and see that they are; whether a stop got there is seen by what became of its unit."""
        for unit, one in units.items():
            self.deed.step("unit.stopping", ok=None, unit=unit, note=one["note"])
            try:
                self.node.stop(unit, one["uid"], one["note"])
            except Unreachable as error:
                self.deed.step("link.lost", ok=None, reason=str(error))
        if units:
            self._await_stopped(units, within_s or min(self.deed.teardown_s, self.ctx.timeout_s))
        self.deed.step(step, ok=True, units=sorted(units))

    def _await_stopped(self, units: Mapping[str, Json], within_s: float) -> None:
        deadline = self.ctx.mono() + within_s
        while True:
            self.deed.heed_stop()
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
            self.ctx.sleep(self.deed.look_again_s)

    def start(self, units: Mapping[str, Json], step: str, bases: Sequence[str] = ()) -> list[str]:
        """Start those again that we stopped, the last one first; returns what keeps some of them from coming up."""
        whys = [why for unit, one in reversed(list(units.items())) if (why := self._start(unit, one["note"], bases))]
        self.deed.step(step, ok=not whys, units=sorted(units), reason="; ".join(whys) or None)
        return whys

    def _start(self, unit: str, note: str, bases: Sequence[str]) -> str | None:
        done = self.deed.host.run(self.node.command_of_start(unit, note, bases), timeout_s=START_TIMEOUT_S)
        return None if done.rc == 0 else (done.err.strip().splitlines() or [f"status {done.rc}"])[-1][:300]
