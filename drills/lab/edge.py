"""The user's application in front of the router: it would rather answer worse than late.

    primary (through the router) ── no first token in time, or failed ──► fallback (smaller model) ──► stored answer

Exactly one answer reaches the user. Nothing is sent before its first token is there, what is abandoned is closed so
that the engine aborts, and an answer that has begun is never continued by another: if it dies, the user sees it die
the same way (RST, FIN without an end, an error in band), unless `--on-cut` makes it one of the gateways that hide it.
The last source there is has no deadline, and its bytes and errors are passed on as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from time import monotonic

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from drills.errors import DrillError, Refused
from drills.lab.edge_answers import CHAT, TEXT, Ask, Ending, FirstEvent, made_up_end, parse_ask, stored_answer
from drills.lab.edge_cuts import die, is_reset, kind
from drills.lab.edge_metrics import Metrics

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"}
    | {"upgrade", "host", "content-length", "expect"}
)
_MAX_BODY = 64 << 20
#: The model's fault or the deployment's, not the user's: another source may do better.
_FAILED = frozenset({404, 408, 429})


@dataclass(frozen=True)
class Options:
    """The command line. Times as their names say."""

    host: str
    port: int
    router: str
    model: str
    fallback: str | None
    fallback_model: str
    first_token_deadline_ms: float
    fallback_deadline_ms: float
    sla_ttft_s: float
    no_fallback: bool
    no_cache: bool
    on_cut: str  # cut | finish | splice


@dataclass(frozen=True)
class Source:
    """Where an answer can come from; `model` None leaves the one asked for."""

    name: str  # primary | fallback
    url: str
    model: str | None
    deadline_s: float


@dataclass
class Answer:
    """An answer that may be sent: whole, or a stream with what has come of it."""

    source: str  # primary | fallback | cached
    status: int
    headers: CIMultiDict[str]
    body: bytes = b""
    rest: aiohttp.ClientResponse | None = None  # the stream behind `body`
    wrong: str = ""  # why this is no good answer

    def close(self) -> None:
        """Abandon it: the connection is closed, so that whoever computes it stops."""
        if self.rest is not None:
            self.rest.close()


@dataclass
class Told:
    """What happened to one request, for the metrics."""

    began: float = field(default_factory=monotonic)
    first_token: float | None = None
    wrong: str = ""


class Edge:
    """The application: routes, sources and metrics."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics = Metrics(options.sla_ttft_s)
        self.sources = [Source("primary", options.router, None, options.first_token_deadline_ms / 1000)]
        if options.fallback and not options.no_fallback:
            fallback_s = options.fallback_deadline_ms / 1000
            self.sources.append(Source("fallback", options.fallback, options.fallback_model, fallback_s))
        self.session: aiohttp.ClientSession

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=_MAX_BODY)
        app.cleanup_ctx.append(self._session)
        app.add_routes(
            [
                web.post(CHAT, self.complete),
                web.post(TEXT, self.complete),
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/metrics", self.exposition),
            ]
        )
        return app

    async def _session(self, _app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        skip = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
        self.session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=skip,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        yield
        await self.session.close()

    # ---- routes

    async def health(self, _request: web.Request) -> web.Response:
        """The edge itself is up."""
        return web.Response(text="ok\n")

    async def exposition(self, _request: web.Request) -> web.Response:
        """Prometheus text format."""
        return web.Response(text=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def models(self, request: web.Request) -> web.Response:
        """What the router says."""
        try:
            async with self.session.get(f"{self.options.router}/v1/models", headers=_passed(request.headers)) as answer:
                return web.Response(status=answer.status, body=await answer.read(), headers=_passed(answer.headers))
        except (aiohttp.ClientError, OSError) as error:
            broken = _broken("primary", kind(error))
            return web.Response(status=broken.status, body=broken.body, headers=broken.headers)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a completion, one way or another."""
        told = Told()
        self.metrics.in_flight += 1
        source = "none"
        try:
            ask = parse_ask(request.path, await request.read(), request.headers)
            answer = await self.answer(ask)
            source = answer.source
            try:
                response = await self.send(request, ask, answer, told)
            finally:
                answer.close()
        except (asyncio.CancelledError, ConnectionError):
            self._count("cancelled", "none", told)
            raise
        finally:
            self.metrics.in_flight -= 1
        if 400 <= answer.status < 500 and answer.status not in _FAILED:
            self.metrics.client_errors[(str(answer.status),)] += 1
        else:
            self._count("error" if told.wrong else "ok" if source == "primary" else "degraded", source, told)
        return response

    def _count(self, outcome: str, source: str, told: Told) -> None:
        bad = outcome in ("error", "cancelled")
        self.metrics.requests[(outcome, "none" if bad else source)] += 1
        if outcome == "error":
            self.metrics.errors[(told.wrong,)] += 1
        elapsed_s = monotonic() - told.began
        if outcome == "cancelled" and elapsed_s <= self.metrics.sla_ttft_s:
            return
        if told.first_token is None:
            self.metrics.ttft.observe(math.inf)
        self.metrics.e2e.observe(math.inf if bad else elapsed_s)

    # ---- where the answer comes from

    async def answer(self, ask: Ask) -> Answer:
        """Return the first answer that has begun well in time; else the last source's, whatever it is."""
        sources = self.sources if ask.json is not None else self.sources[:1]
        stored = ask.json is not None and not self.options.no_cache
        for number, source in enumerate(sources):
            last = not stored and number == len(sources) - 1
            if last:
                return await self.ask(source, ask, wait=False)
            try:
                async with asyncio.timeout(source.deadline_s):
                    answer = await self.ask(source, ask, wait=True)
            except TimeoutError:
                self.metrics.abandoned[(source.name, "deadline")] += 1
                continue
            if not answer.wrong:
                return answer
            answer.close()
            self.metrics.abandoned[(source.name, answer.wrong)] += 1
        content, body = stored_answer(ask, self.options.model)
        return Answer("cached", 200, CIMultiDict({"Content-Type": content, "X-Cache": "hit"}), body)

    async def ask(self, source: Source, ask: Ask, *, wait: bool) -> Answer:
        """Ask one source; with `wait`, return only when a stream has shown its first token."""
        body = ask.body if source.model is None else ask.body_for(source.model)
        try:
            response = await self.session.post(source.url + ask.path, data=body, headers=_passed(ask.headers))
        except (aiohttp.ClientError, OSError) as error:
            return _broken(source.name, kind(error))
        try:
            return await self._begin(source, ask, response, wait=wait)
        except (aiohttp.ClientError, OSError) as error:
            response.close()
            return _broken(source.name, kind(error))
        except asyncio.CancelledError:
            response.close()
            raise

    async def _begin(self, source: Source, ask: Ask, response: aiohttp.ClientResponse, *, wait: bool) -> Answer:
        answer = Answer(source.name, response.status, _passed(response.headers))
        if response.status != 200 or not ask.stream:
            answer.body = await response.read()
            failed = response.status >= 500 or response.status in _FAILED
            answer.wrong = f"http_{response.status}" if failed else ""
            return answer
        answer.rest = response
        first = FirstEvent()
        while wait and not first.seen:
            data = await response.content.readany()
            if not data:
                answer.wrong = "empty"
                return answer
            answer.body += data
            first.feed(data)
        answer.wrong = "sse_error" if first.seen == "error" else ""
        return answer

    # ---- how it reaches the user

    async def send(self, request: web.Request, ask: Ask, answer: Answer, told: Told) -> web.StreamResponse:
        """Send an answer, and note what became of it."""
        answer.headers["X-Edge-Answer"] = answer.source
        told.wrong = answer.wrong
        if answer.rest is None:
            response = web.Response(status=answer.status, body=answer.body, headers=answer.headers)
            self._first_token(told, answer.status == 200)
            if not told.wrong and answer.status == 200 and _aborted(answer.body):
                told.wrong = "abort"
            return response
        stream = web.StreamResponse(status=answer.status, headers=answer.headers)
        await stream.prepare(request)
        protocol = answer.rest.connection.protocol if answer.rest.connection is not None else None
        try:
            told.wrong = await self._relay(stream, answer.body, answer.rest, told)
        except aiohttp.ClientConnectionResetError:
            raise  # the user is gone
        except (aiohttp.ClientError, OSError) as error:
            if not await self._hide_cut(stream, ask, told):
                reset = is_reset(error) or (protocol is not None and is_reset(protocol.exception()))
                told.wrong = "cut"
                die(request.transport, reset=reset)
        return stream

    async def _hide_cut(self, stream: web.StreamResponse, ask: Ask, told: Told) -> bool:
        """Do what `--on-cut` says; False when the user shall see the cut."""
        if self.options.on_cut == "finish":
            await stream.write(made_up_end(ask, self.options.model))
        elif self.options.on_cut == "splice":
            again = await self.ask(self.sources[0], ask, wait=False)
            try:
                if again.rest is None:
                    return False
                told.wrong = await self._relay(stream, b"", again.rest, told)
            except aiohttp.ClientConnectionResetError:
                raise
            except (aiohttp.ClientError, OSError):
                return False
            finally:
                again.close()
        return self.options.on_cut != "cut"

    async def _relay(self, stream: web.StreamResponse, early: bytes, rest: aiohttp.ClientResponse, told: Told) -> str:
        """Pass a stream on as it comes; return what was wrong with it."""
        first, ending, data = FirstEvent(), Ending(), early
        while True:
            if data:
                await stream.write(data)
                ending.feed(data)
                if told.first_token is None:
                    self._first_token(told, first.feed(data) == "token")
            data = await rest.content.readany()
            if not data:
                return ending.close()

    def _first_token(self, told: Told, there: bool) -> None:
        if there:
            told.first_token = monotonic()
            self.metrics.ttft.observe(told.first_token - told.began)


def _aborted(body: bytes) -> bool:
    return b'"finish_reason":"abort"' in body


def _passed(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers that belong to the message and not to the connection."""
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP)


def _broken(source: str, reason: str) -> Answer:
    """Return the answer for a source that gave none."""
    message = f"The {source} model closed or refused the connection ({reason}) before it answered."
    error = {"message": message, "type": "Bad Gateway", "param": None, "code": 502}
    headers = CIMultiDict({"Content-Type": "application/json"})
    return Answer(source, 502, headers, json.dumps({"error": error}).encode(), wrong=reason)


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not an http address")
    return text.rstrip("/").removesuffix("/v1")


def parse_options(argv: list[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m drills.lab.edge", description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--router", type=_url, required=True, metavar="URL")
    parser.add_argument("--model", required=True, help="the name of the primary model")
    parser.add_argument("--fallback", type=_url, metavar="URL", help="where the smaller model answers")
    parser.add_argument("--fallback-model", default="")
    parser.add_argument("--first-token-deadline-ms", type=float, default=400)
    parser.add_argument("--fallback-deadline-ms", type=float, default=400)
    parser.add_argument("--sla-ttft-s", type=float, default=1.0)
    parser.add_argument("--no-fallback", action="store_true", help="do not ask the smaller model")
    parser.add_argument("--no-cache", action="store_true", help="do not answer from store")
    parser.add_argument(
        "--on-cut",
        choices=("cut", "finish", "splice"),
        default="cut",
        help="what the user gets for a stream that was cut: the cut, a made-up end, or the text of a new answer",
    )
    options = Options(**vars(parser.parse_args(argv)))
    if options.fallback and not options.fallback_model:
        parser.error("--fallback needs --fallback-model")
    return options


async def _run(options: Options) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(Edge(options).app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port, backlog=1024).start()
        host, port = runner.addresses[0][:2]
        print(json.dumps({"ready": True, "listen": f"{host}:{port}"}), flush=True)
        await stop.wait()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise Refused(f"--port {options.port}: {reason}; choose a free port of this machine") from None
    finally:
        await runner.cleanup()


def main(argv: list[str] | None = None) -> int:
    """Run the edge; return the exit code."""
    options = parse_options(argv)
    try:
        asyncio.run(_run(options))
    except DrillError as error:
        print(f"drills.lab.edge: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
