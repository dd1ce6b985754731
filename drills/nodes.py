"""A machine that carries GPUs, as a fault sees it: what it says of itself, and what may be changed on it.

A node of a cluster is cordoned and resets by a job; a host with a service manager stops and starts its units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from drills.model import Host, Json, Replica

#: A unit that may take longer to stop is not stopped for a drill.
STOP_TIMEOUT_S: Final = 300.0


class GpuNode(Protocol):
    """A node of a cluster. A `step` is the undo step that puts it back (`drills.access.nodemarks`)."""

    name: str
    namespace: str  # of the jobs

    @property
    def host(self) -> Host:
        """Return the helper there, made now if there is none. Raises Refused."""

    @property
    def smi(self) -> list[str]:
        """Return the command that runs the node's own nvidia-smi from the helper. Raises Refused."""

    def refusals(self, victims: Sequence[Replica]) -> list[str]:
        """Return why nobody may work on the node now, or could come back to it, a sentence each. Reads only."""

    def state(self) -> Json:
        """Return {"unschedulable", "allocatable": GPUs or None, "labels": those of NVIDIA, "marks"} of the node."""

    def pausable(self) -> dict[str, str]:
        """Return the labels by which what watches the GPUs is paused, with the values they have."""

    def operand(self, title: str) -> str | None:
        """Return what can be paused and has processes of that title; None for everybody else's."""

    def look(self) -> Json:
        """Return what the node's GPUs say of themselves (`drills.probes.gpu`)."""

    def survey(self) -> Json:
        """Return which GPUs there are and who holds them (`drills.access.gpunodes`)."""

    def cordon(self, step: Json) -> None:
        """Mark the node, and cordon it unless it is cordoned already. Raises Refused for the mark of another run."""

    def pause(self, step: Json) -> None:
        """Pause what the step's labels name."""

    def unpause(self, step: Json) -> None:
        """Give the labels their values back."""

    def progress(self, step: Json, reset: str, human: str | None = None) -> None:
        """Note on the node how far the reset is, and why a person has to look; without one, DrillError if not ours."""

    def offers_again(self, step: Json, stopping: Callable[[], bool]) -> int | None:
        """Wait, bounded, until the node offers as many GPUs as before; returns how many it offers."""

    def put_back(self, step: Json) -> str | None:
        """Put the node back at once; returns what keeps it from that."""

    def gone(self) -> bool:
        """Whether the cluster has no such node any more."""

    def refused(self, since_wall: float) -> list[tuple[str, str]]:
        """Return name and UID of the target's pods that this node refused since then for want of a GPU."""

    def delete(self, pod: str, uid: str) -> None:
        """Delete a pod that the node refused, unless it is another by now."""

    def command_of_reset(self, uuid: str) -> list[str]:
        """Return the command that resets that GPU."""

    def begin_reset(self, job: str, uuid: str, *, run: str, limit_s: float) -> None:
        """Begin the reset, which nothing repeats. Refused when it was begun before."""

    def reset(self, job: str) -> Json | None:
        """Return {active, rc, text, began_s, ended_s} of a reset; None when it was not begun."""


class UnitHost(Protocol):
    """A host on which replicas are units of systemd. `uid` of a unit names its present run, as a replica's does.

    A unit is stopped only after a note of that was written there, and started again only while the note is there.
    """

    name: str

    @property
    def host(self) -> Host:
        """Return where commands run."""

    def refusals(self, victims: Sequence[Replica], *, stop: bool) -> list[str]:
        """Return why these replicas cannot be stopped (else: crashed) and come back, a sentence each. Reads only."""

    def stay_down(self, victims: Sequence[Replica], deed: str) -> list[str]:
        """Return which of them nobody starts again after a "kill", a sentence each. Reads only."""

    def survey(self) -> Json:
        """Return which GPUs there are and who holds them (`drills.access.gpunodes`)."""

    def unit_of(self, victim: str) -> str:
        """Return the unit of the replica of that name."""

    def units(self, names: Sequence[str]) -> dict[str, Json]:
        """Return {"uid", "state", "sub", "job": bool} of each unit; its state is systemd's own word."""

    def to_pause(self, survey: Json, gpus: Sequence[str], victims: Sequence[str]) -> dict[str, str]:
        """Return which units that may be paused are to be, with their uid: those that hold these GPUs, and declared."""

    def stop(self, unit: str, uid: str, note: str) -> None:
        """Write the note and have the unit stopped. Refused when it is another run of it by now."""

    @property
    def expect(self) -> Callable[[str], None]:
        """Return what is told the name of a replica before the drill itself starts its unit."""

    def command_of_start(self, unit: str, note: str, bases: Sequence[str] = ()) -> list[str]:
        """Return the command that starts it again if we stopped it, unless these GPUs are for a person to look at."""
