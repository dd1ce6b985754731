"""What a gateway makes of a stream that was cut (`--on-cut`), seen by the load client's own reading of the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from drills.load.client import judge
from drills.load.sse import Answer
from drills.model import Outcome
from tests.contract.peers import SSE_END, SSE_HEAD, Peer, Upstream, event, process
from tests.contract.test_edge_answers import EdgeUnderTest, head, unchunk

ASKED = 5


@pytest.fixture
def primary() -> Iterator[Upstream]:
    peer = Upstream()
    yield peer
    peer.close()


@pytest.fixture
def on_cut(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def edge(primary: Upstream, on_cut: str) -> Iterator[EdgeUnderTest]:
    options = (f"--router={primary.url}", "--model=lab-chat", "--first-token-deadline-ms=5000", f"--on-cut={on_cut}")
    with process("drills.lab.edge", "--port=0", *options) as (_, ready):
        found = EdgeUnderTest(ready["listen"])
        yield found
        found.close()


def token(number: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": f"t{number} "}, "finish_reason": finish}
    return event({"model": "lab-chat", "choices": [choice]})


def usage(tokens: int) -> bytes:
    return event({"model": "lab-chat", "choices": [], "usage": {"completion_tokens": tokens}})


def answer_whole(primary: Upstream) -> dict[str, str]:
    engine = primary.accept()
    fields = engine.request()[1]
    engine.send(SSE_HEAD + b"".join(token(n, "length" if n == ASKED - 1 else None) for n in range(ASKED)))
    engine.send(usage(ASKED) + event("[DONE]") + SSE_END)
    return fields


def understood(body: bytes) -> Answer:
    answer = Answer()
    answer.feed(body, time.monotonic())
    return answer


@pytest.fixture
def client(edge: EdgeUnderTest, primary: Upstream) -> Iterator[Peer]:
    client = edge.ask("run-1-0", max_tokens=ASKED)
    yield client
    assert edge.metrics()['edge_requests_total{outcome="error",answer="none"}'] == 0, "this edge would admit it"


def read_on(primary: Upstream, client: Peer, tokens: int) -> bytes:
    """Cut the stream, and return the text of the whole body."""
    kept = b""
    engine = primary.accept()
    engine.request()
    engine.send(SSE_HEAD + token(0))
    head(client)
    kept += client.until(token(0))
    for number in range(1, tokens):
        engine.send(token(number))
        kept += client.until(token(number))
    engine.close()
    return kept


@pytest.mark.parametrize("on_cut", ["finish"], indirect=True)
def test_a_cut_stream_is_given_an_end_that_no_model_said(client: Peer, primary: Upstream) -> None:
    kept = read_on(primary, client, 3)
    answer = understood(unchunk(kept + client.until(SSE_END)))
    assert (answer.numbers(), answer.finish, answer.done, answer.tokens) == ([0, 1, 2], "stop", True, None)
    outcome, _, said = judge(answer, ASKED, ())
    assert (outcome, said) == (Outcome.TRUNCATED, "finish_reason stop and no usage")


@pytest.mark.parametrize("on_cut", ["splice"], indirect=True)
def test_a_cut_stream_goes_on_with_a_new_answer_from_its_beginning(client: Peer, primary: Upstream) -> None:
    kept = read_on(primary, client, 3)
    assert answer_whole(primary)["x-request-id"] == "run-1-0"
    answer = understood(unchunk(kept + client.until(SSE_END)))
    assert answer.numbers() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert answer.duplicated()
    assert judge(answer, ASKED, ())[0] is Outcome.OK, "it looks whole; only the text shows it"


@pytest.mark.parametrize("on_cut", ["splice"], indirect=True)
def test_with_nobody_to_go_on_the_user_sees_the_cut(edge: EdgeUnderTest, primary: Upstream) -> None:
    client = edge.ask("run-1-0", max_tokens=ASKED)
    read_on(primary, client, 1)
    primary.accept().reset()
    assert client.ended() in ("fin", "reset")
    assert not client.buffer.endswith(SSE_END)
    assert edge.metrics()['edge_errors_total{reason="cut"}'] == 1
