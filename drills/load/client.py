"""The client: chat completions over gevent sockets, stamped as they come in.

    Call ──► ask() ──► attempt … attempt ──► Record

A call ends in exactly one outcome. HTTP 200 proves nothing: only an answer with a finish reason, `[DONE]`
and as many tokens as asked is `ok`. Times are CLOCK_MONOTONIC seconds, taken right after each recv.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import gevent
from gevent import socket as gsocket

from drills.load import retry
from drills.load.connection import Connection, ConnectLate, Late, Pool, Silent, tls_context
from drills.load.plan import LoadPlan
from drills.load.record import Attempt, Record
from drills.load.sse import Answer
from drills.load.wire import Body, Head, WireError, body_of
from drills.model import Outcome

_DETAIL_MAX = 200
_BODY_READ = 4096  # masked as a whole before it is cut, so that no half of a key is left
_BODY_MAX = 65536
#: After `[DONE]` the answer is complete; the body's own end is awaited this long, so that the server is not
#: cut off in its last write and the connection can be used again.
_AFTER_DONE_S = 0.5


class CutShort(Exception):
    """The connection was closed before the answer was whole."""


@dataclass(slots=True)
class Call:
    """One arrival in flight."""

    arrival: int
    session: int
    turn: int
    intended: float
    wall: float
    tokens_asked: int
    body: bytes
    attempts: list[Attempt] = field(default_factory=list)
    answer: Answer = field(default_factory=Answer)  # of the latest attempt
    headers: dict[str, str] = field(default_factory=dict)  # likewise
    heard: float = 0.0  # last byte of any attempt, or the first send
    detail: str = ""


class Client:
    """Asks one endpoint. Safe for many greenlets at once."""

    def __init__(self, plan: LoadPlan, sleep: Callable[[float], object] = gevent.sleep) -> None:
        parts = urlsplit(plan.url)
        self._plan = plan
        self._settings = plan.client
        self._sleep = sleep
        self._budget = retry.Budget(plan.client.retries.budget)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._pool = Pool(parts.hostname or "", port, tls_context() if parts.scheme == "https" else None)
        path = parts.path.rstrip("/") + "/chat/completions"
        self._key = plan.api_key()
        host = parts.netloc.rpartition("@")[2]
        self._head = _request_head(plan, self._key, f"POST {path} HTTP/1.1\r\nHost: {host}\r\n")

    def close(self) -> None:
        """Close the connections that were kept."""
        self._pool.close()

    def ask(self, call: Call) -> Record:
        """Ask until there is an answer or the client gives up; every way out is a record."""
        start = time.monotonic()
        deadline = start + self._settings.timeout_s
        self._budget.request(start)
        call.heard = start
        while True:
            attempt = self._attempt(call, deadline)
            wait_s = self._again_s(call, attempt, deadline)
            if wait_s is None:
                return self._record(call, attempt.outcome or Outcome.ERROR, attempt.end or time.monotonic())
            self._sleep(wait_s)

    def give_up(self, call: Call, now: float) -> Record:
        """Return the record of a call that is still open when the load ends."""
        silent = bool(call.attempts) and now - call.heard > self._settings.idle_timeout_s
        outcome = Outcome.HUNG if silent else Outcome.CANCELLED
        if call.attempts and call.attempts[-1].end is None:
            call.attempts[-1].end, call.attempts[-1].outcome = now, outcome
            _stamp(call.attempts[-1], call.answer)
        call.detail = "open when the load ended"
        return self._record(call, outcome, now)

    def shed(self, call: Call, now: float) -> Record:
        """Return the record of an arrival that is not sent because the cap is reached."""
        call.detail = f"{self._plan.cap} requests were open already"
        return self._record(call, Outcome.SHED, now)

    def _again_s(self, call: Call, attempt: Attempt, deadline: float) -> float | None:
        """Return the wait before the next attempt, None when there will be none."""
        plan = self._settings.retries
        if not retry.wanted(plan, attempt, call.headers):
            return None
        draw = random.Random(f"retry:{self._plan.seed}:{attempt.id}").random()
        wait_s = retry.delay_s(plan, attempt.attempt, draw, call.headers)
        now = time.monotonic()
        return wait_s if now + wait_s < deadline and self._budget.take(now) else None

    def _attempt(self, call: Call, deadline: float) -> Attempt:
        number = len(call.attempts)
        attempt = Attempt(number, f"{self._plan.run}-{call.arrival}-{number}", time.monotonic())
        call.attempts.append(attempt)
        call.answer, call.headers = Answer(), {}
        try:
            self._exchange(call, attempt, deadline)
        except (OSError, WireError, CutShort, Silent, Late, ConnectLate) as problem:
            _fail(call, attempt, problem, self._settings.idle_timeout_s)
        attempt.end = attempt.end or time.monotonic()
        _stamp(attempt, call.answer)
        return attempt

    def _exchange(self, call: Call, attempt: Attempt, deadline: float) -> None:
        """Send the request and read the answer on one connection."""
        settings = self._settings
        connect_s = min(settings.connect_timeout_s, deadline - time.monotonic())
        connection = self._pool.take(connect_s, settings.idle_timeout_s, deadline)
        whole = False
        try:
            connection.send(self._request(call, attempt))
            head, rest = connection.head()
            call.heard = attempt.headers = connection.stamp
            attempt.status, call.headers = head.status, head.headers
            body = body_of(head)
            if head.status == 200:
                self._read_answer(call, attempt, connection, body, rest)
            else:
                _refused(call, attempt, head, _error_text(call, connection, body, rest))
            whole = body.ended and head.reusable
        finally:
            if whole and settings.keepalive:
                self._pool.give(connection)
            else:
                connection.close()

    def _request(self, call: Call, attempt: Attempt) -> bytes:
        count = ""
        if self._settings.retries.header or self._settings.retries.jitter == "sdk":
            count = f"x-stainless-retry-count: {attempt.attempt}\r\n"
        tail = f"X-Request-Id: {attempt.id}\r\n{count}Content-Length: {len(call.body)}\r\n\r\n"
        return self._head + tail.encode() + call.body

    def _read_answer(self, call: Call, attempt: Attempt, connection: Connection, body: Body, rest: bytes) -> None:
        answer = call.answer
        cached = self._plan.cached_header
        answer.cached = (
            cached is not None and call.headers.get(cached.header.lower(), "").lower() == cached.value.lower()
        )
        kind = call.headers.get("content-type", "text/event-stream").lower()
        if kind.startswith("text/event-stream"):
            _read_stream(call, connection, body, rest)
        elif kind.startswith("application/json"):
            answer.whole(_read_all(call, connection, body, rest), connection.stamp)
        else:
            raise WireError(f"content type {kind[:40]}")
        attempt.end = connection.stamp
        attempt.outcome, attempt.error, call.detail = judge(answer, call.tokens_asked, self._plan.fallback_models)
        if answer.done and not body.ended:
            _finish(connection, body)

    def _masked(self, text: str) -> str:
        """Return a server's words without our key: some servers echo what they refuse."""
        return text.replace(self._key, "***") if self._key else text

    def _record(self, call: Call, outcome: Outcome, end: float) -> Record:
        first = call.attempts[0] if call.attempts else None
        last = call.attempts[-1] if call.attempts else None
        answer = call.answer
        handled = first.sent if first else end
        return Record(
            arrival=call.arrival,
            session=call.session,
            turn=call.turn,
            intended=call.intended,
            wall=call.wall,
            outcome=outcome,
            tokens_asked=call.tokens_asked,
            sent=first.sent if first else None,
            headers=last.headers if last else None,
            first_token=last.first_token if last else None,
            last_token=last.last_token if last else None,
            end=end,
            error=last.error if last and outcome is Outcome.ERROR else None,
            status=last.status if last else None,
            detail=self._masked(call.detail)[:_DETAIL_MAX],
            model=answer.model or None,
            cached=answer.cached,
            tokens=answer.tokens,
            finish=answer.finish,
            done=answer.done,
            lag=handled - call.intended,
            attempts=call.attempts,
            chunks=[(stamp - call.intended) * 1e3 for stamp in answer.chunks],
            dup=answer.duplicated(),
        )


