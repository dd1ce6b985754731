"""A lasting exec into a container, as a link for lines of JSON (`drills.access.linelink`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import websocket

from drills.access import kubeexec
from drills.access.kubeexec import ERROR, STDERR, STDIN, STDOUT
from drills.access.kubernetes import Api
from drills.access.kubetypes import ClusterAway
from drills.access.linelink import LineLink


class Link(LineLink):
    """One link. What goes wrong with it is a ClusterError."""

    def __init__(self, api: Api, namespace: str, pod: str, container: str, argv: Sequence[str]) -> None:
        def opened(timeout_s: float) -> _Exec:
            socket = kubeexec.opened(api, namespace, pod, container, tuple(argv), timeout_s=timeout_s, stdin=True)
            socket.settimeout(None)
            return _Exec(socket)

        super().__init__(f"link to pod {pod} in {namespace}", opened, unsent=ClusterAway, lost=ClusterAway)


class _Exec:
    """The channels of an exec as a pipe."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def send(self, line: bytes) -> None:
        """Send a line to its standard input."""
        try:
            self._socket.send_binary(bytes([STDIN]) + line)
        except websocket.WebSocketException as error:
            raise OSError(type(error).__name__) from None

    def recv(self) -> tuple[bool, bytes] | None:
        """Return what comes next of its two outputs, None once the command has ended."""
        while data := self._socket.recv():
            data = data.encode() if isinstance(data, str) else data
            if data[0] == ERROR:
                return None
            if data[0] in (STDOUT, STDERR):
                return data[0] == STDERR, data[1:]
        return None

    def shutdown(self) -> None:
        """End the exec."""
        self._socket.shutdown()
