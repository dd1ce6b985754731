"""The attempt ledger: one line for every attempt that reached a replica, written when the attempt ends.

Stamps are CLOCK_MONOTONIC seconds. `first_byte` and `last_byte` are the response's, when they left towards the
client (after any delay); `connected` is when the connection to the replica was made, which on a kept-alive
connection is before `start`. The line is written before the last byte leaves: who saw the end finds the line.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from drills.errors import UsageError
from drills.plain import Json
from drills.wire import Head

#: What a drill's own probes say of themselves: they ask the replica and not the route, so they are in no ledger.
PROBE = "x-drill-probe"


@dataclass(eq=False)
class Attempt:
    """One request on its way through a proxy, and how it ended."""

    id: str | None
    method: str
    path: str
    start: float
    connected: float | None = None
    first_byte: float | None = None
    last_byte: float | None = None
    end: float | None = None
    status: int | None = None
    bytes: int = 0
    close: str = "open"
    probe: bool = False

    @property
    def logged(self) -> bool:
        """Only inference is logged: no health checks, no scrapes, no probes of drills."""
        return self.method == "POST" and self.path.startswith("/v1/") and not self.probe


class Ledger:
    """Appends to one file; several proxies may share it, since each line is one write."""

    def __init__(self, path: Path, replica: str, role: str) -> None:
        self._who = {"replica": replica, "role": role}
        self._open: set[Attempt] = set()
        self.closes: Counter[str] = Counter()
        self.lost = 0  # lines that could not be written
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"{path}: cannot write the ledger: {error.strerror}; choose another file") from None

    def begin(self, head: Head, *, start: float, connected: float | None) -> Attempt:
        """Open an attempt for a request."""
        attempt = Attempt(head.fields.get("x-request-id"), head.method, head.path, start, connected)
        attempt.probe = PROBE in head.fields
        if attempt.logged:
            self._open.add(attempt)
        return attempt

    def end(self, attempt: Attempt, close: str) -> None:
        """Close an attempt and write its line. A full disk costs the line, never the traffic."""
        attempt.end = time.monotonic()
        attempt.close = close
        if not attempt.logged:
            return
        self._open.discard(attempt)
        self.closes[close] += 1
        line = (json.dumps(self._line(attempt), separators=(",", ":")) + "\n").encode()
        try:
            whole = os.write(self._fd, line) == len(line)
        except OSError:
            whole = False
        if not whole:
            self.lost += 1
            if self.lost == 1:
                print("ledger: a line could not be written; make room on the disk", file=sys.stderr)

    def open(self) -> list[Json]:
        """Return the attempts that have not ended, oldest first."""
        return [self._line(attempt) for attempt in sorted(self._open, key=lambda attempt: attempt.start)]

    def flush(self) -> None:
        """Put everything written so far on the disk (a pipe has none)."""
        with contextlib.suppress(OSError):
            os.fsync(self._fd)

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        os.close(self._fd)

    def _line(self, attempt: Attempt) -> Json:
        return self._who | {
            "id": attempt.id,
            "method": attempt.method,
            "path": attempt.path,
            "start": _stamp(attempt.start),
            "connected": _stamp(attempt.connected),
            "first_byte": _stamp(attempt.first_byte),
            "last_byte": _stamp(attempt.last_byte),
            "end": _stamp(attempt.end),
            "status": attempt.status,
            "bytes": attempt.bytes,
            "close": attempt.close,
        }


def _stamp(mono: float | None) -> float | None:
    return None if mono is None else round(mono, 6)
