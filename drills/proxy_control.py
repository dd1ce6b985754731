"""The proxy's control port, and its honest answer to "are you healthy?".

GET /status            what it is, what is on, what is open
POST /faults           {"id", "mode", "delay_s": 5}; the same id again replaces the fault
DELETE /faults/ID      open streams go on at once; {"removed": false} when it was not on, or is there by its file
GET /ledger/open       the attempts that have not ended
POST /flush            the ledger is on the disk when this answers
"""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import TYPE_CHECKING, Any

from drills.plain import Json
from drills.proxy_faults import parse
from drills.wire import BadFraming, Framer, Head, parse_head

if TYPE_CHECKING:
    from drills.proxy import Proxy

#: How long the engine has for one token, and how long the answer stands for the next caller (seconds).
HEALTH_DEADLINE_S = 1.0
HEALTH_REUSE_S = 0.5
LATE = asyncio.TimeoutError  # a class of its own before Python 3.11

_COMMAND_DEADLINE_S = 5.0
_MAX_BODY = 64 * 1024
_WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}
_ROUTES = {"/status": "GET", "/ledger/open": "GET", "/faults": "POST", "/flush": "POST"}


class Control:
    """A very small HTTP server: one request a connection, JSON in and out."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            await asyncio.wait_for(self._serve(reader, writer), _COMMAND_DEADLINE_S)
        except (OSError, LATE, BadFraming, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever spoke is gone, or did not speak HTTP
        except asyncio.CancelledError:
            pass  # the proxy ends; swallowed because asyncio's streams print it (Python 3.11)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = parse_head(await reader.readuntil(b"\r\n\r\n"))
        length = head.fields.get("content-length", "0")
        body = await reader.readexactly(min(int(length), _MAX_BODY)) if length.isdigit() else b""
        status, answer = self.answer(head, body)
        raw = json.dumps(answer).encode()
        fields = f"content-type: application/json\r\ncontent-length: {len(raw)}\r\nconnection: close"
        writer.write(f"HTTP/1.1 {status} {_WORDS[status]}\r\n{fields}\r\n\r\n".encode() + raw)
        await writer.drain()

    def answer(self, head: Head, body: bytes) -> tuple[int, Any]:
        """Carry out one command; return the status and the JSON to answer with."""
        proxy, path, asked = self.proxy, head.path, (head.method, head.path)
        if asked == ("GET", "/status"):
            return 200, proxy.status()
        if asked == ("GET", "/ledger/open"):
            return 200, proxy.ledger.open()
        if asked == ("POST", "/flush"):
            proxy.ledger.flush()
            return 200, {"flushed": True, "lost": proxy.ledger.lost}
        if asked == ("POST", "/faults"):
            return self._add(body)
        if head.method == "DELETE" and path.startswith("/faults/"):
            removed = proxy.faults.remove(path.removeprefix("/faults/"))
            proxy.changed()
            return 200, {"removed": removed, "faults": proxy.faults.list()}
        if path in _ROUTES or path.startswith("/faults/"):
            return 405, {"error": f"{head.method} {path}: use {_ROUTES.get(path, 'DELETE')}"}
        return 404, {"error": f"no {path}; there are {', '.join(_ROUTES)} and /faults/ID"}

    def _add(self, body: bytes) -> tuple[int, Json]:
        try:
            fault = parse(json.loads(body), monotonic())
        except ValueError as error:
            return 400, {"error": f"POST /faults: {error}"}
        self.proxy.faults.add(fault)
        open_before = len(self.proxy.ledger.open())
        self.proxy.changed()
        return 200, {"id": fault.id, "mode": fault.mode, "delay_s": fault.delay_s, "open": open_before}


class HonestHealth:
    """Health by a real completion of one token, straight from the engine, past every fault of the proxy."""

    def __init__(self, upstream: tuple[str, int], model: str) -> None:
        self.upstream = upstream
        self._probe: asyncio.Task[bool] | None = None
        self._ended = 0.0
        ask = {"model": model, "prompt": "ok?", "max_tokens": 1, "temperature": 0}
        body = json.dumps(ask).encode()
        fields = f"host: {upstream[0]}:{upstream[1]}\r\ncontent-type: application/json\r\nconnection: close"
        self._request = (
            f"POST /v1/completions HTTP/1.1\r\n{fields}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )

    async def check(self) -> bool:
        """Return whether the engine completes; callers at the same time share one probe."""
        probe = self._probe
        if probe is None or (probe.done() and monotonic() - self._ended > HEALTH_REUSE_S):
            probe = self._probe = asyncio.create_task(self._run())
        return await asyncio.shield(probe)

    async def _run(self) -> bool:
        try:
            return await asyncio.wait_for(self._complete(), HEALTH_DEADLINE_S)
        except (OSError, LATE, ValueError):
            return False
        finally:
            self._ended = monotonic()

    async def _complete(self) -> bool:
        reader, writer = await asyncio.open_connection(*self.upstream)
        try:
            writer.write(self._request)
            framer, raw = Framer(answers="POST"), b""
            while not framer.done and (data := await reader.read(_MAX_BODY)):
                framer.feed(data)
                raw += data
        finally:
            writer.transport.abort()  # a probe that came too late must not go on costing the engine
        if framer.head is None or framer.head.status != 200:
            return False
        body = raw.partition(b"\r\n\r\n")[2]
        return _has_token(json.loads(body[body.find(b"{") : body.rfind(b"}") + 1]))  # also when it came as one chunk


def _has_token(answer: Any) -> bool:
    """Whether a completion holds an answer: an aborted one is a 200 too."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    return choices[0].get("finish_reason") != "abort"