def _request_head(plan: LoadPlan, key: str | None, line: str) -> bytes:
    """Return the part of the request that is the same for all."""
    fields = {
        "User-Agent": "drills",
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
        "Connection": "keep-alive" if plan.client.keepalive else "close",
        **plan.headers,
    }
    if key:
        fields["Authorization"] = f"Bearer {key}"
    return (line + "".join(f"{name}: {value}\r\n" for name, value in fields.items())).encode("latin-1")


def judge(answer: Answer, asked: int, fallbacks: tuple[str, ...]) -> tuple[Outcome, str | None, str]:
    """Return (outcome, error class, detail) of an answer whose body has ended."""
    if answer.error is not None:
        return Outcome.ERROR, "sse_error", answer.error
    if answer.garbage is not None:
        return Outcome.ERROR, "protocol", f"no JSON in an event: {answer.garbage}"
    if answer.finish in (None, "abort", "error") or not answer.done:
        return Outcome.TRUNCATED, None, f"finish_reason {answer.finish}, {'' if answer.done else 'no '}[DONE]"
    missing = "" if answer.cached else _missing(answer, asked)
    if missing:
        return Outcome.TRUNCATED, None, missing
    degraded = answer.cached or answer.model in fallbacks
    return (Outcome.DEGRADED if degraded else Outcome.OK), None, ""


