"""The load process's end of the link to its driver: JSON lines over a socket pair.

A driver that says nothing for `SILENCE_S`, or is gone, means stop: load must not outlive who watches it.
Without a driver (started by hand) heartbeats go to stdout.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import gevent
from gevent import socket as gsocket

from drills.load.plan import FD_VARIABLE
from drills.model import Json

SILENCE_S = 5.0
_SEND_S = 1.0
_LINE_MAX = 65536


class Link:
    """Speaks to the driver; `stop(drain_s, why)` is called when the load is to end."""

    def __init__(self, stop: Callable[[float, str], None], silence_s: float = SILENCE_S) -> None:
        self._stop = stop
        self._silence_s = silence_s
        number = os.environ.get(FD_VARIABLE)
        self._reader = gsocket.socket(fileno=int(number)) if number else None
        # A second descriptor: the two directions have time-outs of their own.
        self._writer = gsocket.socket(fileno=os.dup(int(number))) if number else None
        if self._writer is not None:
            self._writer.settimeout(_SEND_S)

    def listen(self) -> None:
        """Start to follow the driver."""
        if self._reader is not None:
            gevent.spawn(self._listen, self._reader)

    def send(self, message: Json) -> None:
        """Send one line; a driver that is gone or does not read is no error here."""
        line = json.dumps(message, separators=(",", ":")) + "\n"
        if self._writer is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        try:
            self._writer.sendall(line.encode())
        except OSError as problem:
            print(f"the driver does not take messages: {problem}", file=sys.stderr, flush=True)

    def _listen(self, reader: gsocket.socket) -> None:
        got = b""
        while len(got) <= _LINE_MAX:
            data = self._receive(reader)
            if data is None:
                return self._stop(0.0, f"the driver said nothing for {self._silence_s:g} s")
            if not data:
                return self._stop(0.0, "the driver is gone")
            *lines, got = (got + data).split(b"\n")
            for line in lines:
                self._obey(line)
        self._stop(0.0, "the driver sends no lines")
        return None

    def _receive(self, reader: gsocket.socket) -> bytes | None:
        """Return what the driver sent, b"" when it is gone, None when it was silent too long."""
        # A frozen load process wakes with its timer run out and pings waiting: look before judging.
        for wait_s in (self._silence_s, 0.0):
            reader.settimeout(wait_s)
            try:
                return bytes(reader.recv(4096))
            except (TimeoutError, BlockingIOError):
                continue
            except OSError:
                return b""
        return None

    def _obey(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind, drain_s = message["type"], float(message.get("drain_s", 0.0))
        except (ValueError, TypeError, KeyError, AttributeError):
            print(f"not a message: {line[:80]!r}", file=sys.stderr, flush=True)
            return
        if kind == "stop":
            self._stop(drain_s, "the driver said stop")
