"""A small OpenAI-compatible engine that tells the truth about what it did, and breaks on demand.

    python -m tests.load_engine [--ttft-ms 20] [--itl-ms 2] [--fault MODE,… --every N]

Prints its port. Every N-th generation request meets a fault, in turn; the others are answered as vLLM answers,
with as many tokens as asked, numbered `t0 t1 …`. GET /log gives one JSON object per generation request:
id, recv, first, last (monotonic seconds), tokens sent, fault.

One process, one thread; a stamp is taken right before the write it describes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import struct
import sys
import time
from typing import Any

RST = struct.pack("ii", 1, 0)
CUT_AFTER = 3  # tokens sent before a stream breaks
#: What a fault is, by what the client must call it.
FAULTS = {
    "reset": "error/reset",  # RST on receipt
    "reset-mid": "error/reset",
    "close": "error/reset",  # FIN on receipt, no byte
    "silent": "hung",  # accepted, never a byte
    "hang": "hung",  # headers, then nothing
    "hang-mid": "hung",
    "error": "error/sse_error",  # in-band error event, then [DONE]
    "early": "truncated",  # proper end of the body, no finish reason, no [DONE]
    "half": "truncated",  # FIN in the middle of a chunk
    "lie": "truncated",  # finish reason stop, [DONE], fewer tokens than asked
    "no-done": "truncated",
    "abort": "truncated",  # how vLLM ends streams on SIGTERM
    "garbage": "error/protocol",  # no HTTP
    "garbage-event": "error/protocol",
    "bad-chunk": "error/protocol",
    "503": "error/http_5xx",
    "429": "error/http_4xx",
    "404": "error/http_4xx",
    "fallback": "degraded",  # another model answers
    "cached": "degraded",  # x-cache: hit
    "repeat": "ok",  # tokens come twice: complete, and `dup`
    "bytewise": "ok",  # every byte in a segment of its own
    "merged": "ok",  # all events in one chunk
    "document": "ok",  # one JSON document with a content length
    "until-close": "ok",  # a body that ends with the connection
    "close-after": "ok",  # closes a connection it said it would keep
}
STATUSES = {"503": b"503 Service Unavailable", "429": b"429 Too Many Requests", "404": b"404 Not Found"}
ID = re.compile(rb"\r\nx-request-id: *([^\r]+)", re.IGNORECASE)


def event(model: str, text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    """Return one SSE event as vLLM writes it."""
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices}
    return b"data: " + json.dumps({**data, **more}, separators=(",", ":")).encode() + b"\n\n"


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 9, "total_tokens": 9 + tokens, "completion_tokens": tokens}


def tail(model: str, tokens: int) -> bytes:
    """Return the last events of a whole answer."""
    return event(model, None, choices=[], usage=usage(tokens)) + b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def head(status: bytes = b"200 OK", kind: bytes = b"text/event-stream; charset=utf-8", *more: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-type: " + kind, *more]
    return b"\r\n".join(lines) + b"\r\n\r\n"


CHUNKED = b"transfer-encoding: chunked"


class Stream(asyncio.Protocol):
    """One connection."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.got = b""
        self.entry: dict[str, Any] = {}
        self.handle: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.handle is not None:
            self.handle.cancel()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self.got += data
        end = self.got.find(b"\r\n\r\n")
        if end < 0:
            return
        length = re.search(rb"\r\ncontent-length: *(\d+)", self.got[:end], re.IGNORECASE)
        size = int(length[1]) if length else 0
        if len(self.got) < end + 4 + size:
            return
        request, body = self.got[:end], self.got[end + 4 : end + 4 + size]
        self.got = self.got[end + 4 + size :]
        if request.startswith(b"GET /log"):
            self.reply(json.dumps(self.engine.log).encode())
        else:
            self.generate(request, json.loads(body), now)

    def reply(self, body: bytes, status: bytes = b"200 OK") -> None:
        self.transport.write(head(status, b"application/json", b"content-length: %d" % len(body)) + body)

    def generate(self, request: bytes, asked: dict[str, Any], now: float) -> None:
        found = ID.search(request)
        fault = self.engine.next_fault()
        self.entry = {"id": found[1].decode() if found else None, "recv": now, "first": None, "last": None}
        self.entry |= {"tokens": 0, "fault": fault}
        self.engine.log.append(self.entry)
        self.model, self.asked = asked["model"], asked["max_tokens"]
        if not self.at_once(fault):
            self.stream(fault, now)

    def at_once(self, fault: str) -> bool:
        """Do what needs no stream; False when the fault is one of the stream."""
        if fault in STATUSES:
            self.reply(b'{"error":{"message":"no","code":%s}}' % fault.encode(), STATUSES[fault])
        elif fault == "reset":
            self.reset()
        elif fault == "close":
            self.transport.close()
        elif fault == "garbage":
            self.transport.write(b"\x00\x01 this is no HTTP at all\r\n\r\n")
        elif fault == "hang":
            self.transport.write(head(b"200 OK", b"text/event-stream", CHUNKED))
        elif fault == "document":
            text = "".join(f"t{n} " for n in range(self.asked))
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
            self.stamp(self.asked)
            self.reply(json.dumps({"model": self.model, "choices": [choice], "usage": usage(self.asked)}).encode())
        elif fault != "silent":
            return False
        return True

    def stamp(self, tokens: int = 1) -> None:
        now = time.monotonic()
        self.entry["first"] = self.entry["first"] or now
        self.entry["last"] = now
        self.entry["tokens"] += tokens

    def reset(self) -> None:
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
        self.transport.abort()

    # ---- streams ----------------------------------------------------------------------------------

    def stream(self, fault: str, now: float) -> None:
        extra = [b"x-cache: hit"] if fault == "cached" else []
        extra += [] if fault == "until-close" else [CHUNKED]
        if fault == "fallback":
            self.model = "lab-small"
        self.transport.write(head(b"200 OK", b"text/event-stream; charset=utf-8", *extra))
        self.fault, self.sent = fault, 0
        self.due = now + self.engine.ttft_s
        self.later()

    def later(self) -> None:
        self.handle = self.engine.loop.call_at(self.due, self.token)
        self.due += self.engine.itl_s

    def put(self, events: bytes) -> None:
        data = events if self.fault == "until-close" else chunk(events)
        if self.fault != "bytewise":
            self.transport.write(data)
            return
        for at in range(len(data)):
            self.transport.write(data[at : at + 1])

    def token(self) -> None:
        """Send the next token, or break the stream."""
        number, self.sent = self.sent, self.sent + 1
        if number == CUT_AFTER and self.broke():
            return
        if self.fault == "repeat" and number >= 2:
            number -= 2
        last = self.sent == self.asked
        data = event(self.model) if self.sent == 1 else b""
        data += event(self.model, f"t{number} ", "length" if last else None)
        if self.fault == "merged":
            data += b"".join(event(self.model, f"t{n} ") for n in range(1, self.asked - 1))
            data += event(self.model, f"t{self.asked - 1} ", "length")
            last, self.sent = True, self.asked
        self.stamp(self.sent if self.fault == "merged" else 1)
        self.put(data)
        if last:
            self.finish(tail(self.model, self.asked) if self.fault != "no-done" else b"")
        else:
            self.later()

    def broke(self) -> bool:
        """Break the stream here if that is this request's fault."""
        if self.fault in ("early", "error", "lie", "abort"):
            reason = {"lie": "stop", "abort": "abort"}.get(self.fault)
            last = event(self.model, "", reason) + tail(self.model, CUT_AFTER) if reason else b""
            if self.fault == "error":
                error = {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}
                last = b"data: " + json.dumps({"error": error}).encode() + b"\n\ndata: [DONE]\n\n"
            self.finish(last)
        elif self.fault == "reset-mid":
            self.reset()
        elif self.fault == "half":
            self.transport.write(chunk(event(self.model, "t3 "))[:60])
            self.transport.close()
        elif self.fault == "bad-chunk":
            self.transport.write(b"zz\r\nnot a chunk\r\n")
        elif self.fault == "garbage-event":
            self.finish(b"data: {not json\n\ndata: [DONE]\n\n")
        else:
            return self.fault == "hang-mid"
        return True

    def finish(self, last: bytes) -> None:
        """Send the last events and the end of the body."""
        if last:
            self.put(last)
        if self.fault == "until-close":
            self.transport.close()
            return
        self.transport.write(b"0\r\n\r\n")
        if self.fault == "close-after":
            self.transport.close()


class Engine:
    def __init__(self, options: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ttft_s, self.itl_s = options.ttft_ms / 1e3, options.itl_ms / 1e3
        self.faults, self.every = options.fault, options.every
        self.log: list[dict[str, Any]] = []

    def next_fault(self) -> str:
        number = len(self.log) + 1
        if not self.faults or number % self.every:
            return ""
        return str(self.faults[(number // self.every - 1) % len(self.faults)])


async def main(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(options, loop)
    server = await loop.create_server(lambda: Stream(engine), "127.0.0.1", options.port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Whoever started it holds the other end of stdin: when that is gone, so is this.
    await loop.run_in_executor(None, sys.stdin.read)


def faults(names: str) -> list[str]:
    return [name for name in names.split(",") if FAULTS[name]]


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=20)
    parser.add_argument("--itl-ms", type=float, default=2)
    parser.add_argument("--fault", type=faults, default=[])
    parser.add_argument("--every", type=int, default=1)
    return parser.parse_args(argv)


if __name__ == "__main__":
    asyncio.run(main(parse(sys.argv[1:])))
