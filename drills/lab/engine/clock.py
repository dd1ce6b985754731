"""How fast the emulated GPU computes: by the SM clock in the state file of the GPU stand-ins.

A real engine's step grows less than its clock falls where memory is what it waits for; this one takes the whole of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from drills.lab.gpu import state

LOOK_AGAIN_S: Final = 0.5


class Clock:
    """The clock of one GPU, named by UUID or else by its device file; without a state file always the highest."""

    def __init__(self, state_file: str | None, uuid: str | None, device: str | None = None) -> None:
        self.path = Path(state_file) if state_file else None
        self.names = {"uuid": uuid, "device": device}
        self.factor = 1.0
        self._due = 0.0
        self._seen = 0

    def slowdown(self, now: float) -> float:
        """Return by how much longer a step takes than at the highest clock; `now` is CLOCK_MONOTONIC."""
        if self.path is not None and now >= self._due:
            self._due = now + LOOK_AGAIN_S
            self._look(self.path)
        return self.factor

    def _look(self, path: Path) -> None:
        """Read the clock when the file has changed; one that cannot be read, or tells no clock, changes nothing."""
        try:
            changed = path.stat().st_mtime_ns
            if changed == self._seen:
                return
            key, name = next((key, name) for key, name in self.names.items() if name)
            [gpu] = [gpu for gpu in state.read(path)["gpus"] if gpu[key] == name]
            self.factor = max(1.0, gpu["sm_clock_max_mhz"] / state.sm_clock_mhz(gpu))
            self._seen = changed
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, StopIteration):
            return
