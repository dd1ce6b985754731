"""The client against real sockets: how each way to fail ends, and what is sent."""

from __future__ import annotations

import datetime
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from drills.experiment import Load
from drills.load.client import Call, Client
from drills.load.record import Attempt, Record
from drills.model import Json, Outcome
from tests.load_engine import CHUNKED, chunk, event, head, tail
from tests.unit.load_plans import client_json, load_plan
from tests.unit.scripted import Script, Server, answer, in_turn, reset, sends, silence

STREAM = head(b"200 OK", b"text/event-stream", CHUNKED)
SOME = STREAM + chunk(event("m")) + chunk(event("m", "t0 ")) + chunk(event("m", "t1 "))
NO = b'HTTP/1.1 503 Service Unavailable\r\ncontent-length: 17\r\n\r\n{"error":"no way"'


def call(arrival: int = 1) -> Call:
    return Call(arrival, 0, 1, time.monotonic(), time.time(), 8, b'{"model":"lab-chat"}')


def ask(url: str, client: Json | None = None) -> Record:
    return Client(load_plan(url, client=client or client_json())).ask(call())


def answered(script: Script, client: Json | None = None) -> Record:
    with Server(script) as server:
        return ask(server.url, client)


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as taken:  # bound and not listening: refuses, and nobody else can take it
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def test_a_whole_answer_is_ok_with_all_its_stamps() -> None:
    record = answered(sends(answer()))
    assert record.outcome is Outcome.OK
    assert (record.status, record.finish, record.tokens, record.done) == (200, "length", 8, True)
    assert record.sent is not None
    stamps = [record.intended, record.sent, record.headers, record.first_token, record.last_token, record.end]
    assert stamps == sorted(stamp for stamp in stamps if stamp is not None)
    assert len(record.chunks) == 8
    assert record.lag == pytest.approx(record.sent - record.intended)
    assert [a.outcome for a in record.attempts] == [Outcome.OK]


def test_what_is_sent() -> None:
    with Server(sends(answer())) as server:
        ask(server.url)
        request = server.requests[0]
    first, *lines = request.split(b"\r\n\r\n")[0].decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert headers["Host"] == f"127.0.0.1:{server.port}"
    assert headers["X-Request-Id"] == "0badcafe-1-0"
    assert headers["X-Drill-Run"] == "0badcafe"
    assert headers["Connection"] == "close"
    assert "Authorization" not in headers
    assert "x-stainless-retry-count" not in headers
    assert json.loads(request.split(b"\r\n\r\n", 1)[1]) == {"model": "lab-chat"}


@pytest.mark.parametrize(
    ("script", "outcome", "error", "status", "says"),
    [
        (lambda c, n: reset(c), Outcome.ERROR, "reset", None, "reset"),
        (lambda c, n: False, Outcome.ERROR, "reset", None, "closed before any response"),
        (sends(b"HTTP/1.1 200 OK\r\nconte"), Outcome.ERROR, "reset", None, "in the response head"),
        (sends(NO + b"}"), Outcome.ERROR, "http_5xx", 503, "no way"),
        (sends(NO[:-5]), Outcome.ERROR, "http_5xx", 503, "CutShort"),
        (sends(NO.replace(b"503", b"429") + b"}"), Outcome.ERROR, "http_4xx", 429, "HTTP 429"),
        (sends(b"HTTP/1.1 307 Moved\r\ncontent-length: 0\r\n\r\n"), Outcome.ERROR, "protocol", 307, "HTTP 307"),
        (sends(b"SSH-2.0-hello\r\n\r\n"), Outcome.ERROR, "protocol", None, "status line"),
        (sends(SOME + b"zz\r\nx"), Outcome.ERROR, "protocol", 200, "chunk size"),
        (sends(head(b"200 OK", b"text/html") + b"<html>"), Outcome.ERROR, "protocol", 200, "text/html"),
        (sends(SOME), Outcome.TRUNCATED, None, 200, "middle of the body"),
        (sends(SOME + chunk(event("m", "t2 "))[:40]), Outcome.TRUNCATED, None, 200, "middle of the body"),
        (sends(SOME + b"0\r\n\r\n"), Outcome.TRUNCATED, None, 200, "no [DONE]"),
        (sends(STREAM + b"0\r\n\r\n"), Outcome.TRUNCATED, None, 200, "no [DONE]"),
        (sends(answer(5, 5)), Outcome.TRUNCATED, None, 200, "5 of 8"),
        (sends(answer().replace(b'"length"', b'"abort" ')), Outcome.TRUNCATED, None, 200, "abort"),
    ],
)
def test_every_failure_has_its_name(script: Script, outcome: Outcome, error: str, status: int, says: str) -> None:
    record = answered(script)
    assert (record.outcome, record.error, record.status) == (outcome, error, status)
    assert says in record.detail
    assert record.end is not None
    assert record.attempts[-1].outcome is outcome


