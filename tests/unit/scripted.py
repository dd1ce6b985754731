"""A real server on port 0 whose every answer is written out by the test."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from types import TracebackType

from tests import load_engine as engine

#: Answers one request: (connection, number of the request from 0); returns whether to keep the connection.
Script = Callable[[socket.socket, int], bool]


class Server:
    """Serves until the `with` block ends; `requests` holds what was asked, `connections` counts them."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self._script, self._tls = script, tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.closed = threading.Semaphore(0)  # released once for each connection this side has closed
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Server:
        self._spawn(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._sockets.append(connection)
            self._converse(connection)
        except OSError:
            connection.close()  # the client did not like the handshake
        finally:
            self.closed.release()

    def _converse(self, connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                try:
                    request = _receive(connection)
                    if not request:
                        return
                    with self._lock:
                        number = len(self.requests)
                        self.requests.append(request)
                    if not self._script(connection, number):
                        return
                except OSError:
                    return


def _receive(connection: socket.socket) -> bytes:
    """Return one whole request, b"" at the end of the connection."""
    got = b""
    while True:
        end = got.find(b"\r\n\r\n")
        if end >= 0:
            length = re.search(rb"content-length: *(\d+)", got[:end], re.IGNORECASE)
            if len(got) >= end + 4 + int(length[1] if length else 0):
                return got
        data = connection.recv(65536)
        if not data:
            return b""
        got += data


def reset(connection: socket.socket) -> bool:
    """End the connection by RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    return False


def silence(connection: socket.socket) -> bool:
    """Say nothing until the client has had enough."""
    while connection.recv(4096):
        pass
    return False


def answer(tokens: int = 8, asked: int | None = None, model: str = "lab-chat", *header: bytes) -> bytes:
    """Return a whole streamed answer of numbered tokens."""
    events = [engine.event(model)]
    events += [engine.event(model, f"t{n} ", "length" if n == tokens - 1 else None) for n in range(tokens)]
    events.append(engine.tail(model, asked or tokens))
    return engine.head(b"200 OK", b"text/event-stream", engine.CHUNKED, *header) + b"".join(
        [engine.chunk(event) for event in events] + [b"0\r\n\r\n"]
    )


def sends(*parts: bytes, keep: bool = False) -> Script:
    """Return a script that answers every request with these bytes."""

    def script(connection: socket.socket, number: int) -> bool:
        for part in parts:
            connection.sendall(part)
        return keep

    return script


def in_turn(*scripts: Script) -> Script:
    """Return a script that plays one of `scripts` per request, then the last one for ever."""
    return lambda connection, number: scripts[min(number, len(scripts) - 1)](connection, number)
