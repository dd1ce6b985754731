"""Honest health is a real token, in time; everything else about /health passes through."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.peers import Peer, ProxyUnderTest, Upstream, answer, free_port, post, proxy

HEALTH = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"
GOOD = answer(b'{"choices":[{"text":" yes","finish_reason":"length"}],"usage":{"completion_tokens":1}}')


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    peer = Upstream()
    yield peer
    peer.close()


@pytest.fixture
def front(tmp_path: Path, upstream: Upstream) -> Iterator[ProxyUnderTest]:
    with proxy(tmp_path, upstream.port, "--health", "honest") as running:
        yield running


def status(client: Peer) -> int:
    return int(client.until(b"\r\n\r\n").split()[1])


def test_health_is_a_completion_of_one_token(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    upstream.accept()  # the connection's own
    client.send(HEALTH)
    probe = upstream.accept()
    first, fields, body = probe.request()
    assert first == "POST /v1/completions HTTP/1.1"
    ask = json.loads(body)
    assert (ask["model"], ask["max_tokens"]) == ("lab-chat", 1)
    assert "x-request-id" not in fields
    probe.send(GOOD)
    assert status(client) == 200
    assert front.path.read_text() == ""  # a probe is no attempt


@pytest.mark.parametrize(
    "reply",
    [
        answer(b'{"error":{"message":"EngineCore encountered an issue.","code":500}}', "500 Internal Server Error"),
        answer(b'{"choices":[{"text":"","finish_reason":"abort"}]}'),
        answer(b'{"choices":[]}'),
        answer(b"not json"),
        b"",
    ],
)
def test_anything_but_a_token_is_503(front: ProxyUnderTest, upstream: Upstream, reply: bytes) -> None:
    client = front.connect()
    upstream.accept()
    client.send(HEALTH)
    probe = upstream.accept()
    probe.request()
    probe.send(reply)
    probe.close()
    assert status(client) == 503


def test_a_hung_engine_is_503_within_the_deadline(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    upstream.accept()
    began = time.monotonic()
    client.send(HEALTH)
    probe = upstream.accept()
    probe.request()  # and never an answer
    assert status(client) == 503
    assert 0.9 < time.monotonic() - began < 2.0
    assert probe.ended() in ("fin", "reset")  # the late probe no longer costs the engine


def test_callers_at_the_same_time_share_one_probe(front: ProxyUnderTest, upstream: Upstream) -> None:
    clients = [front.connect() for _ in range(4)]
    for _ in clients:  # all of theirs first: the probe's own connection must be the next one
        upstream.accept()
    for client in clients:
        client.send(HEALTH)
    probe = upstream.accept()
    probe.request()
    probe.send(GOOD)
    assert [status(client) for client in clients] == [200] * 4
    upstream.listener.settimeout(0.2)
    clients[0].send(HEALTH)  # right after: the answer still stands
    assert status(clients[0]) == 200
    with pytest.raises(TimeoutError):
        upstream.accept()


def test_the_answer_is_asked_again_after_a_while(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    upstream.accept()
    client.send(HEALTH)
    probe = upstream.accept()
    probe.request()
    probe.send(GOOD)
    assert status(client) == 200
    time.sleep(0.6)
    client.send(HEALTH)
    upstream.accept().close()
    assert status(client) == 503


def test_health_and_requests_share_a_connection(front: ProxyUnderTest, upstream: Upstream) -> None:
    client = front.connect()
    engine = upstream.accept()
    client.send(HEALTH + post("after"))
    probe = upstream.accept()
    probe.request()
    probe.send(GOOD)
    assert status(client) == 200
    assert engine.request()[1]["x-request-id"] == "after"
    engine.send(answer(b"{}"))
    client.until(b"{}")
    assert [line["id"] for line in front.ledger()] == ["after"]


def test_delays_do_not_touch_it_and_refuse_does(front: ProxyUnderTest, upstream: Upstream) -> None:
    front.fault("first_byte", 60)
    client = front.connect()
    upstream.accept()
    client.send(HEALTH)
    probe = upstream.accept()
    probe.request()
    probe.send(GOOD)
    assert status(client) == 200
    front.fault("refuse", name="r2")
    client.send(HEALTH)
    assert client.ended() == "reset"


def test_a_replica_that_refuses_is_no_status(tmp_path: Path) -> None:
    with proxy(tmp_path, free_port(), "--health", "honest") as front:
        client = front.connect()
        client.send(HEALTH)
        assert client.ended() == "reset"
        assert client.buffer == b""


def test_passthrough_hands_the_engines_own_answer_on(tmp_path: Path, upstream: Upstream) -> None:
    with proxy(tmp_path, upstream.port) as front:
        client = front.connect()
        engine = upstream.accept()
        client.send(HEALTH)
        assert engine.request()[0] == "GET /health HTTP/1.1"
        engine.send(answer(b"", "503 Service Unavailable"))
        assert status(client) == 503