def test_a_reset_after_some_tokens_is_a_reset_with_its_tokens() -> None:
    def script(connection: socket.socket, number: int) -> bool:
        connection.sendall(SOME)
        time.sleep(0.05)  # or the reset would discard what the client has not read yet
        return reset(connection)

    record = answered(script)
    assert (record.outcome, record.error) == (Outcome.ERROR, "reset")
    assert len(record.chunks) == 2
    assert record.first_token is not None


def test_an_in_band_error_is_an_error_although_the_status_is_200() -> None:
    broken = chunk(b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n')
    record = answered(sends(SOME, broken, chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"))
    assert (record.outcome, record.error, record.status, record.done) == (Outcome.ERROR, "sse_error", 200, True)
    assert record.detail == "EngineCore died"


def test_an_error_told_right_before_the_connection_breaks_is_kept() -> None:
    broken = chunk(b'data: {"error": {"message": "EngineCore died"}}\n\n')
    assert answered(sends(SOME, broken)).error == "sse_error"


def test_refused(closed_port: str) -> None:
    record = ask(closed_port)
    assert (record.outcome, record.error, record.status) == (Outcome.ERROR, "refused", None)
    assert record.sent is not None
    assert record.headers is None


def test_a_name_that_does_not_resolve() -> None:
    record = ask("http://no-such-host.invalid:1/v1", client_json(connect_timeout_s=5.0, timeout_s=8.0))
    # Without a resolver at hand the look-up may only time out.
    assert record.error in ("dns", "timeout")


def test_no_connection_within_its_time_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        record = ask(f"http://127.0.0.1:{port}/v1", client_json(connect_timeout_s=0.1))
        for filler in fillers:
            filler.close()
    assert (record.outcome, record.error) == (Outcome.ERROR, "timeout")
    assert "no connection" in record.detail


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200", STREAM, SOME])
def test_silence_is_a_hang_wherever_it_begins(begin: bytes) -> None:
    def script(connection: socket.socket, number: int) -> bool:
        connection.sendall(begin)
        return silence(connection)

    record = answered(script, client_json(idle_timeout_s=0.1))
    assert (record.outcome, record.error) == (Outcome.HUNG, None)
    assert "no byte for 0.1 s" in record.detail


def test_a_stream_that_never_ends_is_a_timeout() -> None:
    def script(connection: socket.socket, number: int) -> bool:
        connection.sendall(STREAM + chunk(event("m")))
        while True:
            connection.sendall(chunk(event("m", "x ")))
            time.sleep(0.02)

    record = answered(script, client_json(timeout_s=0.2, idle_timeout_s=0.15))
    assert (record.outcome, record.error) == (Outcome.ERROR, "timeout")
    assert len(record.chunks) > 2


def test_silence_until_the_time_is_up_is_a_hang_even_over_several_attempts() -> None:
    retries = {"max": 5, "backoff_s": 0.0, "jitter": "none"}
    record = answered(lambda c, n: silence(c), client_json(retries, timeout_s=0.25, idle_timeout_s=0.1))
    assert record.outcome is Outcome.HUNG
    assert len(record.attempts) >= 2


# ---- retries ------------------------------------------------------------------------------------------

TWICE = {"max": 2, "jitter": "none"}


def test_a_retry_saves_the_request() -> None:
    with Server(in_turn(lambda c, n: reset(c), sends(NO + b"}"), sends(answer()))) as server:
        record = ask(server.url, client_json({**TWICE, "header": True}))
    assert record.outcome is Outcome.OK
    assert [(a.outcome, a.error) for a in record.attempts] == [
        (Outcome.ERROR, "reset"),
        (Outcome.ERROR, "http_5xx"),
        (Outcome.OK, None),
    ]
    assert [a.id for a in record.attempts] == ["0badcafe-1-0", "0badcafe-1-1", "0badcafe-1-2"]
    assert record.sent == record.attempts[0].sent
    assert record.headers == record.attempts[2].headers
    assert (record.error, record.detail) == (None, "")
    for number, request in enumerate(server.requests):
        assert f"X-Request-Id: 0badcafe-1-{number}\r\n".encode() in request
        assert f"x-stainless-retry-count: {number}\r\n".encode() in request


def test_the_sdk_like_client_does_as_the_sdk_does() -> None:
    """Three attempts, half a second and then a second less up to a quarter, unless the server asks for another wait."""
    load = Load.model_validate({"arrivals": {"kind": "constant", "rate": 1.0}, "client": {"retries": "sdk-like"}})
    wanted = load.client.retries
    retries: Json = {"max": wanted.max, "backoff_s": wanted.backoff, "backoff_max_s": wanted.backoff_max}
    retries |= {"jitter": wanted.jitter, "budget": wanted.budget, "header": wanted.header}
    polite = NO.replace(b"content-length", b"retry-after: 1\r\ncontent-length")
    for script, low, high in (
        (sends(NO + b"}"), [0.375, 0.75], [0.5, 1.0]),
        (sends(polite + b"}"), [1.0] * 2, [1.0] * 2),
    ):
        waits: list[float] = []
        with Server(script) as server:
            plan = load_plan(server.url, client=client_json(retries, timeout_s=30.0))
            record = Client(plan, sleep=waits.append).ask(call())
        assert (record.outcome, len(record.attempts)) == (Outcome.ERROR, 3)
        assert all(a <= wait <= b for a, wait, b in zip(low, waits, high, strict=True)), waits
        counts = [re.findall(rb"x-stainless-retry-count: (\d)", request) for request in server.requests]
        assert counts == [[b"0"], [b"1"], [b"2"]]


def test_the_last_failure_is_the_records() -> None:
    record = answered(in_turn(sends(NO + b"}"), lambda c, n: reset(c)), client_json({**TWICE, "max": 1}))
    assert (record.outcome, record.error, record.status) == (Outcome.ERROR, "reset", None)
    assert len(record.attempts) == 2


def test_no_retry_after_the_first_token() -> None:
    record = answered(sends(SOME), client_json(TWICE))
    assert record.outcome is Outcome.TRUNCATED
    assert len(record.attempts) == 1


def test_a_stream_cut_before_its_first_token_is_asked_again() -> None:
    record = answered(in_turn(sends(STREAM), sends(answer())), client_json(TWICE))
    assert record.outcome is Outcome.OK
    assert [a.outcome for a in record.attempts] == [Outcome.TRUNCATED, Outcome.OK]
    assert len(record.chunks) == 8


def test_no_retry_that_could_not_end_in_time() -> None:
    slow = client_json({"max": 9, "backoff_s": 5.0, "backoff_max_s": 5.0, "jitter": "none"})
    assert len(answered(sends(NO + b"}"), slow).attempts) == 1


def test_the_budget_binds_all_requests_of_the_client(closed_port: str) -> None:
    settings = client_json({"max": 3, "backoff_s": 0.0, "jitter": "none", "budget": 0.1})
    client = Client(load_plan(closed_port, client=settings))
    attempts = sum(len(client.ask(call(n)).attempts) for n in range(40))
    assert attempts == 44


# ---- connections --------------------------------------------------------------------------------------


def served(script: Script, keepalive: bool, closes: bool = True) -> tuple[list[Record], int]:
    """Ask three times; `closes` waits for the server to have closed its side in between."""
    with Server(script) as server:
        client = Client(load_plan(server.url, client=client_json(keepalive=keepalive)))
        records = []
        for number in range(3):
            records.append(client.ask(call(number)))
            assert not closes or server.closed.acquire(timeout=5)
        client.close()
        return records, server.connections


def test_connections_are_kept_only_when_the_plan_says_so() -> None:
    for keepalive, connections in ((True, 1), (False, 3)):
        records, opened = served(sends(answer(), keep=True), keepalive, closes=not keepalive)
        assert [r.outcome for r in records] == [Outcome.OK] * 3
        assert opened == connections


@pytest.mark.parametrize(
    "script",
    [
        sends(answer()),  # closes although it did not say so
        sends(answer(8, None, "m", b"connection: close"), keep=True),
        sends(answer().replace(b"\r\ntransfer-encoding: chunked", b"").replace(b"0\r\n\r\n", b"")),
    ],
)
def test_a_connection_that_is_over_is_not_used_again(script: Script) -> None:
    records, opened = served(script, keepalive=True)
    assert opened == 3
    assert {r.error for r in records} == {None}


def test_a_broken_answer_takes_its_connection_along() -> None:
    records, opened = served(sends(SOME + b"zz\r\n", keep=True), keepalive=True)
    assert opened == 3
    assert {r.error for r in records} == {"protocol"}


def test_the_answer_is_complete_at_done_even_if_the_body_never_ends() -> None:
    def script(connection: socket.socket, number: int) -> bool:
        connection.sendall(answer().removesuffix(b"0\r\n\r\n"))
        return silence(connection)

    begin = time.monotonic()
    record = answered(script, client_json(idle_timeout_s=5.0, timeout_s=9.0))
    assert record.outcome is Outcome.OK
    assert record.end is not None
    assert record.end == record.last_token or record.end - begin < 0.3


def test_bodies_of_every_kind() -> None:
    events = event("m") + b"".join(event("m", f"t{n} ", "length" if n == 7 else None) for n in range(8)) + tail("m", 8)
    sized = head(b"200 OK", b"text/event-stream", b"content-length: %d" % len(events))
    until_close = head(b"200 OK", b"text/event-stream")
    for begin in (sized, until_close):
        assert answered(sends(begin + events)).outcome is Outcome.OK
    assert answered(sends(sized + events[:-20])).outcome is Outcome.TRUNCATED
    assert answered(sends(until_close + events[:-20])).outcome is Outcome.TRUNCATED


def test_headers_decide_what_is_a_cached_answer() -> None:
    assert answered(sends(answer(5, 5, "m", b"X-Cache: HIT"))).outcome is Outcome.DEGRADED
    assert answered(sends(answer(8, 8, "m", b"x-cache: miss"))).outcome is Outcome.OK


def test_an_api_key_comes_from_its_file_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-canary\n")
    with Server(sends(answer())) as server:
        plan = load_plan(server.url, api_key_file=str(path))
        assert "sk-canary" not in repr(plan)
        Client(plan).ask(call())
    assert b"Authorization: Bearer sk-canary\r\n" in server.requests[0]


def test_a_server_that_echoes_the_key_does_not_put_it_into_the_record(tmp_path: Path) -> None:
    """Also where the record's text is cut in the middle of it."""
    path = tmp_path / "key"
    path.write_text("sk-canary-0123456789")
    for before in (b"", b"x" * 180):
        body = before + b"sk-canary-0123456789 is not a key of ours"
        refused = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        with Server(sends(refused)) as server:
            record = Client(load_plan(server.url, api_key_file=str(path))).ask(call())
        assert record.status == 401
        assert "***" in record.detail
        assert "sk-" not in record.detail


def certificate(folder: Path, host: str) -> Path:
    """Write a self-signed certificate for `host`, with its key, as one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - hour, now + hour)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    signed = builder.sign(key, hashes.SHA256())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path = folder / f"{host}.pem"
    path.write_bytes(signed.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return path


@pytest.mark.parametrize(("host", "outcome"), [("localhost", Outcome.OK), ("elsewhere", Outcome.ERROR)])
def test_https_is_spoken_and_the_name_is_checked(
    host: str, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = certificate(tmp_path, host)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    with Server(sends(answer(), keep=True), context) as server:
        settings = client_json(keepalive=True, connect_timeout_s=5.0, timeout_s=10.0, idle_timeout_s=5.0)
        client = Client(load_plan(f"https://localhost:{server.port}/v1", client=settings))
        records = [client.ask(call(n)) for n in range(2)]
        client.close()
    assert [record.outcome for record in records] == [outcome] * 2, records[0].detail
    assert {record.error for record in records} == ({None} if outcome is Outcome.OK else {"protocol"})
    assert server.connections == (1 if outcome is Outcome.OK else 2)


# ---- the end of the load ------------------------------------------------------------------------------


def test_what_is_open_at_the_end_is_cancelled_or_hung() -> None:
    client = Client(load_plan(client=client_json(idle_timeout_s=0.3)))
    now = time.monotonic()
    unsent, busy, silent = call(1), call(2), call(3)
    for one, heard in ((busy, now - 0.1), (silent, now - 0.4)):
        one.heard = heard
        one.attempts.append(Attempt(0, "0badcafe-2-0", now - 1.0))
    records = [client.give_up(one, now) for one in (unsent, busy, silent)]
    assert [r.outcome for r in records] == [Outcome.CANCELLED, Outcome.CANCELLED, Outcome.HUNG]
    assert [len(r.attempts) for r in records] == [0, 1, 1]
    assert {r.end for r in records} == {now}
    assert records[1].attempts[0].outcome is Outcome.CANCELLED


def test_an_arrival_over_the_cap_is_shed_unsent() -> None:
    record = Client(load_plan()).shed(call(), time.monotonic())
    assert record.outcome is Outcome.SHED
    assert record.sent is None
    assert record.lag is not None
    assert record.attempts == []


def test_greenlets_share_one_client() -> None:
    barrier = threading.Barrier(5, timeout=5)

    def script(connection: socket.socket, number: int) -> bool:
        barrier.wait()  # answers only once five requests are open at the same time
        connection.sendall(answer())
        return False

    with Server(script) as server:
        client = Client(load_plan(server.url, client=client_json(idle_timeout_s=5.0)))
        jobs = [gevent.spawn(client.ask, call(n)) for n in range(5)]
        gevent.joinall(jobs, timeout=10)
    assert [job.value.outcome for job in jobs] == [Outcome.OK] * 5