def _missing(answer: Answer, asked: int) -> str:
    """Say what shows that an answer which looks complete is not.

    The request forbids an early stop, so a reason other than `length` needs the usage to vouch for it. An
    answer from a cache belongs to another question and may have another length.
    """
    numbers = answer.numbers()
    if answer.tokens is None and answer.finish != "length":
        return f"finish_reason {answer.finish} and no usage"
    if answer.tokens is not None and answer.tokens < asked:
        return f"{answer.tokens} of {asked} tokens by usage"
    if numbers is not None and len(numbers) < asked:
        return f"{len(numbers)} of {asked} tokens in the text"
    return ""


def _read_stream(call: Call, connection: Connection, body: Body, rest: bytes) -> None:
    """Read events until `[DONE]` or the end of the body."""
    answer, data = call.answer, rest
    while True:
        if data:
            answer.feed(body.feed(data), connection.stamp)
            if answer.done or body.ended:
                break
        data = connection.receive()
        call.heard = connection.stamp
        if not data:
            if not body.eof():
                raise CutShort
            break
    answer.close(connection.stamp)


def _read_all(call: Call, connection: Connection, body: Body, rest: bytes) -> bytes:
    """Return a whole small body (an error, or an answer that is no stream)."""
    parts = [body.feed(rest)] if rest else []
    size = len(rest)
    while not body.ended and size < _BODY_MAX:
        data = connection.receive()
        call.heard = connection.stamp
        if not data:
            if not body.eof():
                raise CutShort
            break
        size += len(data)
        parts.append(body.feed(data))
    return b"".join(parts)


def _error_text(call: Call, connection: Connection, body: Body, rest: bytes) -> bytes:
    """Return the body of an answer that says no; the status stands, however the body ends."""
    try:
        return _read_all(call, connection, body, rest)
    except (OSError, WireError, CutShort, Silent, Late) as problem:
        return f"({type(problem).__name__} in the body)".encode()


def _finish(connection: Connection, body: Body) -> None:
    """Wait shortly for the end of a body whose answer is complete; how it ends no longer matters."""
    connection.hurry(_AFTER_DONE_S)
    try:
        while not body.ended:
            data = connection.receive()
            if not data:
                return
            body.feed(data)
    except (OSError, WireError, Silent, Late):
        return


def _stamp(attempt: Attempt, answer: Answer) -> None:
    if answer.chunks:
        attempt.first_token, attempt.last_token = answer.chunks[0], answer.chunks[-1]


def _refused(call: Call, attempt: Attempt, head: Head, body: bytes) -> None:
    """Note an answer whose status says no."""
    attempt.outcome = Outcome.ERROR
    families = {4: "http_4xx", 5: "http_5xx"}
    attempt.error = families.get(head.status // 100, "protocol")
    call.detail = f"HTTP {head.status}: {body[:_BODY_READ].decode('utf-8', 'replace')}"


def _fail(call: Call, attempt: Attempt, problem: Exception, idle_s: float) -> None:
    """Note what broke an attempt: outcome, class and a short text."""
    attempt.end = now = time.monotonic()
    # A total time-out on top of a long silence is a hang, even if it was spread over several attempts.
    hung = isinstance(problem, Silent) or (isinstance(problem, Late) and now - call.heard >= idle_s)
    if call.answer.error is not None:
        attempt.outcome, attempt.error, call.detail = Outcome.ERROR, "sse_error", call.answer.error
    elif hung:
        attempt.outcome, call.detail = Outcome.HUNG, f"no byte for {now - call.heard:.1f} s"
    elif isinstance(problem, CutShort):
        attempt.outcome, call.detail = Outcome.TRUNCATED, "closed in the middle of the body"
    else:
        attempt.outcome, attempt.error = Outcome.ERROR, _error_class(problem)
        call.detail = str(problem) or type(problem).__name__


def _error_class(problem: Exception) -> str:
    if isinstance(problem, Late | ConnectLate | TimeoutError):
        return "timeout"
    if isinstance(problem, gsocket.gaierror):
        return "dns"
    if isinstance(problem, WireError | ssl.SSLError):
        return "protocol"
    if isinstance(problem, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return "reset"
    return "refused"  # connection refused, host or network unreachable
