"""One connection at a time: connect, send and receive with deadlines; and a pool of idle ones.

Reading is where a load client spends its time: each token is a wake-up. So a plain connection waits for its
descriptor and then reads once, and one timer for the whole exchange stands in for a timer for each read.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Any, Protocol

import gevent
from gevent import monkey
from gevent import socket as gsocket
from gevent import ssl as gssl

from drills.load.wire import Head, split_head

_RECEIVE_BYTES = 16384
#: Idle connections are dropped before the 5 s after which the engine's web server closes them.
_IDLE_MAX_S = 4.0
_READ, _WRITE = 1, 2  # event loop's names for what a descriptor is watched for
#: The standard library's own socket, also where it has been replaced by gevent's.
_RawSocket = monkey.get_original("socket", "socket")


class ConnectLate(Exception):
    """No connection within the connect time-out."""


class Silent(Exception):
    """Not one byte for the idle time-out."""


class Late(Exception):
    """The request's whole time is up."""


class Channel(Protocol):
    """A connected socket: bytes in, bytes out, no deadlines. All raise OSError only."""

    def read(self) -> bytes:
        """Wait for bytes and return them, b"" at the end."""

    def write(self, data: bytes) -> None:
        """Write all of it."""

    def shut(self) -> None:
        """Shut both directions, which wakes whoever waits in read or write."""

    def quiet(self) -> bool:
        """Return whether an idle connection is still open, with nothing to read."""

    def close(self) -> None:
        """Close it."""


class Plain:
    """TCP: wait for the descriptor, then read once; no try before and no timer beside it."""

    def __init__(self, sock: Any) -> None:
        self._sock = _RawSocket(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self._sock.setblocking(False)
        self._hub = gevent.get_hub()
        self._readable = self._hub.loop.io(self._sock.fileno(), _READ)

    def read(self) -> bytes:
        """See Channel."""
        while True:
            self._hub.wait(self._readable)
            try:
                data: bytes = self._sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            return data

    def write(self, data: bytes) -> None:
        """See Channel."""
        while True:
            with contextlib.suppress(BlockingIOError):
                data = data[self._sock.send(data) :]
            if not data:
                return
            writable = self._hub.loop.io(self._sock.fileno(), _WRITE)
            try:
                self._hub.wait(writable)
            finally:
                writable.close()

    def shut(self) -> None:
        """See Channel."""
        self._sock.shutdown(socket.SHUT_RDWR)

    def quiet(self) -> bool:
        """See Channel."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False  # closed, or bytes that nobody asked for

    def close(self) -> None:
        """See Channel."""
        self._readable.close()
        self._sock.close()


class Tls:
    """TLS, by gevent's own socket."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def read(self) -> bytes:
        """See Channel."""
        return bytes(self._sock.recv(_RECEIVE_BYTES))

    def write(self, data: bytes) -> None:
        """See Channel."""
        self._sock.sendall(data)

    def shut(self) -> None:
        """See Channel."""
        gsocket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # below TLS: there is no time for a farewell

    def quiet(self) -> bool:
        """See Channel. Session tickets may wait there, and cannot be looked at without taking them."""
        return True

    def close(self) -> None:
        """See Channel."""
        self._sock.close()


class Connection:
    """A channel with deadlines, for one exchange at a time. `stamp` is when the last bytes were received."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._alarm: Any = None
        self._rang: Exception | None = None  # why the exchange was given up
        self._idle_s = 0.0
        self._deadline = 0.0
        self.stamp = 0.0

    def begin(self, idle_s: float, deadline: float) -> None:
        """Begin an exchange: from now on sending and receiving end in Silent or Late when their time is up."""
        self._idle_s, self._deadline = idle_s, deadline
        self.stamp = time.monotonic()
        self._set_alarm()

    def hurry(self, within_s: float) -> None:
        """Bring the deadline forward."""
        self._deadline = min(self._deadline, time.monotonic() + within_s)
        self._set_alarm()

    def end(self) -> None:
        """End the exchange: no more deadlines."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def send(self, data: bytes) -> None:
        """Send all of it (OSError, Silent or Late)."""
        try:
            self._channel.write(data)
        except OSError:
            if self._rang is not None:
                raise self._rang from None
            raise

    def receive(self) -> bytes:
        """Return what has come in, b"" at the end of the connection (OSError, Silent or Late)."""
        try:
            data = self._channel.read()
        except OSError:
            if self._rang is not None:
                raise self._rang from None
            raise
        if not data and self._rang is not None:
            raise self._rang
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

    def usable(self) -> bool:
        """Return whether an idle connection is still open and quiet."""
        try:
            return time.monotonic() - self.stamp < _IDLE_MAX_S and self._channel.quiet()
        except OSError:
            return False

    def close(self) -> None:
        """Close it; never fails."""
        self.end()
        with contextlib.suppress(OSError):
            self._channel.close()

    def _set_alarm(self) -> None:
        self.end()
        due = min(self._deadline, self.stamp + self._idle_s)
        self._alarm = gevent.get_hub().loop.timer(max(due - time.monotonic(), 0.0))
        self._alarm.start(self._ring)

    def _ring(self) -> None:
        """Look whether the time is really up: bytes may have put the idle time-out off."""
        now = time.monotonic()
        if now >= self._deadline:
            self._rang = Late("the request's time is up")
        elif now >= self.stamp + self._idle_s:
            self._rang = Silent(f"no byte for {self._idle_s:g} s")
        else:
            self._set_alarm()
            return
        with contextlib.suppress(OSError):
            self._channel.shut()


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
        connection.end()
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
                    return Connection(self._channel(sock))
                except OSError as failed:
                    problem = failed
                    sock.close()
                except BaseException:
                    sock.close()
                    raise
            raise problem or OSError("no address")

    def _channel(self, sock: Any) -> Channel:
        return Tls(self._tls.wrap_socket(sock, server_hostname=self._host)) if self._tls else Plain(sock)

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
