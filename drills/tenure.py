"""A run's hold on its target: the lock is taken, kept from a thread of its own, and let go."""

from __future__ import annotations

import threading
from collections.abc import Callable

from drills.clock import Clock
from drills.custody import Lock, LockLost
from drills.errors import DrillError, Unreachable
from drills.model import Embedded, Json, Target

KEEP_INTERVAL_S = 10.0
END_TIMEOUT_S = 20.0


class ChangedByOthers(DrillError):
    """Somebody else changed the target; the run is reverted and inconclusive."""


class Tenure:
    """Holds a target for one run. The thread goes on whatever the run is busy with: a deed, a revert, a slow answer."""

    def __init__(self, target: Target, lock: Lock, clock: Clock, note: Callable[[str, Json], None]) -> None:
        self.target, self.lock, self.clock, self.note = target, lock, clock, note
        self.problem: Exception | None = None  # what the thread met, for the run to raise
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="tenure", daemon=True)

    def begin(self) -> None:
        """Take the target's lock and keep it from now on. Raises Refused."""
        self.target.custody.take(self.lock, self.clock)
        self._thread.start()

    def look(self) -> None:
        """Raise what befell the hold: ChangedByOthers when the lock is another's, else what went wrong."""
        if isinstance(self.problem, LockLost):
            self.note("changed_by_others", {"lock": str(self.problem)})
            raise ChangedByOthers(str(self.problem))
        if self.problem is not None:
            raise self.problem

    def end(self, *, release: bool) -> bool:
        """End the thread; with `release` let the lock go, and forget who asked the run to stop.

        Returns whether the run has let it go: one that was lost before cannot be.
        """
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(END_TIMEOUT_S)
        if release:
            self.target.custody.forget_stop(self.lock.run)
            self.target.custody.release(self.lock.run)
        return release and not isinstance(self.problem, LockLost)

    def _keep(self) -> None:
        while self.problem is None:
            try:
                self.keep()
            except Exception as error:
                self.problem = error
            if self._over.wait(KEEP_INTERVAL_S):
                return

    def keep(self) -> None:
        """Show once that the driver lives. A target that cannot be asked now will be asked again."""
        try:
            self.target.custody.renew(self.lock, self.clock)
        except Unreachable as error:
            self.note("unreachable", {"asked": "lock", "reason": str(error)})
        if isinstance(self.target, Embedded):
            self.target.keep_alive()
