"""One connection through the proxy: framing, ledger and faults on the path of the bytes.

Requests go `inbox` → replica, responses go replica → `held` → client. With no fault on, nothing is ever held and a
piece of a stream costs one read, a few additions and one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, cast

from drills.ledger import Attempt
from drills.proxy_control import HonestHealth
from drills.wire import BadFraming, Framer, head_end, parse_head

if TYPE_CHECKING:
    from drills.proxy import Proxy

#: Bytes held per direction of a connection before the sender is paused.
HIGH_WATER = 1 << 20
#: Whoever has to show that a way leads through the proxy sends a word in it, and finds it among the proxy's `proofs`.
PROOF = "x-drill-proof"
#: How long a client that was let in before the replica refused may take to say which request it was (seconds).
REFUSED_GRACE_S = 0.05


@dataclass
class Piece:
    """Bytes of a response on their way to the client."""

    data: bytes
    at: float  # when they came
    body: bool  # holds bytes of the body
    done: bool  # ends the response


class Upstream(asyncio.Protocol):
    """The replica's side of a link."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def data_received(self, data: bytes) -> None:
        """Hand the bytes to the link."""
        self.link.answered(data)

    def eof_received(self) -> None:
        """FIN; the transport closes itself."""
        self.link.upstream_ended("upstream_fin")

    def connection_lost(self, exc: Exception | None) -> None:
        """RST when there is an error."""
        self.link.upstream_ended("upstream_reset" if exc else "upstream_fin")

    def pause_writing(self) -> None:
        """The replica reads slower than the client sends."""
        self.link.upstream_full = True
        self.link.flow()

    def resume_writing(self) -> None:
        """The replica has caught up."""
        self.link.upstream_full = False
        self.link.flow()


