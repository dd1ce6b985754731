"""The HTTP surface of an engine: routes, bodies and streams, as a plain ASGI application.

A framework's router would answer HEAD where vLLM says 405, and costs start-up time; this table is all it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from uuid import uuid4

from drills.lab.engine import answers, requests, tokens
from drills.lab.engine.client import EngineClient, Generation
from drills.lab.engine.config import EngineConfig
from drills.lab.engine.errors import ApiError
from drills.lab.engine.exposition import CONTENT_TYPE
from drills.lab.engine.metrics import Metrics
from drills.lab.engine.requests import CHAT, TEXT, Ask, Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
VARY = (b"vary", b"Origin")
KEY_VARIABLE = "VLLM_API_KEY"  # vLLM's own; on a command line everybody could read it


class ClientGone(Exception):
    """The client hung up before its request was complete."""


class Call:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.began = time.monotonic()
        self.status = 0
        self.bytes_out = 0
        self._receive, self._send = receive, send

    async def body(self) -> bytes:
        """Return the whole body."""
        parts = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)

    async def hung_up(self) -> None:
        """Return when the client is gone or has its whole answer."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(
        self, status: int, body: bytes = b"", media: bytes = JSON, first: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """Send a whole answer."""
        headers = [*first, (b"content-length", str(len(body)).encode())]
        if body:
            headers.append((b"content-type", media))
        self.status, self.bytes_out = status, len(body)
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, VARY]})
        await self._send({"type": "http.response.body", "body": body})

    async def start_stream(self) -> None:
        """Send the 200 of a stream, at once: before anything is scheduled."""
        self.status = 200
        headers = [(b"content-type", EVENTS), VARY]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def part(self, body: bytes, *, last: bool) -> None:
        """Send a part of a stream; waits while the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})


class App:
    """The ASGI application of one replica."""

    def __init__(self, config: EngineConfig, engine: EngineClient, metrics: Metrics) -> None:
        self.config, self.engine, self.metrics = config, engine, metrics
        self.limits = Limits(config.model, config.max_model_len, config.seed)
        self.key = os.environ.get(KEY_VARIABLE)
        self.routes: dict[str, dict[str, Callable[[Call], Awaitable[None]]]] = {
            "/health": {"GET": self.health},
            "/ping": {"GET": self.health, "POST": self.health},
            "/metrics": {"GET": self.scrape},
            "/version": {"GET": self.version},
            "/load": {"GET": self.load},
            "/v1/models": {"GET": self.models},
            "/tokenize": {"POST": self.tokenize},
            "/v1/chat/completions": {"POST": self.chat},
            "/v1/completions": {"POST": self.text},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request and count it."""
        call = Call(scope, receive, send)
        path = scope["path"]
        methods = self.routes.get(path, {})
        handler = methods.get(call.method)
        if path.startswith("/v1") and not self._welcome(call):
            await call.reply(401, b'{"error":"Unauthorized"}')
        elif handler is not None:
            await self._run(handler, call)
        else:
            path = "none"
            if methods:
                allow = (b"allow", ", ".join(methods).encode())
                await call.reply(405, b'{"detail":"Method Not Allowed"}', first=(allow,))
            else:
                await call.reply(404, b'{"detail":"Not Found"}')
        if call.status:
            bytes_in = int(call.headers.get(b"content-length", b"0"))
            elapsed_s = time.monotonic() - call.began
            self.metrics.answered(path, call.method, call.status, bytes_in, call.bytes_out, elapsed_s)

    def _welcome(self, call: Call) -> bool:
        """Whether the call has the key; without one everybody is welcome, and outside /v1 always."""
        if not self.key:
            return True
        scheme, _, given = call.headers.get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(given, self.key.encode())

    async def _run(self, handler: Callable[[Call], Awaitable[None]], call: Call) -> None:
        with contextlib.suppress(ClientGone):
            try:
                await handler(call)
            except ApiError as e:
                await call.reply(e.status, e.body())

    # ---- what the API server answers alone ------------------------------------------------------------

    async def health(self, call: Call) -> None:
        """Say 200 unless the core is known to be dead; a hung core is not."""
        await call.reply(503 if self.engine.dead else 200)

    async def scrape(self, call: Call) -> None:
        """Expose the metrics."""
        await call.reply(200, self.metrics.scrape(), CONTENT_TYPE)

    async def version(self, call: Call) -> None:
        """Say the version that is emulated."""
        await call.reply(200, answers.dump({"version": answers.VERSION}).encode())

    async def load(self, call: Call) -> None:
        """Say 0, as vLLM does unless told to track its load."""
        await call.reply(200, b'{"server_load":0}')

    async def models(self, call: Call) -> None:
        """List the one model."""
        body = answers.models(self.config.model, self.config.max_model_len, int(time.time()), uuid4().hex[:16])
        await call.reply(200, body)

    async def tokenize(self, call: Call) -> None:
        """Count the tokens of a prompt or of messages."""
        body = requests.read_json(call.headers, await call.body())
        ids = requests.tokenized(body)
        counted = {"count": tokens.count(ids), "max_model_len": self.config.max_model_len}
        answer = {**counted, "tokens": tokens.numbers(ids), "token_strs": None}
        await call.reply(200, answers.dump(answer).encode())

    # ---- generation -----------------------------------------------------------------------------------

    async def chat(self, call: Call) -> None:
        """Answer `/v1/chat/completions`."""
        await self._generate(call, CHAT, "chatcmpl-")

    async def text(self, call: Call) -> None:
        """Answer `/v1/completions`."""
        await self._generate(call, TEXT, "cmpl-")

    async def _generate(self, call: Call, kind: str, prefix: str) -> None:
        raw = await call.body()
        ask = requests.parse(kind, call.headers, raw, self.limits)
        self.engine.check()
        given = call.headers.get(b"x-request-id", b"").decode("latin-1")
        id_ = prefix + (given or ask.request_id or uuid4().hex[:16])
        if ask.stream:
            await self._stream(call, ask, id_)
        else:
            await self._whole(call, ask, id_)

    async def _whole(self, call: Call, ask: Ask, id_: str) -> None:
        generation = self.engine.submit(ask, call.began)
        with self._watched(call, generation):
            while not (generation.finish or generation.error or generation.left):
                await generation.changed()
            if generation.left:
                return
            if generation.error:
                raise generation.error
            counts = (tokens.count(ask.ids), generation.received)
            body = answers.whole(ask.kind, id_, self.config.model, int(time.time()), *counts, str(generation.finish))
            await call.reply(200, body)

    async def _stream(self, call: Call, ask: Ask, id_: str) -> None:
        await call.start_stream()
        # Requests of the same instant have all passed the first admission check by now; the second is in submit.
        await asyncio.sleep(0)
        try:
            generation = self.engine.submit(ask, call.began)
        except ApiError as e:
            await call.part(e.events(), last=True)
            return
        with self._watched(call, generation):
            await self._events(call, generation, id_)

    async def _events(self, call: Call, generation: Generation, id_: str) -> None:
        ask = generation.ask
        stream = answers.Stream(
            ask.kind,
            id_,
            self.config.model,
            int(time.time()),
            tokens.count(ask.ids),
            include_usage=ask.include_usage,
            continuous_usage=ask.continuous_usage,
        )
        sent, finish, opening = 0, None, stream.role()
        while finish is None:
            await generation.changed()
            if generation.left:
                return
            if generation.error:
                await call.part(generation.error.events(), last=True)
                return
            upto, finish = generation.received, generation.finish
            if upto == sent and finish is None:
                continue
            # A request that never got a token ends without a word of why: vLLM drops an empty first delta.
            said = stream.delta(sent, upto, finish) if upto else ""
            part = (opening + said).encode()
            if finish is not None:
                part += stream.end(upto)
            sent, opening = upto, ""
            await call.part(part, last=finish is not None)

    @contextlib.contextmanager
    def _watched(self, call: Call, generation: Generation) -> Any:
        """Abort the generation at the engine when its client hangs up."""
        watcher = asyncio.ensure_future(call.hung_up())
        watcher.add_done_callback(generation.leave)
        try:
            yield
        finally:
            watcher.cancel()
            self.engine.abort(generation)
