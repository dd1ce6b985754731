"""One connection at a time: connect, send and receive with deadlines; and a pool of idle ones."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Any

import gevent
from gevent import socket as gsocket
from gevent import ssl as gssl

from drills.load.wire import Head, split_head

_RECEIVE_BYTES = 65536
#: Idle connections are dropped before the 5 s after which the engine's web server closes them.
_IDLE_MAX_S = 4.0


class ConnectLate(Exception):
    """No connection within the connect time-out."""


class Silent(Exception):
    """Not one byte for the idle time-out."""


class Late(Exception):
    """The request's whole time is up."""


class Connection:
    """A connected socket for one exchange. `stamp` is when the last bytes were received."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._idle_s = 0.0
        self.deadline = 0.0
        self.stamp = 0.0
        self.idle_since = 0.0

    def begin(self, idle_s: float, deadline: float) -> None:
        """Set the time-outs of the exchange that begins."""
        self._idle_s, self.deadline = idle_s, deadline
        self.stamp = time.monotonic()
        self._sock.settimeout(idle_s)

    def send(self, data: bytes) -> None:
        """Send all of it (OSError, Silent or Late)."""
        try:
            self._sock.settimeout(self._wait_s())
            self._sock.sendall(data)
        except TimeoutError:
            raise self._why() from None

    def receive(self) -> bytes:
        """Return what has come in, b"" at the end of the connection (OSError, Silent or Late)."""
        wait_s = self._wait_s()
        if wait_s != self._idle_s:
            self._sock.settimeout(wait_s)
        try:
            data: bytes = self._sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise self._why() from None
        self.stamp = time.monotonic()
        return data

    def head(self) -> tuple[Head, bytes]:
        """Return the response head and what came with it (also ConnectionResetError, WireError)."""
        got = b""
        while True:
            data = self.receive()
            if not data:
                raise ConnectionResetError("closed in the response head" if got else "closed before any response")
            got += data
            split = split_head(got)
            if split is not None:
                return split

    def _wait_s(self) -> float:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise Late("the request's time is up")
        return min(self._idle_s, left_s)

    def _why(self) -> Exception:
        if time.monotonic() >= self.deadline:
            return Late("the request's time is up")
        return Silent(f"no byte for {self._idle_s:g} s")

    def usable(self) -> bool:
        """Return whether an idle connection is still open and quiet."""
        if time.monotonic() - self.idle_since > _IDLE_MAX_S:
            return False
        if isinstance(self._sock, gssl.SSLSocket):
            return True  # bytes may wait there (session tickets) and cannot be looked at without taking them
        self._sock.settimeout(0.0)
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # closed, or bytes that nobody asked for

    def close(self) -> None:
        """Close it; never fails."""
        with contextlib.suppress(OSError):
            self._sock.close()


class Pool:
    """Connections to one host and port; the one used last is taken first."""

    def __init__(self, host: str, port: int, tls: Any = None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._idle: list[Connection] = []

    def take(self, connect_s: float, idle_s: float, deadline: float) -> Connection:
        """Return a connection, an idle one if there is one (OSError or ConnectLate)."""
        connection = self._reuse() or self._connect(connect_s)
        connection.begin(idle_s, deadline)
        return connection

    def give(self, connection: Connection) -> None:
        """Keep a connection for the next exchange."""
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _reuse(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable():
                return connection
            connection.close()
        return None

    def _connect(self, limit_s: float) -> Connection:
        late = ConnectLate(f"no connection within {limit_s:.3g} s")
        with gevent.Timeout(max(limit_s, 0.001), late):
            problem: OSError | None = None
            for family, address in self._addresses():
                sock = gsocket.socket(family, socket.SOCK_STREAM)
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.connect(address)
                    return Connection(self._tls.wrap_socket(sock, server_hostname=self._host) if self._tls else sock)
                except OSError as failed:
                    problem = failed
                    sock.close()
                except BaseException:
                    sock.close()
                    raise
            raise problem or OSError("no address")

    def _addresses(self) -> list[tuple[int, Any]]:
        """Return (family, address) to try; an address in digits needs no resolver."""
        try:
            socket.inet_pton(socket.AF_INET, self._host)
        except OSError:
            found = gsocket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            return [(entry[0], entry[4]) for entry in found]
        return [(socket.AF_INET, (self._host, self._port))]


def tls_context() -> Any:
    """Return a TLS context that checks names and certificates, for gevent sockets."""
    context = gssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    return context
