"""Faults of the proxy bite on connections that are open, and let go of them while they are open."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.peers import (
    SSE_END,
    SSE_HEAD,
    Peer,
    ProxyUnderTest,
    Upstream,
    answer,
    event,
    http,
    post,
    proxy,
)

LONG_S = 60.0  # longer than any test: what arrives in one was let go, not waited for
SHORT_S = 0.3


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    peer = Upstream()
    yield peer
    peer.close()


@pytest.fixture
def front(tmp_path: Path, upstream: Upstream) -> Iterator[ProxyUnderTest]:
    with proxy(tmp_path, upstream.port) as running:
        yield running


@pytest.fixture
def pair(front: ProxyUnderTest, upstream: Upstream) -> tuple[Peer, Peer]:
    """A kept-alive connection that has served one request, from both ends."""
    client = front.connect()
    engine = upstream.accept()
    client.send(post("before"))
    engine.request()
    engine.send(answer(b"{}"))
    client.until(b"{}")
    return client, engine


def stream(client: Peer, engine: Peer) -> None:
    """Open a stream and get its first token."""
    client.send(post("stream"))
    engine.request()
    engine.send(SSE_HEAD + event("first"))
    client.until(event("first"))


def test_first_byte_delays_a_connection_that_was_there_before(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    front.fault("first_byte", SHORT_S)
    client.send(post("late"))
    engine.request()
    sent = time.monotonic()
    engine.send(SSE_HEAD + event("a"))
    client.until(event("a"))
    assert time.monotonic() - sent >= SHORT_S
    sent = time.monotonic()
    engine.send(event("b"))
    client.until(event("b"))
    assert time.monotonic() - sent < SHORT_S  # only the first byte is late
    engine.send(SSE_END)
    client.until(SSE_END)
    late = front.ledger(2)[1]
    assert late["first_byte"] - late["start"] >= SHORT_S


def test_first_byte_queues_what_follows_in_order(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    front.fault("first_byte", LONG_S)
    client.send(post("late"))
    engine.request()
    parts = [SSE_HEAD, *(event(str(number)) for number in range(20)), SSE_END]
    for part in parts:
        engine.send(part)
    assert client.silent()
    front.lift()
    assert client.until(SSE_END) == b"".join(parts)


def test_first_byte_leaves_a_stream_that_has_begun_alone(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    stream(client, engine)
    front.fault("first_byte", LONG_S)
    engine.send(event("next"))
    assert client.until(event("next"))


def test_per_request_holds_the_request_back(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    front.fault("per_request", LONG_S)
    client.send(post("held"))
    assert engine.silent()
    assert [entry["id"] for entry in front.open()] == ["held"]
    front.lift()
    assert engine.request()[1]["x-request-id"] == "held"


def test_per_request_lets_go_by_itself_in_time(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    front.fault("per_request", SHORT_S)
    sent = time.monotonic()
    client.send(post("held"))
    engine.request()
    assert time.monotonic() - sent >= SHORT_S


def test_a_client_that_gives_up_on_a_held_request_is_recorded(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    front.fault("per_request", LONG_S)
    client.send(post("held"))
    assert engine.silent()
    client.close()
    assert engine.ended() == "fin"
    assert [(line["id"], line["close"]) for line in front.ledger(2)][1] == ("held", "client_gone")


def test_per_chunk_stretches_a_stream_that_is_open(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    stream(client, engine)
    front.fault("per_chunk", SHORT_S)
    engine.send(event("a") + event("b"))  # one read, two pieces
    began = time.monotonic()
    client.until(event("a"))
    first = time.monotonic()
    client.until(event("b"))
    second = time.monotonic()
    assert first - began >= SHORT_S * 0.9
    assert second - first >= SHORT_S * 0.9


def test_lifting_a_fault_lets_open_streams_go_on_at_once(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    stream(client, engine)
    front.fault("per_chunk", LONG_S)
    parts = [event(str(number)) for number in range(10)]
    engine.send(b"".join(parts) + SSE_END)
    assert client.silent()
    assert front.lift()["removed"] is True
    assert client.until(SSE_END) == b"".join(parts) + SSE_END
    assert front.ledger(2)[1]["close"] == "complete"


def test_stall_stops_both_directions_and_lets_go(
    front: ProxyUnderTest, upstream: Upstream, pair: tuple[Peer, Peer]
) -> None:
    client, engine = pair
    stream(client, engine)
    front.fault("stall")
    engine.send(event("held"))
    late = front.connect()
    late.send(post("late"))
    other = upstream.accept()
    assert client.silent()
    assert other.silent()
    front.lift()
    assert client.until(event("held"))
    assert other.request()[1]["x-request-id"] == "late"


def test_the_end_of_a_stalled_replica_comes_after_what_it_sent(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    stream(client, engine)
    front.fault("stall")
    engine.send(event("last words"))
    engine.close()
    assert client.silent()
    front.lift()
    assert client.ended() == "fin"
    assert client.buffer == event("last words")


def test_a_client_that_leaves_a_stalled_stream_closes_the_upstream(
    front: ProxyUnderTest, pair: tuple[Peer, Peer]
) -> None:
    client, engine = pair
    stream(client, engine)
    front.fault("stall")
    client.close()
    assert engine.ended() == "fin"


def test_cut_resets_what_is_open_and_what_comes_later(
    front: ProxyUnderTest, upstream: Upstream, pair: tuple[Peer, Peer]
) -> None:
    client, engine = pair
    stream(client, engine)
    assert front.fault("cut")["open"] == 1
    assert client.ended() == "reset"
    engine.ended()
    late = front.connect()
    late.send(post("late"))
    other = upstream.accept()
    other.request()
    other.send(SSE_HEAD)
    late.until(b"\r\n\r\n")
    other.send(event("one"))
    assert late.ended() == "reset"
    assert late.buffer == event("one")
    assert [(line["id"], line["close"]) for line in front.ledger(3)][1:] == [("stream", "cut"), ("late", "cut")]


def test_cut_never_lets_an_answer_through_whole(front: ProxyUnderTest, pair: tuple[Peer, Peer]) -> None:
    client, engine = pair
    front.fault("cut")
    client.send(post("short"))
    engine.request()
    engine.send(answer(b'{"all":1}'))
    assert client.ended() == "reset"
    assert client.buffer.endswith(b'{"all":1')


def test_refuse_resets_new_requests_and_spares_open_streams(
    front: ProxyUnderTest, upstream: Upstream, pair: tuple[Peer, Peer]
) -> None:
    client, engine = pair
    stream(client, engine)
    front.fault("refuse")
    fresh = front.connect()
    fresh.send(post("fresh"))
    assert fresh.ended() == "reset"
    engine.send(event("on") + SSE_END)
    client.until(SSE_END)
    client.send(post("again"))
    assert client.ended() == "reset"
    closes = {line["id"]: line["close"] for line in front.ledger(4)}
    assert closes == {"before": "complete", "fresh": "refused", "stream": "complete", "again": "refused"}
    front.lift()
    after = front.connect()
    after.send(post("after"))
    upstream.accept()  # the refused connection's own
    assert upstream.accept().request()[1]["x-request-id"] == "after"


def test_faults_are_named_and_removed_by_name(front: ProxyUnderTest) -> None:
    front.fault("stall", name="a")
    front.fault("first_byte", 2, name="b")
    front.fault("first_byte", 3, name="b")  # again: replaced
    assert [
        (fault["id"], fault["mode"], fault["delay_s"]) for fault in http("GET", f"{front.control}/status")["faults"]
    ] == [
        ("a", "stall", 5.0),
        ("b", "first_byte", 3.0),
    ]
    assert [front.lift("a")["removed"], front.lift("a")["removed"]] == [True, False]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"id": "x", "mode": "first_bite"}, "did you mean 'first_byte'?"),
        ({"id": "x", "mode": "cut", "delay": 5}, "unknown key 'delay'; did you mean 'delay_s'?"),
        ({"mode": "cut"}, "id: expected"),
        ({"id": "x", "mode": "stall", "delay_s": -1}, "delay_s: expected seconds"),
        ([], "expected an object"),
    ],
)
def test_a_bad_fault_is_refused_with_a_reason(front: ProxyUnderTest, body: object, says: str) -> None:
    refused = http("POST", f"{front.control}/faults", body)
    assert refused["status"] == 400
    assert says in refused["error"]
    assert http("GET", f"{front.control}/status")["faults"] == []


def test_the_control_port_says_what_it_has(front: ProxyUnderTest) -> None:
    assert http("GET", f"{front.control}/nope")["status"] == 404
    assert http("GET", f"{front.control}/flush")["status"] == 405
