"""A lasting exec into a container: many calls to one process there, each a line of JSON, answers as they come.

A process for each call would start an interpreter for each look at a fault. The link holds nothing that matters: when
it breaks, whoever waits is told that the answer is not known, and the next call makes another one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import websocket

from drills.access import kubeexec
from drills.access.kubeexec import ERROR, STDERR, STDIN, STDOUT
from drills.access.kubernetes import Api
from drills.access.kubetypes import ClusterAway
from drills.model import Json

ERR_KEPT: Final = 4000  # bytes


@dataclass
class _Asked:
    way: _Way
    done: threading.Event = field(default_factory=threading.Event)
    answer: str | None = None


@dataclass
class _Way:
    """What belongs to one connection: the next one answers for nobody who asked by this one, nor ends with it."""

    asked: dict[int, _Asked] = field(default_factory=dict)
    said: bytearray = field(default_factory=bytearray)  # on its standard error


class Link:
    """One link. `ask` may be called from several threads."""

    def __init__(self, api: Api, namespace: str, pod: str, container: str, argv: Sequence[str]) -> None:
        self._api, self._where, self._argv = api, (namespace, pod, container), tuple(argv)
        self._what = f"link to pod {pod} in {namespace}"
        self._lock = threading.Lock()
        self._socket: Any = None
        self._number = 0
        self._way = _Way()

    def ask(self, order: Json, timeout_s: float) -> str | None:
        """Return the line that answers, None when none came in time. Raises ClusterError when there can be none."""
        with self._lock:
            if self._socket is None:
                self._begin(timeout_s)
            asked = _Asked(self._way)
            self._number += 1
            number, self._way.asked[self._number] = self._number, asked
            self._send(json.dumps({**order, "n": number}) + "\n")
        if not asked.done.wait(timeout_s):
            self.close()  # whatever comes of it later is no answer to anybody
            return None
        if asked.answer is None:
            words = bytes(asked.way.said).decode(errors="replace").strip().splitlines() or ["nobody knows why"]
            raise ClusterAway(f"{self._what}: broke, so the answer is not known: {words[-1][:200]}")
        return asked.answer

    def close(self) -> None:
        """End the link; the process there ends with it, and what it has started does not."""
        with self._lock:
            socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(Exception):
                socket.shutdown()

    # ---- inside --------------------------------------------------------------------------------------

    def _begin(self, timeout_s: float) -> None:
        self._socket = kubeexec.opened(self._api, *self._where, self._argv, timeout_s=timeout_s, stdin=True)
        self._socket.settimeout(None)
        self._way = _Way()
        threading.Thread(target=self._read, args=(self._socket, self._way), name=self._what, daemon=True).start()

    def _send(self, line: str) -> None:
        try:
            self._socket.send_binary(bytes([STDIN]) + line.encode())
        except (websocket.WebSocketException, OSError) as error:
            self._socket = None
            raise ClusterAway(f"{self._what}: broke ({type(error).__name__})") from None

    def _read(self, socket: Any, way: _Way) -> None:
        """Hand out answers until the link ends; then tell whoever still waits."""
        lines = bytearray()
        with suppress(Exception):
            while data := socket.recv():
                data = data.encode() if isinstance(data, str) else data
                if data[0] == STDERR:
                    way.said += data[1 : 1 + ERR_KEPT]
                elif data[0] == ERROR:
                    break
                elif data[0] == STDOUT:
                    lines += data[1:]
                    *whole, rest = bytes(lines).split(b"\n")
                    lines = bytearray(rest)
                    for line in whole:
                        self._hand_out(line, way)
        with suppress(Exception):
            socket.shutdown()
        with self._lock:
            if self._socket is socket:
                self._socket = None
            left = list(way.asked.values())
            way.asked.clear()
        for asked in left:
            asked.done.set()

    def _hand_out(self, line: bytes, way: _Way) -> None:
        with suppress(ValueError, LookupError, TypeError):
            number = int(json.loads(line)["n"])
            with self._lock:
                asked = way.asked.pop(number, None)
            if asked is not None:
                asked.answer = line.decode()
                asked.done.set()
