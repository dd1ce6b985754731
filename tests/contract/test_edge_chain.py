"""Edge, real router, proxies and engines together: what one link does is seen at the other end."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drills.lab import router
from tests.contract.engine_harness import MODEL, Engine, running
from tests.contract.peers import Peer, ProxyUnderTest, connect, eventually, free_port, post, process, proxy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="vllm-router has wheels for Linux only")

TOKENS = 8


@dataclass
class Chain:
    """A deployment of one primary and one fallback."""

    edge: str
    primary: ProxyUnderTest
    small: ProxyUnderTest
    engine: Engine

    def ask(self, name: str, tokens: int = TOKENS) -> Peer:
        options = {"include_usage": True}
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello there"}], "stream": True}
        body = json.dumps(chat | {"max_tokens": tokens, "ignore_eos": True, "stream_options": options}).encode()
        client = connect(self.edge)
        client.send(post(name, body).replace(b"Host: t\r\n", b"Host: t\r\nContent-Type: application/json\r\n"))
        return client


def healthy(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
        return bool(reply.status == 200)
    return False


@contextlib.contextmanager
def routed(folder: Path, workers: list[str]) -> Iterator[int]:
    port = free_port()
    with Path(folder, "router.log").open("wb") as log:
        argv = router.argv("127.0.0.1", port, free_port(), workers)
        with subprocess.Popen(argv, stdout=log, stderr=log) as child:
            try:
                eventually(lambda: child.poll() is not None or healthy(port), timeout_s=30)
                assert child.poll() is None, Path(folder, "router.log").read_text()
                yield port
            finally:
                child.kill()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        engine = enter(running("emulator", tmp_path, step_base_ms="5"))
        small = enter(running("emulator", tmp_path, step_base_ms="5"))
        before = enter(proxy(tmp_path, engine.port, "--health=honest", f"--model={MODEL}"))
        before_small = enter(proxy(tmp_path, small.port, "--role=fallback"))
        port = enter(routed(tmp_path, [f"http://{before.listen}"]))
        fixed = ["--port=0", f"--router=http://127.0.0.1:{port}", f"--model={MODEL}", "--first-token-deadline-ms=1000"]
        fallback = [
            f"--fallback=http://{before_small.listen}",
            f"--fallback-model={MODEL}",
            "--fallback-deadline-ms=5000",
        ]
        _, ready = enter(process("drills.lab.edge", *fixed, *fallback))
        yield Chain(ready["listen"], before, before_small, engine)


def answered(client: Peer) -> tuple[str, list[Any]]:
    """Read a whole answer; return who gave it and its events."""
    with contextlib.closing(client.sock):
        head = client.until(b"\r\n\r\n").decode().lower()
        who = head.partition("x-edge-answer: ")[2].partition("\r\n")[0]
        body = client.until(b"[DONE]\n\n")
    payloads = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: {")]
    return who, [json.loads(payload) for payload in payloads]


def test_an_id_goes_all_the_way_and_is_on_record_once(chain: Chain) -> None:
    who, events = answered(chain.ask("run-1-0"))
    assert (who, events[-1]["usage"]["completion_tokens"]) == ("primary", TOKENS)
    (line,) = chain.primary.ledger()
    assert (line["id"], line["status"], line["close"]) == ("run-1-0", 200, "complete")
    assert chain.small.path.read_text() == ""


def test_a_delayed_route_degrades_and_its_engine_stops_working(chain: Chain) -> None:
    answered(chain.ask("run-1-0"))  # the router's connection to the proxy is there before the fault
    chain.primary.fault("first_byte", 60)
    who, events = answered(chain.ask("run-2-0", tokens=400))
    assert (who, events[-1]["usage"]["completion_tokens"]) == ("fallback", 400)
    late = chain.primary.ledger(2)[1]
    assert (late["id"], late["close"], late["first_byte"]) == ("run-2-0", "client_gone", None)
    assert [(line["id"], line["role"]) for line in chain.small.ledger()] == [("run-2-0", "fallback")]
    eventually(lambda: chain.engine.running() == 0)
    chain.primary.lift()
    assert answered(chain.ask("run-3-0"))[0] == "primary"


def test_a_dead_engine_is_an_attempt_on_record_and_a_degraded_answer(chain: Chain) -> None:
    answered(chain.ask("run-1-0"))
    chain.engine.signal(signal.SIGKILL)
    chain.engine.wait_exit()
    assert answered(chain.ask("run-2-0"))[0] == "fallback"
    tries = [line for line in chain.primary.ledger(2)[1:] if line["id"] == "run-2-0"]
    assert {line["close"] for line in tries} <= {"refused", "upstream_fin", "upstream_reset"}
    assert tries


def test_an_engine_that_dies_in_a_stream_is_seen_dying_by_the_user(chain: Chain) -> None:
    client = chain.ask("run-1-0", tokens=4000)
    client.until(b'"content":"t3 "')
    chain.engine.signal(signal.SIGKILL)
    with contextlib.closing(client.sock):
        assert client.ended() in ("fin", "reset")
    assert not client.buffer.endswith(b"0\r\n\r\n")
    assert [(line["id"], line["close"]) for line in chain.primary.ledger()] == [("run-1-0", "upstream_fin")]
    assert chain.small.path.read_text() == ""


def test_honest_health_sees_a_hung_engine_that_its_own_health_does_not(chain: Chain) -> None:
    front = f"http://{chain.primary.listen}/health"
    with urllib.request.urlopen(front, timeout=5) as reply:
        assert reply.status == 200
    core = chain.engine.core()
    core.suspend()
    try:
        assert chain.engine.health() == 200
        eventually(lambda: _status(front) == 503)
    finally:
        core.resume()
    eventually(lambda: _status(front) == 200)


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
