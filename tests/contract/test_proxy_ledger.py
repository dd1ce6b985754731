"""Every attempt gets its line, and what the client sees is what it would see without the proxy."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.peers import (
    SSE_END,
    SSE_HEAD,
    ProxyUnderTest,
    Upstream,
    answer,
    connect,
    event,
    eventually,
    free_port,
    http,
    post,
    process,
    proxy,
)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    peer = Upstream()
    yield peer
    peer.close()


@pytest.fixture
def front(tmp_path: Path, upstream: Upstream) -> Iterator[ProxyUnderTest]:
    with proxy(tmp_path, upstream.port) as running:
        yield running


def test_a_complete_answer_passes_unchanged_and_is_recorded(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("run-1-0"))
    first, fields, body = engine.request()
    assert (first, fields["x-request-id"], body) == (
        "POST /v1/chat/completions HTTP/1.1",
        "run-1-0",
        b'{"stream":true}',
    )
    whole = SSE_HEAD + event("a") + event("[DONE]") + SSE_END
    engine.send(whole)
    assert client.until(SSE_END) == whole
    (line,) = front.ledger()
    stamps = [line[name] for name in ("connected", "first_byte", "last_byte", "end")]
    assert stamps == sorted(stamps)
    assert line["start"] <= line["first_byte"]
    rest = {name: line[name] for name in ("replica", "role", "id", "method", "path", "status", "bytes", "close")}
    assert rest == {
        "replica": "replica-0",
        "role": "primary",
        "id": "run-1-0",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "bytes": len(whole),
        "close": "complete",
    }


def test_an_event_is_passed_on_before_the_next_one_is_sent(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("a"))
    engine.request()
    engine.send(SSE_HEAD)
    assert client.until(b"\r\n\r\n") == SSE_HEAD
    for number in range(3):
        engine.send(event(f"token {number}"))
        assert client.until(event(f"token {number}")) == event(f"token {number}")
    assert [entry["close"] for entry in front.open()] == ["open"]


def test_requests_on_one_connection_get_a_line_each(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    for name, status in (("one", "200 OK"), ("two", "503 Service Unavailable")):
        client.send(post(name))
        engine.request()
        engine.send(answer(b"{}", status))
        client.until(b"{}")
    lines = front.ledger(2)
    assert [(line["id"], line["status"], line["close"]) for line in lines] == [
        ("one", 200, "complete"),
        ("two", 503, "complete"),
    ]
    assert lines[0]["connected"] == lines[1]["connected"] < lines[1]["start"]


def test_pipelined_requests_are_answered_in_order_with_a_line_each(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("one") + post("two"))
    engine.request()
    assert engine.silent()  # the second waits for the first answer
    engine.send(answer(b'"1"'))
    engine.request()
    engine.send(answer(b'"2"'))
    assert client.until(b'"1"')
    assert client.until(b'"2"')
    assert [line["id"] for line in front.ledger(2)] == ["one", "two"]


def test_heads_and_bodies_in_single_bytes_are_framed_all_the_same(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    for byte in post("slow"):
        client.send(bytes([byte]))
    engine.request()
    whole = SSE_HEAD + event("a") + SSE_END
    for byte in whole:
        engine.send(bytes([byte]))
    assert client.until(SSE_END) == whole
    (line,) = front.ledger()
    assert (line["id"], line["status"], line["bytes"], line["close"]) == ("slow", 200, len(whole), "complete")


def test_only_inference_is_recorded(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    for path in ("/health", "/metrics", "/v1/models"):
        client.send(f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
        assert engine.request()[0] == f"GET {path} HTTP/1.1"
        engine.send(answer(b"{}"))
        client.until(b"{}")
    client.send(post("x", path="/tokenize"))
    engine.request()
    engine.send(answer(b"{}"))
    client.until(b"{}")
    client.send(post("y", path="/v1/completions?a=b"))
    engine.request()
    engine.send(answer(b"{}"))
    client.until(b"{}")
    assert [(line["id"], line["path"]) for line in front.ledger()] == [("y", "/v1/completions")]


@pytest.mark.parametrize(
    ("how", "seen", "close"), [("close", "fin", "upstream_fin"), ("reset", "reset", "upstream_reset")]
)
@pytest.mark.parametrize("begun", [False, True])
def test_the_end_of_the_replica_reaches_the_client_as_it_is(
    front: ProxyUnderTest, upstream: Upstream, how: str, seen: str, close: str, begun: bool
) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("a"))
    engine.request()
    if begun:
        engine.send(SSE_HEAD + event("a"))
        client.until(event("a"))
    getattr(engine, how)()
    assert client.ended() == seen
    assert client.buffer == b""
    (line,) = front.ledger()
    assert (line["close"], line["status"]) == (close, 200 if begun else None)


def test_a_response_that_ends_with_its_connection_is_complete(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("a"))
    engine.request()
    engine.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    engine.close()
    assert client.ended() == "fin"
    assert client.buffer.endswith(b"all of it")
    assert front.ledger()[0]["close"] == "complete"


def test_refused_upstream_is_a_reset_and_keeps_the_id(tmp_path: Path) -> None:
    with proxy(tmp_path, free_port()) as front:
        client = front.connect()
        client.send(post("lost"))
        assert client.ended() == "reset"
        assert client.buffer == b""
        (line,) = front.ledger()
        assert (line["id"], line["close"], line["connected"], line["status"]) == ("lost", "refused", None, None)


def test_refused_upstream_resets_a_silent_client_without_a_line(tmp_path: Path) -> None:
    with proxy(tmp_path, free_port()) as front:
        assert front.connect().ended() == "reset"
        assert front.path.read_text() == ""


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_goes_away_closes_the_upstream_at_once(
    front: ProxyUnderTest, upstream: Upstream, how: str
) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("gone"))
    engine.request()
    engine.send(SSE_HEAD + event("a"))
    client.until(event("a"))
    getattr(client, how)()
    assert engine.ended() == ("fin" if how == "close" else "reset")
    assert [(line["id"], line["close"]) for line in front.ledger()] == [("gone", "client_gone")]


def test_unframed_bytes_pass_all_the_same(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(b"hello there\r\n\r\n")
    assert engine.until(b"there\r\n\r\n") == b"hello there\r\n\r\n"
    engine.send(b"who is it")
    assert client.until(b"it") == b"who is it"


def test_an_upgraded_connection_becomes_a_tunnel(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(b"GET /v1/realtime HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
    engine.request()
    engine.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")
    client.until(b"\r\n\r\n")
    client.send(b"\x81\x02hi")
    assert engine.until(b"hi") == b"\x81\x02hi"
    engine.send(b"\x81\x02ho")
    assert client.until(b"ho") == b"\x81\x02ho"


def test_sigterm_ends_it_quickly_and_records_what_was_open(
    front: ProxyUnderTest, upstream: Upstream, capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(connect(front.control.removeprefix("http://"))):  # an idle connection does not hold it up
        _end_by_signal(front, upstream)
    assert capfd.readouterr().err == ""


def _end_by_signal(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("a"))
    engine.request()
    front.child.send_signal(signal.SIGTERM)
    assert front.child.wait(5) == 0
    assert client.ended() == "reset"
    assert [line["close"] for line in front.ledger()] == ["cut"]


def test_flush_and_status_tell_what_is_there(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("a"))
    engine.request()
    status = http("GET", f"{front.control}/status")
    assert (status["open"], status["connections"], status["faults"]) == (1, 1, [])
    engine.send(answer(b"{}"))
    client.until(b"{}")
    assert http("POST", f"{front.control}/flush") == {"flushed": True, "lost": 0}
    assert http("GET", f"{front.control}/status")["closes"] == {"complete": 1}


def test_a_slow_client_holds_the_replica_back_instead_of_filling_memory(
    front: ProxyUnderTest, upstream: Upstream
) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(post("a"))
    engine.request()
    size = 64 << 20
    engine.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
    client.until(b"\r\n\r\n")
    engine.sock.settimeout(1.0)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < size:
            sent += engine.sock.send(b"x" * (1 << 20))
    assert sent < size // 2
    client.close()
    eventually(lambda: not http("GET", f"{front.control}/ledger/open"))


def test_a_taken_port_is_one_line(tmp_path: Path, upstream: Upstream, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--listen", f"127.0.0.1:{upstream.port}", "--control", "127.0.0.1:0", "--upstream", "127.0.0.1:1"]
    with process("drills.proxy", *options, "--ledger", str(tmp_path / "l"), "--name", "r") as (child, ready):
        assert child.wait(10) == 3
    assert ready == {}
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        f"drills.proxy: --listen 127.0.0.1:{upstream.port}: Address already in use; choose a free port of this machine"
    ]
