"""The edge answers once, from the best source that is in time; the test is the user and both models."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.peers import (
    SSE_END,
    SSE_HEAD,
    Peer,
    Upstream,
    answer,
    connect,
    event,
    eventually,
    free_port,
    post,
    process,
)

ASK = {"model": "lab-chat", "stream": True, "max_tokens": 5, "stream_options": {"include_usage": True}}
DEADLINE_MS = 300
Start = Callable[..., "EdgeUnderTest"]


def token(text: str, finish: str | None = None, model: str = "lab-chat") -> bytes:
    return event({"model": model, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


WHOLE = token("a") + token("b", "length") + event("[DONE]") + SSE_END


class EdgeUnderTest:
    def __init__(self, listen: str) -> None:
        self.listen, self.clients = listen, list[Peer]()

    def connect(self) -> Peer:
        self.clients.append(connect(self.listen))
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def ask(self, name: str = "run-1-0", **more: Any) -> Peer:
        client = self.connect()
        client.send(post(name, json.dumps(ASK | more).encode()))
        return client

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{self.listen}/metrics", timeout=10) as reply:
            lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def counted(self, outcome: str, source: str, count: int = 1) -> bool:
        series = f'edge_requests_total{{outcome="{outcome}",answer="{source}"}}'
        return bool(eventually(lambda: self.metrics()[series] == count))


@pytest.fixture
def primary() -> Iterator[Upstream]:
    peer = Upstream()
    yield peer
    peer.close()


@pytest.fixture
def fallback() -> Iterator[Upstream]:
    peer = Upstream()
    yield peer
    peer.close()


@pytest.fixture
def start(primary: Upstream, fallback: Upstream) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def run(*options: str, router: str = primary.url, small: str = fallback.url) -> EdgeUnderTest:
            fixed = ["--port=0", f"--router={router}", "--model=lab-chat", f"--fallback={small}"]
            named = ["--fallback-model=lab-small", f"--first-token-deadline-ms={DEADLINE_MS}"]
            _, ready = stack.enter_context(process("drills.lab.edge", *fixed, *named, *options))
            edge = EdgeUnderTest(ready["listen"])
            stack.callback(edge.close)
            return edge

        yield run


def head(client: Peer) -> tuple[int, dict[str, str]]:
    lines = client.until(b"\r\n\r\n").decode().split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    return int(lines[0].split()[1]), fields


def unchunk(raw: bytes) -> bytes:
    body = b""
    while raw:
        size, _, rest = raw.partition(b"\r\n")
        body, raw = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def events(raw: bytes) -> list[Any]:
    payloads = [part.removeprefix(b"data: ") for part in raw.split(b"\n\n") if part]
    return [payload if payload == b"[DONE]" else json.loads(payload) for payload in payloads]


def test_a_primary_in_time_is_passed_on_token_by_token(start: Start, primary: Upstream) -> None:
    edge = start()
    client = edge.ask("run-7-0", user="drill")
    engine = primary.accept()
    first, fields, body = engine.request()
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert fields["x-request-id"] == "run-7-0"
    assert json.loads(body) == ASK | {"user": "drill"}
    engine.send(SSE_HEAD + token("a"))
    status, answered = head(client)
    assert (status, answered["x-edge-answer"], answered["content-type"]) == (200, "primary", "text/event-stream")
    assert "x-cache" not in answered
    client.until(token("a"))
    engine.send(token("b", "length"))
    client.until(token("b", "length"))
    engine.send(event("[DONE]") + SSE_END)
    assert client.until(SSE_END) == event("[DONE]") + SSE_END
    assert edge.counted("ok", "primary")


def test_authorization_reaches_both_models(start: Start, primary: Upstream, fallback: Upstream) -> None:
    edge = start()
    client = edge.connect()
    client.send(post("a", json.dumps(ASK).encode()).replace(b"Host: t\r\n", b"Host: t\r\nAuthorization: Bearer k\r\n"))
    engine = primary.accept()
    assert engine.request()[1]["authorization"] == "Bearer k"
    engine.close()
    assert fallback.accept().request()[1]["authorization"] == "Bearer k"


def test_a_late_primary_is_abandoned_for_the_fallback(start: Start, primary: Upstream, fallback: Upstream) -> None:
    edge = start()
    client = edge.ask("run-7-0")
    engine = primary.accept()
    engine.request()
    engine.send(SSE_HEAD)  # a status is no token
    small = fallback.accept()
    _, fields, body = small.request()
    assert fields["x-request-id"] == "run-7-0"
    assert json.loads(body) == ASK | {"model": "lab-small"}
    assert engine.ended() == "fin"  # so that its engine aborts
    small.send(SSE_HEAD + token("s", model="lab-small"))
    status, answered = head(client)
    assert (status, answered["x-edge-answer"]) == (200, "fallback")
    assert client.until(token("s", model="lab-small"))
    small.send(event("[DONE]") + SSE_END)
    client.until(SSE_END)
    assert edge.counted("degraded", "fallback")
    assert edge.metrics()['edge_abandoned_total{answer="primary",reason="deadline"}'] == 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (answer(b'{"error":{"code":503}}', "503 Service Unavailable"), "http_503"),
        (answer(b'{"error":{"code":500}}', "500 Internal Server Error"), "http_500"),
        (answer(b'{"error":{"code":429}}', "429 Too Many Requests"), "http_429"),
        (SSE_HEAD + event({"error": {"code": 500}}) + event("[DONE]") + SSE_END, "sse_error"),
        (SSE_HEAD + event("[DONE]") + SSE_END, "sse_error"),
        (SSE_HEAD + SSE_END, "empty"),
        (SSE_HEAD, "reset"),
        (b"", "reset"),
    ],
)
def test_a_primary_that_fails_before_its_first_token_is_replaced(
    start: Start, primary: Upstream, fallback: Upstream, reply: bytes, reason: str
) -> None:
    edge = start("--first-token-deadline-ms=60000")
    client = edge.ask()
    engine = primary.accept()
    engine.request()
    engine.send(reply)
    engine.close()
    small = fallback.accept()
    small.request()
    small.send(SSE_HEAD + WHOLE)
    assert head(client)[1]["x-edge-answer"] == "fallback"
    assert unchunk(client.until(SSE_END)) == unchunk(WHOLE)
    assert edge.metrics()[f'edge_abandoned_total{{answer="primary",reason="{reason}"}}'] == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_with_both_models_down_a_stored_answer_of_the_asked_length_comes(start: Start, path: str, stream: bool) -> None:
    edge = start(router=f"http://127.0.0.1:{free_port()}", small=f"http://127.0.0.1:{free_port()}")
    client = edge.connect()
    client.send(post("run-7-0", json.dumps(ASK | {"stream": stream}).encode(), path))
    status, fields = head(client)
    assert (status, fields["x-cache"], fields["x-edge-answer"]) == (200, "hit", "cached")
    raw = client.until(b"[DONE]\n\n") if stream else client.until(b"}}")
    found = events(raw) if stream else [json.loads(raw)]
    assert all(one == b"[DONE]" or (one["cached"], one["model"]) == (True, "lab-chat") for one in found)
    if stream:
        assert found[-1] == b"[DONE]"
        assert found[-2]["usage"]["completion_tokens"] == 5
        assert found[-3]["choices"][0]["finish_reason"] == "length"
    else:
        assert found[0]["usage"]["completion_tokens"] == 5
    assert edge.counted("degraded", "cached")
    assert 'edge_abandoned_total{answer="fallback",reason="refused"}' in edge.metrics()


def test_a_late_fallback_gives_way_to_the_stored_answer(start: Start, primary: Upstream, fallback: Upstream) -> None:
    edge = start("--fallback-deadline-ms=200")
    client = edge.ask()
    primary.accept().request()
    small = fallback.accept()
    small.request()
    assert head(client)[1]["x-cache"] == "hit"
    assert small.ended() == "fin"


def test_without_alternatives_the_primary_is_waited_for(start: Start, primary: Upstream, fallback: Upstream) -> None:
    edge = start("--no-fallback", "--no-cache", "--first-token-deadline-ms=50")
    client = edge.ask()
    engine = primary.accept()
    engine.request()
    assert client.silent(0.3)  # six deadlines
    engine.send(SSE_HEAD)
    assert head(client)[0] == 200
    engine.send(WHOLE)
    assert unchunk(client.until(SSE_END)) == unchunk(WHOLE)
    fallback.listener.settimeout(0.05)
    with pytest.raises(TimeoutError):
        fallback.accept()
    assert edge.counted("ok", "primary")


@pytest.mark.parametrize("status", ["503 Service Unavailable", "429 Too Many Requests"])
def test_without_alternatives_errors_are_passed_through(start: Start, primary: Upstream, status: str) -> None:
    edge = start("--no-fallback", "--no-cache")
    client = edge.ask()
    engine = primary.accept()
    engine.request()
    engine.send(answer(b'{"error":"its own words"}', status))
    assert head(client)[0] == int(status.split()[0])
    assert client.until(b"}") == b'{"error":"its own words"}'
    assert edge.counted("error", "none")
    assert edge.metrics()['edge_ttft_seconds_bucket{le="10.0"}'] == 0
    assert edge.metrics()['edge_ttft_seconds_bucket{le="+Inf"}'] == 1


def test_without_alternatives_a_dead_router_is_502(start: Start) -> None:
    edge = start("--no-fallback", "--no-cache", router=f"http://127.0.0.1:{free_port()}")
    client = edge.ask()
    assert head(client)[0] == 502
    assert json.loads(client.until(b"}}"))["error"]["code"] == 502


def test_what_was_asked_wrongly_is_nobody_elses_to_answer(start: Start, primary: Upstream) -> None:
    edge = start()
    client = edge.connect()
    client.send(post("a", b"{no json"))
    engine = primary.accept()
    assert engine.request()[2] == b"{no json"
    engine.send(answer(b'{"error":{"code":400}}', "400 Bad Request"))
    assert head(client)[0] == 400
    eventually(lambda: edge.metrics().get('edge_client_errors_total{status="400"}') == 1)
    assert edge.metrics()['edge_requests_total{outcome="error",answer="none"}'] == 0


@pytest.mark.parametrize(("how", "seen"), [("close", "fin"), ("reset", "reset")])
def test_a_stream_that_dies_is_never_continued(
    start: Start, primary: Upstream, fallback: Upstream, how: str, seen: str
) -> None:
    edge = start()
    client = edge.ask()
    engine = primary.accept()
    engine.request()
    engine.send(SSE_HEAD + token("a"))
    client.until(token("a"))
    getattr(engine, how)()
    assert client.ended() == seen
    assert client.buffer == b""  # no terminal chunk, nothing of another answer
    fallback.listener.settimeout(0.05)
    with pytest.raises(TimeoutError):
        fallback.accept()
    assert edge.counted("error", "none")
    assert edge.metrics()['edge_errors_total{reason="cut"}'] == 1


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (event({"error": {"message": "EngineCore", "code": 500}}) + event("[DONE]"), "sse_error"),
        (token("", "abort") + event("[DONE]"), "abort"),
        (b"", "unfinished"),
    ],
)
def test_a_stream_that_ends_wrongly_in_good_form_passes_verbatim(
    start: Start, primary: Upstream, end: bytes, reason: str
) -> None:
    edge = start()
    client = edge.ask()
    engine = primary.accept()
    engine.request()
    rest = token("a") + end + SSE_END
    engine.send(SSE_HEAD + rest)
    head(client)
    assert unchunk(client.until(SSE_END)) == unchunk(rest)
    assert edge.counted("error", "none")
    assert edge.metrics()[f'edge_errors_total{{reason="{reason}"}}'] == 1


@pytest.mark.parametrize("begun", [False, True])
def test_a_user_who_leaves_takes_everything_behind_along(start: Start, primary: Upstream, begun: bool) -> None:
    edge = start("--first-token-deadline-ms=60000")
    client = edge.ask()
    engine = primary.accept()
    engine.request()
    if begun:
        engine.send(SSE_HEAD + token("a"))
        client.until(token("a"))
    client.close()
    assert engine.ended() in ("fin", "reset")
    assert edge.counted("cancelled", "none")
    assert edge.metrics()["edge_in_flight"] == 0


def test_a_user_who_leaves_during_the_fallback_takes_it_along(
    start: Start, primary: Upstream, fallback: Upstream
) -> None:
    edge = start("--fallback-deadline-ms=60000")
    client = edge.ask()
    primary.accept().close()
    small = fallback.accept()
    small.request()
    client.close()
    assert small.ended() == "fin"


def test_answers_that_are_not_streamed_come_whole(start: Start, primary: Upstream) -> None:
    edge = start("--first-token-deadline-ms=60000")
    client = edge.ask(stream=False)
    engine = primary.accept()
    engine.request()
    body = b'{"model": "lab-chat", "choices": [{"finish_reason": "length"}]}'
    engine.send(answer(body))
    assert head(client)[1]["content-length"] == str(len(body))
    assert client.until(b"]}") == body
    assert edge.counted("ok", "primary")


def test_models_and_health(start: Start, primary: Upstream) -> None:
    edge = start()
    client = edge.connect()
    client.send(b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n")
    engine = primary.accept()
    assert engine.request()[0] == "GET /v1/models HTTP/1.1"
    engine.send(answer(b'{"data":[]}'))
    assert client.until(b"]}").endswith(b'{"data":[]}')
    client.send(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
    assert head(client)[0] == 200


def test_the_histogram_has_edges_at_the_sla_and_at_one_and_a_half(start: Start) -> None:
    edge = start("--sla-ttft-s=0.8")
    names = edge.metrics()
    for bound in ("0.8", "1.2", "+Inf"):
        assert f'edge_ttft_seconds_bucket{{le="{bound}"}}' in names


def test_a_taken_port_is_one_line(primary: Upstream, capfd: pytest.CaptureFixture[str]) -> None:
    options = [f"--port={primary.port}", f"--router={primary.url}", "--model=m"]
    with process("drills.lab.edge", *options) as (child, ready):
        assert child.wait(10) == 3
    assert ready == {}
    said = f"drills.lab.edge: --port {primary.port}: Address already in use; choose a free port of this machine"
    assert capfd.readouterr().err.splitlines() == [said]
