"""The journal: numbered events, one JSON object a line, on disk before the run goes on.

    {"n":1,"time":"2026-11-30T02:16:35.123456Z","mono":1234.567890,"event":"phase","data":{...}}

A process that dies while it writes leaves at most one torn line at the end. Readers ignore it, and the
next writer (`drill recover`) cuts it off and goes on with the following number.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

from drills import files, strictjson
from drills.clock import Clock, utc
from drills.errors import EXIT_STOPPED, DrillError, FileProblem
from drills.model import Event, Json

#: A pipe that somebody put in its place must not keep a recovery waiting for a reader.
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
CLOSED = -1


class JournalError(DrillError):
    """The journal cannot be written; a run without one has to stop."""

    exit_code = EXIT_STOPPED


class JournalUnreadable(FileProblem):
    """A stored journal is missing or damaged."""


class Journal:
    """Appends events to one file; safe to call from several threads."""

    def __init__(self, path: Path | str, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        try:
            new = not self.path.exists()
            self._fd = os.open(self.path, FLAGS, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_SH)  # for `being_written`, until it is closed or its writer dies
            if new:
                _sync_folder(self.path.parent)
            self.last_n = self._mend()
        except OSError as exc:
            raise JournalError(f"{self.path}: the journal cannot be opened: {exc.strerror or exc}") from None

    def tell(self, event: str, data: Json) -> Event:
        """Append one event and return it once it is on disk; raises JournalError when it cannot be."""
        with self._lock:
            if self._fd == CLOSED:  # the number may be another file's by now
                raise JournalError(f"{self.path}: the journal is closed; {event} came after the end of its run")
            told = Event(self.last_n + 1, utc(self._clock.wall()), round(self._clock.mono(), 6), event, data)
            self._append((encode(dataclasses.asdict(told)) + "\n").encode("utf-8", "backslashreplace"))
            self.last_n = told.n
        return told

    def close(self) -> None:
        """Close the file, once; telling afterwards is an error (JournalError)."""
        with self._lock:
            fd, self._fd = self._fd, CLOSED
            if fd != CLOSED:
                os.close(fd)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
            os.fsync(self._fd)
        except OSError as exc:
            self._take_back(written)
            raise JournalError(
                f"{self.path}: the journal cannot be written: {exc.strerror}; free space in this folder, "
                f"then put back what is still changed with: drill recover"
            ) from None

    def _take_back(self, written: int) -> None:
        """Cut off half a line, so that a later event does not grow out of it."""
        if written:
            try:
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            except OSError:
                return  # nothing more can be done here; readers tolerate a torn last line

    def _mend(self) -> int:
        """Cut off a torn last line and return the last number in the file (0 for none)."""
        if not self.path.is_file():
            return 0
        whole = _whole_lines(files.read(self.path))
        if len(whole) != self.path.stat().st_size:
            os.ftruncate(self._fd, len(whole))
            os.fsync(self._fd)
        numbers = [event.n for event in _parse(whole, self.path)]
        return max(numbers, default=0)


def being_written(path: Path | str) -> bool:
    """Whether a process on this machine has the journal open to write; one that is not there has no writer."""
    try:
        with files.opened(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read(path: Path | str) -> list[Event]:
    """Return the events of a journal; a torn last line is left out. Raises JournalUnreadable for any other bad line.

    A `mono` that is no number is NaN; other numbers that are none are null.
    """
    try:
        content = files.read(path)
    except OSError as exc:
        raise JournalUnreadable(path, f"the journal cannot be read: {exc.strerror or exc}") from None
    return _parse(_whole_lines(content), Path(path))


def encode(value: Any) -> str:
    """Return compact strict JSON: what JSON has no word for (NaN, infinity, paths, sets) becomes text or a list."""
    return json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _parse(content: bytes, path: Path) -> list[Event]:
    return [_event(line, path, number) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]


def _event(line: bytes, path: Path, number: int) -> Event:
    try:
        raw = strictjson.loads(line)
        mono = raw["mono"] if strictjson.is_number(raw["mono"]) else math.nan
        return Event(int(raw["n"]), str(raw["time"]), float(mono), str(raw["event"]), dict(raw["data"]))
    except (ValueError, KeyError, TypeError):
        raise JournalUnreadable(path, "not a journal line; the file was changed or damaged", line=number) from None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