class Link(asyncio.Protocol):
    """One client connection and its upstream connection; one attempt at a time."""

    client: asyncio.Transport

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.faults = proxy.faults
        self.upstream: asyncio.Transport | None = None
        self.connected: float | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.refused = self.closed = self.opaque = self.answering = False
        self.spared = False  # no fault touches the present request
        self.inbox = bytearray()  # from the client, not passed on yet
        self.inbox_at = 0.0  # when its first byte came
        self.request: Framer | None = None  # the request that is being passed on
        self.response: Framer | None = None
        self.attempt: Attempt | None = None
        self.held: deque[Piece] = deque()  # from the replica, not passed on yet
        self.held_bytes = 0
        self.passed = 0.0  # when a piece last left
        self.ending = ""  # how the replica ended the connection, passed on behind what is held
        self.client_full = self.upstream_full = False
        self.timers: dict[str, asyncio.TimerHandle] = {}

    # ---- the client's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the replica; no byte is passed on before that."""
        self.client = cast(asyncio.Transport, transport)
        if not self.proxy.lets_in(transport.get_extra_info("peername")):
            self.reset("refused")
            return
        self.proxy.links.add(self)
        self.connecting = self.proxy.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            transport, _ = await self.proxy.loop.create_connection(lambda: Upstream(self), *self.proxy.upstream)
        except OSError:
            self.refused = True
            self.step()
            self._at("refused", monotonic() + REFUSED_GRACE_S, lambda: self.reset("refused"))
            return
        self.upstream, self.connected = transport, monotonic()
        if self.attempt is not None:
            self.attempt.connected = self.connected
        self.step()

    def data_received(self, data: bytes) -> None:
        """Take bytes of requests."""
        if not self.inbox:
            self.inbox_at = monotonic()
        self.inbox += data
        self.step()
        self.flow()

    def eof_received(self) -> None:
        """FIN from the client."""
        self.client_gone(reset=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or we closed it."""
        self.client_gone(reset=exc is not None)

    def pause_writing(self) -> None:
        """The client reads slower than the replica sends."""
        self.client_full = True
        self.flow()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.client_full = False
        self.flow()

    def flow(self) -> None:
        """Pause or resume reading on both sides by what the other side can take."""
        if self.closed:
            return
        _reading(self.client, not self.upstream_full and len(self.inbox) < HIGH_WATER)
        if self.upstream is not None:
            _reading(self.upstream, not self.client_full and self.held_bytes < HIGH_WATER)

    # ---- requests

    def step(self) -> None:
        """Pass request bytes on as far as framing and faults allow."""
        try:
            while self.inbox and not self.closed and self._step():
                pass
        except BadFraming:
            self.opaque = True
            self._step()

    def _step(self) -> bool:
        if self.faults.stall:
            return False
        if self.opaque:
            return self._send(len(self.inbox))
        if self.request is None and not self._begin():
            return False
        return self._forward()

    def _begin(self) -> bool:
        """Open the next attempt once its head is there; False when there is nothing to pass on now."""
        if self.attempt is not None:
            return False  # pipelined: the answer before it is not out yet
        end = head_end(self.inbox)
        if end < 0:
            return False
        head = parse_head(bytes(self.inbox[:end]))
        if PROOF in head.fields:
            self.proxy.proofs.append(head.fields[PROOF])
        asks_health = self.proxy.health is not None and head.method == "GET" and head.path == "/health"
        if asks_health and self.upstream is None and not self.refused:
            return False  # refused is an answer too, and no status
        self.attempt = self.proxy.ledger.begin(head, start=self.inbox_at, connected=self.connected)
        self.spared = self.attempt.probe or not head.path.startswith(self.proxy.options.only)
        if self.refused or self.faults.refuse:
            self.reset("refused")
            return False
        if asks_health and self.proxy.health is not None:
            del self.inbox[:end]
            self.answering = True
            self.proxy.spawn(self._answer_health(self.proxy.health))
            return False
        self.opaque = head.method == "CONNECT"
        self.request, self.response = Framer(), Framer(answers=head.method)
        return True

    def _forward(self) -> bool:
        """Pass on what has come of the current request; False when nothing can move now."""
        if self.request is None or self.upstream is None:
            return False
        if self.request.head is None and self.attempt is not None and not self.spared:
            due = self.attempt.start + self.faults.per_request_s
            if due > monotonic():
                self._at("request", due, self.step)
                return False
        used = self.request.feed(bytes(self.inbox))
        if self.request.done:
            self.request = None
        return self._send(used)

    def _send(self, count: int) -> bool:
        if self.upstream is None:
            return False
        self.upstream.write(bytes(self.inbox[:count]))
        del self.inbox[:count]
        self.inbox_at = monotonic()
        return True

    async def _answer_health(self, health: HonestHealth) -> None:
        ok = await health.check()
        if self.closed:
            return
        status = b"200 OK" if ok else b"503 Service Unavailable"
        self.client.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")
        self.answering, self.attempt = False, None
        if self.ending:
            self._end()
        self.step()

    # ---- responses

    def answered(self, data: bytes) -> None:
        """Take bytes of a response."""
        now = monotonic()
        if self.faults.on or self.held:
            self._hold(data, now)
            self.pump()
            self.flow()
        else:
            self._pass(self._piece(data, now))
        if self.opaque:
            self.step()

    def _piece(self, data: bytes, now: float) -> Piece:
        """Follow the response through these bytes."""
        response = self.response
        if response is None or self.opaque:
            return Piece(data, now, body=True, done=False)
        try:
            used = response.feed(data)
        except BadFraming:
            used = -1
        tunnel = response.head is not None and response.head.status == 101
        self.opaque = tunnel or used < len(data)
        return Piece(data, now, response.body, response.done)

    def _hold(self, data: bytes, now: float) -> None:
        """Queue the bytes, one piece for each piece of the body."""
        whole = self._piece(data, now)
        marks = self.response.marks if self.response is not None else []
        start = 0
        for end in [*marks, len(data)]:
            if end > start:
                self.held.append(Piece(data[start:end], now, whole.body, whole.done and end == len(data)))
            start = end
        self.held_bytes += len(data)

    def pump(self) -> None:
        """Let the pieces leave whose time has come; then pass on how the replica ended."""
        if self.faults.stall:
            return
        while self.held and not self.closed:
            first = self.attempt is not None and self.attempt.first_byte is None
            came = self.held[0].at
            due = came if self.spared else self.faults.response_due(came, self.passed, first=first)
            if due > monotonic():
                self._at("response", due, self.pump)
                return
            piece = self.held.popleft()
            self.held_bytes -= len(piece.data)
            self._pass(piece)
        self.flow()
        if self.ending and not self.held:
            self._end()

    def _pass(self, piece: Piece) -> None:
        """Write a piece to the client; the ledger's line comes before the last byte."""
        self.passed = monotonic()
        cut = self.faults.cut and piece.body and not self.spared
        data = piece.data[:-1] if cut and piece.done else piece.data
        attempt = self.attempt
        if attempt is not None:
            attempt.last_byte = self.passed
            if attempt.first_byte is None:
                attempt.first_byte = self.passed
            if attempt.status is None and self.response is not None and self.response.head is not None:
                attempt.status = self.response.head.status
            attempt.bytes += len(data)
        if cut:
            self.client.write(data)
            self.reset("cut")
        elif piece.done:
            self._close_attempt("complete")
            self.client.write(data)
            self.step()
        else:
            self.client.write(data)

    # ---- ends

    def upstream_ended(self, how: str) -> None:
        """The replica closed its side; the client hears of it behind what is held."""
        if self.closed or self.ending:
            return
        self.ending = how
        if not self.held and not self.answering and not self.faults.stall:
            self._end()

    def _end(self) -> None:
        whole = self.response is not None and self.response.until_close and self.ending == "upstream_fin"
        self._finish("complete" if whole else self.ending, reset=self.ending == "upstream_reset")

    def client_gone(self, *, reset: bool) -> None:
        """Close the replica's side at once, the way the client closed ours."""
        if not self.closed:
            self._finish("client_gone", reset=reset)

    def retire(self) -> None:
        """End a connection that carries no request at this moment."""
        idle = self.attempt is None and not (self.inbox or self.held or self.opaque)
        if idle and not self.closed:
            self._finish("complete", reset=False)

    def reset(self, close: str) -> None:
        """End both sides now, the client with RST."""
        if not self.closed:
            self._finish(close, reset=True)

    def _finish(self, close: str, *, reset: bool) -> None:
        self.closed = True
        self._close_attempt(close)
        self.proxy.links.discard(self)
        for timer in self.timers.values():
            timer.cancel()
        if self.connecting is not None and not self.connecting.done():
            self.connecting.cancel()
        self.held.clear()
        if reset:
            _reset(self.client)
        else:
            self.client.close()  # what is written still leaves, then FIN
        if self.upstream is not None:
            if reset and close == "client_gone":
                _reset(self.upstream)
            else:
                self.upstream.abort()

    def _close_attempt(self, close: str) -> None:
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self.proxy.ledger.end(attempt, close)

    def faults_changed(self) -> None:
        """Apply the faults as they are now to this connection."""
        if self.faults.cut and self.attempt is not None and not (self.answering or self.spared):
            self.reset("cut")
            return
        self.pump()
        if not self.closed:
            self.step()
            self.flow()

    def _at(self, name: str, due: float, call: Callable[[], None]) -> None:
        timer = self.timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        self.timers[name] = self.proxy.loop.call_at(due, call)


def _reading(transport: asyncio.Transport, want: bool) -> None:
    if transport.is_closing() or transport.is_reading() == want:
        return
    if want:
        transport.resume_reading()
    else:
        transport.pause_reading()


def _reset(transport: asyncio.Transport) -> None:
    """Close with RST; what has not left yet is dropped, as a dead peer would."""
    with contextlib.suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
