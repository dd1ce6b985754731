"""A lasting process on another machine: many calls to it, each a line of JSON, answers as they come.

A process for each call would start an interpreter for each look at a fault. The link holds nothing that matters: when
it breaks, whoever waits is told that the answer is not known, and the next call makes another one. What carries it is a
`Pipe`: an exec into a pod, a channel of SSH.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from drills.errors import DrillError, first_line
from drills.model import Json

ERR_KEPT: Final = 4000  # bytes


class Pipe(Protocol):
    """To the process and back."""

    def send(self, line: bytes) -> None:
        """Send a whole line (OSError: it has not arrived, not wholly at least)."""

    def recv(self) -> tuple[bool, bytes] | None:
        """Return what comes next and whether it is on standard error; None at the end. It may raise at the end, too."""

    def shutdown(self) -> None:
        """End it; whoever waits in `recv` is woken."""


@dataclass
class _Asked:
    way: _Way
    done: threading.Event = field(default_factory=threading.Event)
    answer: str | None = None
    late: bool = False


@dataclass
class _Way:
    """What belongs to one connection: the next one answers for nobody who asked by this one, nor ends with it."""

    asked: dict[int, _Asked] = field(default_factory=dict)
    said: bytearray = field(default_factory=bytearray)  # on its standard error
    opened_mono: float = field(default_factory=time.monotonic)


class LineLink:
    """One link. `ask` may be called from several threads.

    `opened` makes a pipe within a time in seconds; `unsent` is raised when nobody has carried an order out, since its
    line could not be sent or came too late, `lost` when its answer is not known.
    """

    def __init__(
        self,
        what: str,
        opened: Callable[[float], Pipe],
        *,
        unsent: Callable[[str], DrillError],
        lost: Callable[[str], DrillError],
    ) -> None:
        self._what, self._opened, self._unsent, self._lost = what, opened, unsent, lost
        self._lock = threading.Lock()
        self._pipe: Pipe | None = None
        self._number = 0
        self._way = _Way()

    def ask(self, order: Json, timeout_s: float) -> str | None:
        """Return the line that answers, None when none came in time. Raises when there can be none."""
        with self._lock:
            pipe = self._begun(timeout_s)
            asked = _Asked(self._way)
            self._number += 1
            number, self._way.asked[self._number] = self._number, asked
            sent_s = round(time.monotonic() - self._way.opened_mono, 3)
            self._send(pipe, json.dumps({**order, "n": number, "sent_s": sent_s}) + "\n")
        if not asked.done.wait(timeout_s):
            self.close()  # whatever comes of it later is no answer to anybody
            return None
        if asked.answer is None:
            words = bytes(asked.way.said).decode(errors="replace").strip().splitlines() or ["nobody knows why"]
            raise self._lost(f"{self._what}: broke, so the answer is not known: {words[-1][:200]}")
        if asked.late:
            self.close()  # by the next one orders may come in time
            raise self._unsent(f"{self._what}: an order came too late, and was not carried out")
        return asked.answer

    def close(self) -> None:
        """End the link; the process there ends with it, and what it has started does not."""
        with self._lock:
            pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with suppress(Exception):
                pipe.shutdown()

    # ---- inside --------------------------------------------------------------------------------------

    def _begun(self, timeout_s: float) -> Pipe:
        if self._pipe is None:
            self._pipe, self._way = self._opened(timeout_s), _Way()
            threading.Thread(target=self._read, args=(self._pipe, self._way), name=self._what, daemon=True).start()
        return self._pipe

    def _send(self, pipe: Pipe, line: str) -> None:
        try:
            pipe.send(line.encode())
        except OSError as error:
            self._pipe = None
            with suppress(Exception):  # half a line may be on its way
                pipe.shutdown()
            raise self._unsent(f"{self._what}: broke ({first_line(error)})") from None

    def _read(self, pipe: Pipe, way: _Way) -> None:
        """Hand out answers until the link ends; then tell whoever still waits."""
        lines = bytearray()
        with suppress(Exception):
            while got := pipe.recv():
                error, data = got
                if error:
                    way.said = (way.said + data)[-ERR_KEPT:]
                    continue
                lines += data
                *whole, rest = bytes(lines).split(b"\n")
                lines = bytearray(rest)
                for line in whole:
                    self._hand_out(line, way)
        with suppress(Exception):
            pipe.shutdown()
        with self._lock:
            if self._pipe is pipe:
                self._pipe = None
            left = list(way.asked.values())
            way.asked.clear()
        for asked in left:
            asked.done.set()

    def _hand_out(self, line: bytes, way: _Way) -> None:
        with suppress(ValueError, LookupError, TypeError):
            said = json.loads(line)
            with self._lock:
                asked = way.asked.pop(int(said["n"]), None) if "ok" in said else None
            if asked is not None:
                asked.answer, asked.late = line.decode(), said.get("late") is True
                asked.done.set()
