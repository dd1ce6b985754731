"""The drills that every rule for all drills is tried with on a cluster. A new fault joins by a line in the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TEMPLATE: Final = Path(__file__).parent / "experiments" / "cut.yaml"
#: Where all drills are alike.
BEFORE: Final = ("header", "lock.taken", "gate", "load.started", "phase")
DEED: Final = ("receipt", "inject.begin", "inject.hit", "inject.end", "proof.on", "revert.begin", "revert.end")
TIMED: Final = ("timer.armed", "timer.disarmed")


@dataclass(frozen=True)
class Case:
    """A fault as an experiment has it, where its driver may die on the way, and whether a victim is hurt for good."""

    fault: str
    points: tuple[str, ...]
    #: Whether the victim is another pod, or has restarted, afterwards.
    dies: bool = False


CASES: Final[Mapping[str, Case]] = {
    "noop": Case("noop: {victims: 1}", (*BEFORE, *DEED, *TIMED, "marker.written")),
    "pod-kill delete": Case("pod-kill: {victims: 1, how: delete}", (*DEED, "delete.sent"), dies=True),
    "pod-kill evict": Case("pod-kill: {victims: 1, how: evict}", (*DEED, "evict.sent"), dies=True),
    "pod-kill kill-process": Case("pod-kill: {victims: 1, how: kill-process}", (*DEED, *TIMED), dies=True),
    "engine-kill": Case("engine-kill: {victims: 1}", (*DEED, *TIMED, "engine.killed"), dies=True),
    "engine-hang": Case("engine-hang: {victims: 1}", (*DEED, *TIMED, "engine.stopped")),
    "packet-loss": Case("packet-loss: {victims: 1, mode: reject}", (*DEED, *TIMED, "rules.placed")),
    "upstream-delay": Case("upstream-delay: {mode: first_byte, delay: 2s}", (*DEED, *TIMED, "delay.on", "proxy.up")),
}


def experiment(name: str) -> str:
    """Return the experiment with that fault, as short as a drill can be."""
    return TEMPLATE.read_text().replace("FAULT", CASES[name].fault).replace("NAME", name.replace(" ", "-"))
