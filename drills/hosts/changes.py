"""What happens to the units while a run goes on, as numbered events: the difference between one look and the next."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from drills.hosts.units import Process, Seen
from drills.model import Json


@dataclass
class _Known:
    """A replica as it was last seen; `seen` is the last look in which its process was there."""

    seen: Seen
    here: bool
    ready: bool

    @property
    def process(self) -> tuple[str, Process | None]:
        return self.seen.uid, self.seen.main if self.here else None


class Changes:
    """Takes in looks at replicas, from any thread, and tells what is different.

    started   a main process is there that was not before   gone   it is not there any more
    ready, notready   as whoever asks its health endpoint sees it
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._events: list[Json] = []
        self._ours: set[str] = set()

    def expect(self, name: str) -> None:
        """Say that the next start of that replica is the drill's own doing."""
        with self._lock:
            self._ours.add(name)

    def after(self, number: int) -> list[Json]:
        """Return the events after that number."""
        with self._lock:
            return self._events[number:]

    def take(self, name: str, role: str, seen: Seen, *, ready: bool) -> None:
        """Take in one look at a replica."""
        with self._lock:
            known = self._known.get(name)
            if known is None:
                self._known[name] = _Known(seen, seen.main is not None, ready)
                return
            before, was_ready = known.process, known.ready
            now = (seen.uid, seen.main)
            another = seen.main is not None and now != before
            left = before[1] is not None and now != before
            if was_ready and (left or not ready):
                self._say(name, role, known.seen, "notready", None)
            if left:
                self._say(name, role, known.seen, "gone", None)
            if another:
                self._say(name, role, seen, "started", self._by(name, known.seen, seen))
            if ready and (another or left or not was_ready):
                self._say(name, role, seen, "ready", None)
            self._known[name] = _Known(seen if seen.main else known.seen, seen.main is not None, ready)

    def _by(self, name: str, before: Seen, now: Seen) -> str | None:
        """Return who started it: systemd counts what it starts again by itself, and nobody else's starts."""
        if name in self._ours:
            self._ours.discard(name)
            return "drill"
        return "supervisor" if now.restarts > before.restarts else None

    def _say(self, name: str, role: str, seen: Seen, change: str, by: str | None) -> None:
        pid, start = seen.main or (None, None)
        engine_pid, engine_start = seen.engine or (None, None)
        event: Json = {"n": len(self._events) + 1, "mono": time.monotonic(), "replica": name, "role": role}
        event |= {"change": change, "uid": seen.uid, "pid": pid, "start": start, "restarts": seen.restarts, "by": by}
        event |= {"engine_pid": engine_pid, "engine_start": engine_start, "unit": seen.unit, "source": "systemd"}
        self._events.append(event)
