"""The hands of others during a run: what they change ends it, what our own load or fault makes scale is watched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from drills.clock import Clock
from drills.errors import DrillError
from drills.model import Json, Receipt, Shared, Target
from drills.probes.http import ProbeError
from drills.probes.sampler import Job
from drills.tenure import ChangedByOthers

INTERVAL_S: Final = 2.0
#: An autoscaler scales down five minutes after the load is gone, and then pods have to end.
BACK_TIMEOUT_S: Final = 600.0
BACK_POLL_S: Final = 2.0
AUTOSCALER: Final = "autoscaler"


class Others:
    """Watches a target that others may change. `ours` returns the receipts of this run: what they did is no change."""

    def __init__(
        self, target: Target, tell: Callable[[str, Json], None], ours: Callable[[], Sequence[Receipt]]
    ) -> None:
        self._target, self.tell, self._ours = target, tell, ours
        self._lock = threading.Lock()
        self._told: dict[str, Json] = {}  # what differs now, by subject and what
        self._scaled: dict[str, Json] = {}
        self._by_others: Json | None = None

    def jobs(self) -> list[Job]:
        """Return the probe that looks; none where nobody else has hands on the target."""
        return [Job("others", self._target.name, INTERVAL_S, self.look)] if isinstance(self._target, Shared) else []

    def look(self) -> Json:
        """Look once, and tell what is new. Raises ProbeError while the target cannot be asked."""
        assert isinstance(self._target, Shared)
        try:
            changes = self._target.changes_by_others(self._ours())
        except DrillError as error:
            raise ProbeError(str(error)) from None
        now = {f"{one['subject']} {one['what']}": one for one in changes}
        with self._lock:
            for key, change in now.items():
                if self._told.get(key) != change:
                    self._note(key, change)
            for key in [key for key in self._scaled if key not in now]:
                self.tell("scaled.back", self._scaled.pop(key))
            self._told = now
        return {"changes": len(now)}

    def _note(self, key: str, change: Json) -> None:
        if change["by"] == AUTOSCALER:
            self._scaled[key] = change
            self.tell("scaled", change)
        else:
            self._by_others = self._by_others or change
            self.tell("changed_by_others", change)

    def raise_if_changed(self) -> None:
        """Raise ChangedByOthers when somebody else has changed the target."""
        with self._lock:
            if self._by_others is not None:
                raise ChangedByOthers(sentence(self._by_others))

    def scaled(self) -> bool:
        """Look again whether an autoscaler has changed something; where that cannot be asked, by the last look."""
        if self.jobs():
            self._look_again()
        return bool(self._still())

    def until_back(self, clock: Clock, *, stopping: Callable[[], bool], say: Callable[[str], None]) -> None:
        """Wait, bounded, until what has scaled is as it was. Tells `scaled.left` when it is not."""
        if not self._still():
            return
        deadline = clock.mono() + BACK_TIMEOUT_S
        say(f"waiting up to {BACK_TIMEOUT_S / 60:.0f} min until it is scaled back: {'; '.join(self._still())}")
        while self._still() and not stopping() and clock.mono() < deadline:
            clock.sleep(BACK_POLL_S)
            self._look_again()
        for change in self._scaled.values():
            self.tell("scaled.left", change)

    def _look_again(self) -> None:
        try:
            self.look()
        except ProbeError:  # it is asked again
            return

    def _still(self) -> list[str]:
        with self._lock:
            return [sentence(change) for change in self._scaled.values()]


def sentence(change: Json) -> str:
    """Say what has changed."""
    return f"{change['subject']}: {change['what']} {change['was']} → {change['now']}, by {change['by']}"
