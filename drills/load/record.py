"""One record for every arrival, as one line of requests.ndjson.

Times are CLOCK_MONOTONIC seconds. The record's own stamps are those of its last attempt, except `sent`,
which is the first attempt's: latency counts from `intended`, whatever was tried in between.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drills.errors import FileProblem
from drills.model import Json, Outcome

#: Error classes of an attempt or a record.
ERRORS = ("refused", "reset", "timeout", "http_5xx", "http_4xx", "sse_error", "protocol", "dns")


@dataclass(slots=True)
class Attempt:
    """One request on the wire. `outcome` is empty while it is open."""

    attempt: int
    id: str
    sent: float
    headers: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    end: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    status: int | None = None


@dataclass(slots=True)
class Record:
    """How one arrival ended."""

    arrival: int
    session: int
    turn: int
    intended: float
    wall: float  # UTC epoch of `intended`
    outcome: Outcome
    tokens_asked: int
    sent: float | None = None
    headers: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    end: float | None = None
    error: str | None = None
    status: int | None = None
    detail: str = ""
    model: str | None = None
    cached: bool = False
    tokens: int | None = None  # by the answer's own usage
    finish: str | None = None
    done: bool = False
    lag: float | None = None  # intended to sent (or to shed)
    attempts: list[Attempt] = field(default_factory=list)
    chunks: list[float] = field(default_factory=list)  # ms since intended, one per chunk with content
    dup: bool = False

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the intended start to the first token; None when none came."""
        return None if self.first_token is None else self.first_token - self.intended

    def line(self) -> str:
        """Return the record as one JSON line, newline included."""
        data = {name: _plain(getattr(self, name)) for name in _FIELDS}
        data["attempts"] = [{name: _plain(getattr(a, name)) for name in _ATTEMPT_FIELDS} for a in self.attempts]
        data["chunks"] = [round(ms, 2) for ms in self.chunks]
        return json.dumps(data, separators=(",", ":")) + "\n"

    @classmethod
    def of(cls, data: Json) -> Record:
        """Return the record of one parsed line; other JSON raises one of Python's own errors."""
        attempts = [Attempt(**{**a, "outcome": _outcome(a.get("outcome"))}) for a in data.get("attempts", [])]
        return cls(**{**data, "outcome": Outcome(data["outcome"]), "attempts": attempts})


_FIELDS = tuple(f.name for f in dataclasses.fields(Record))
_ATTEMPT_FIELDS = tuple(f.name for f in dataclasses.fields(Attempt))


def _plain(value: Any) -> Any:
    return round(value, 6) if type(value) is float else value


def _outcome(value: Any) -> Outcome | None:
    return None if value is None else Outcome(value)


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a file; a torn last line (the writer was killed) is left out.

    A bad line anywhere else is a FileProblem with its number.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Record.of(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as problem:
                what = f"is no record ({problem}); the file was changed after the run"
                raise FileProblem(path, what, line=number) from None


class Writer:
    """Appends records to a file; `flush` makes them visible, `close` makes them durable."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1 << 20)
        self.count = 0

    def write(self, record: Record) -> None:
        """Append one record (OSError when the disk is full)."""
        self._file.write(record.line())
        self.count += 1

    def flush(self) -> None:
        """Hand what was written to the system (OSError when the disk is full)."""
        self._file.flush()

    def close(self) -> None:
        """Flush, fsync and close."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
