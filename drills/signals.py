"""SIGINT, SIGTERM and SIGHUP: while nothing is at stake they interrupt, during a drill they only set a flag."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from drills.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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

    def interrupt(name: str) -> None:
        raise Stopped(f"{name}: stopped {when}")

    with told(interrupt):
        yield
