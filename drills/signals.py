"""SIGINT, SIGTERM and SIGHUP: while nothing is at stake they interrupt, during a drill they only set a flag."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from drills.errors import DrillError, Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class StopFlag:
    """What signal handlers set, and nothing else. A second signal shortens waits, never the revert."""

    reason: str | None = None
    count: int = 0
    noticed: threading.Event = field(default_factory=threading.Event)

    def set(self, reason: str) -> None:
        """Ask the run to stop and put everything back."""
        self.reason = self.reason or reason
        self.count += 1
        self.noticed.set()


@contextmanager
def told(handler: Callable[[str], None]) -> Iterator[None]:
    """Hand the signal's name to `handler` instead of ending; the handlers before come back afterwards."""

    def handle(number: int, _frame: FrameType | None) -> None:
        handler(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def interrupting(when: str) -> Iterator[None]:
    """Raise Stopped on a signal; what was started is taken down on the way out. `when` completes the sentence."""
    raised: list[Stopped] = []

    def interrupt(name: str) -> None:
        raised.append(Stopped(f"{name}: stopped {when}"))
        raise raised[-1]

    with told(interrupt):
        try:
            yield
        except DrillError:
            raise
        except Exception as error:  # a library in whose middle it came may make an error of its own of it
            if raised:
                raise raised[0] from error
            raise
