"""The drills that every rule for all drills is tried with on the hosts. A new fault joins by a line in the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Where all drills are alike.
BEFORE: Final = ("header", "lock.taken", "gate", "load.started", "phase")
DEED: Final = ("receipt", "timer.armed", "inject.begin", "inject.hit", "inject.end", "proof.on", "revert.begin")
AFTER: Final = ("timer.disarmed", "revert.end")
RESET: Final = ("engine.killed", "holders.gone", "reset.begin", "reset.end", "device.verified")


@dataclass(frozen=True)
class Case:
    """A fault as an experiment has it, and the events or steps of its own at which something may befall it."""

    fault: str
    steps: tuple[str, ...] = ()
    before: bool = False  # whether it stands for what is before every deed, too

    @property
    def points(self) -> tuple[str, ...]:
        """Return all of them."""
        return (*(BEFORE if self.before else ()), *DEED, *self.steps, *AFTER)


CASES: Final[Mapping[str, Case]] = {
    "noop": Case("noop: {victims: 1}", ("marker.written",), before=True),
    "pod-kill": Case("pod-kill: {victims: 1, how: kill-process}", ("kill-process.sent",)),
    "engine-kill": Case("engine-kill: {victims: 1}", ("engine.killed",)),
    "engine-hang": Case("engine-hang: {victims: 1}", ("engine.stopped",)),
    "packet-loss": Case("packet-loss: {victims: 1, mode: reject}", ("rules.placed",)),
    "upstream-delay": Case("upstream-delay: {mode: first_byte, delay: 2s}", ("delay.on", "proxy.up")),
    "gpu-reset crash": Case("gpu-reset: {victims: 1, how: crash}", ("gate.held", *RESET)),
    "gpu-reset planned": Case("gpu-reset: {victims: 1, how: planned}", RESET[1:]),
}
