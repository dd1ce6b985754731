"""What goes on around a drill: users, people on call, and others who work on the target.

`limits.stop_if` and changes by others end the run; begin and end are announced where people may be paged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drills.announce import Announcement
from drills.clock import Clock
from drills.errors import Stopped
from drills.model import Json, Receipt, Target
from drills.others import Others
from drills.probes.sampler import Job
from drills.stopif import StopIf

Tell = Callable[[str, Json], None]


class Surroundings:
    """The surroundings of one run. `tell` must have the line on disk or raise; `note` never raises."""

    def __init__(
        self, plan: Json, target: Target, clock: Clock, *, tell: Tell, note: Tell, ours: Callable[[], Sequence[Receipt]]
    ) -> None:
        self._clock, self.tell = clock, tell
        limits = (plan.get("target") or {}).get("limits") or {}
        self._stop_if = StopIf(limits.get("stop_if") or (), target, clock)
        self._others = Others(target, note, ours)
        self._announcement = Announcement(plan, target, clock, note)

    def begin(self, lasts_s: float) -> None:
        """Announce the drill to those whom it may page. Raises Refused."""
        self._announcement.begin(lasts_s)

    def jobs(self) -> list[Job]:
        """Return the probes that look around."""
        return [*self._stop_if.jobs(), *self._others.jobs()]

    def look_out(self) -> None:
        """Raise what ends the run: Stopped by `stop_if`, ChangedByOthers."""
        if tripped := self._stop_if.tripped():
            self.tell("guard", tripped)
            raise Stopped(f"guard stop_if: {tripped['query']}: {tripped['value']}")
        self._others.raise_if_changed()

    def scaled(self) -> bool:
        """Look again whether an autoscaler has changed the number of replicas."""
        return self._others.scaled()

    def end(self, *, stopping: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Announce the end, and wait, bounded, until what the drill made scale is scaled back."""
        self._announcement.end()
        self._others.until_back(self._clock, stopping=stopping, say=say)
