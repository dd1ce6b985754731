"""Time and randomness, passed in, so that tests need no sleeping and runs carry a seed."""

from __future__ import annotations

import hashlib
import random
import time
from datetime import UTC, datetime


class Clock:
    """The machine's clocks. `mono` is CLOCK_MONOTONIC in seconds, `wall` is seconds since the epoch."""

    def mono(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Return the wall time in seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait that long."""
        if seconds > 0:
            time.sleep(seconds)


def utc(wall: float) -> str:
    """Return a wall time as ISO 8601 in UTC, with microseconds and Z."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def rng(seed: int, purpose: str) -> random.Random:
    """Return the random numbers of one purpose; purposes do not disturb each other's sequences."""
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8]))
