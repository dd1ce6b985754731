"""What users and engines see of a late upstream, with a way out and without, and that the way back needs nobody."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3

from drills.faults.upstream_delay import UpstreamDelay
from drills.lab.client import Control, Lab
from drills.lab.target import LabTarget
from drills.model import Context, Json, Receipt, Replica
from drills.probes import router, vllm
from tests.contract.peers import free_port, process
from tests.lab import labs, traces
from tests.lab.drilling import Driller

pytestmark = pytest.mark.lab
HTTP = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(total=10))
TOKENS = 1500  # far more than an engine makes while a test lasts: what stops earlier was aborted


@dataclass(frozen=True)
class Begun:
    """The begin of an answer, after which the user hung up."""

    status: int
    source: str | None
    first_token_s: float


def ask(url: str) -> Begun:
    """Ask for a stream, wait for its first token, and hang up."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    body: Json = {"model": "lab-chat", "stream": True, "max_tokens": TOKENS, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": secrets.token_hex(8)}]
    began = time.monotonic()
    with contextlib.closing(connection):
        connection.request(
            "POST", f"{parts.path}/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        with contextlib.closing(answer):
            while b'"content":"t' not in (line := answer.readline()):
                assert line, f"{answer.status}: it ended without a token"
            return Begun(answer.status, answer.headers.get("X-Edge-Answer"), time.monotonic() - began)


class Late:
    """The fault on all primaries of the lab, as a driver puts it on that is never heard of again."""

    def __init__(self, target: LabTarget, delay_s: float) -> None:
        self.target = target
        fault = UpstreamDelay(UpstreamDelay.Params.model_validate({"delay": delay_s}), "lab")
        context = Context(lambda *_: None, time.sleep, time.monotonic, lambda: False)
        run = secrets.token_hex(4)
        self.receipt: Receipt = fault.aim(
            target, self.primaries(), run=run, receipt=f"{run}-0-upstream-delay", deadline_s=60.0
        )
        target.custody.arm(self.receipt)
        fault.inject(target, self.receipt, context)

    def primaries(self) -> list[Replica]:
        return [r for r in self.target.replicas() if r.role == "primary"]

    def running(self) -> float:
        """How many requests the engines of the primaries work on."""
        return sum(float(vllm.scrape(HTTP, r.url, timeout_s=5)[0]["running"]) for r in self.primaries())

    def noticed(self) -> bool:
        """Whether every proxy holds traffic back."""
        urls = [f"{self.target.proxy(r)['control']}/status" for r in self.primaries()]
        return all(HTTP.request("GET", url).json()["faults"] for url in urls)


@pytest.fixture
def late(target: LabTarget, lab: Lab) -> Iterator[Late]:
    one = Late(target, 3.0)
    labs.eventually(one.noticed)
    yield one
    target.custody.undo(one.receipt)
    target.custody.disarm(one.receipt)
    assert traces.left_behind(lab) == []


def many(url: str, count: int) -> list[Begun]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, [url] * count))


def test_the_degradation_opens_and_what_is_given_up_is_aborted_at_the_engine(late: Late, lab: Lab) -> None:
    answers = many(lab.url, 12)
    assert {(a.status, a.source) for a in answers} == {(200, "fallback")}
    assert max(a.first_token_s for a in answers) < 3.0
    labs.eventually(lambda: late.running() == 0, 2.0)
    scraped = router.scrape(HTTP, late.target.router_metrics or "", timeout_s=5)
    healthy = [value for name, value in scraped.items() if "worker_health" in name]
    assert healthy == [1.0] * 3, "an honest health answer is not delayed"


def test_without_a_way_out_the_user_waits_for_a_late_answer_that_is_no_error(late: Late, lab: Lab) -> None:
    port = free_port()
    options = [f"--port={port}", f"--router={lab.data['entry']['router']}", "--model=lab-chat", "--no-fallback"]
    with process("drills.lab.edge", *options, "--no-cache"):
        answers = many(f"http://127.0.0.1:{port}/v1", 3)
    assert {(a.status, a.source) for a in answers} == {(200, "primary")}
    assert min(a.first_token_s for a in answers) >= 3.0
    labs.eventually(lambda: late.running() == 0, 2.0)


def test_recover_takes_it_off_while_control_ports_are_full_and_requests_are_held(
    lab: Lab, target: LabTarget, control: Control, tmp_path: Path
) -> None:
    one = Late(target, 60.0)
    labs.eventually(one.noticed)
    with contextlib.ExitStack() as silent, ThreadPoolExecutor(3) as pool:
        for replica in one.primaries():
            parts = urlsplit(target.proxy(replica)["control"])
            for _ in range(60):
                silent.enter_context(socket.create_connection((parts.hostname or "", parts.port or 0)))
        held = [pool.submit(ask, f"{lab.data['entry']['router']}/v1") for _ in range(3)]
        labs.eventually(lambda: one.running() == 3)
        recovered = Driller(lab.dir, tmp_path, 1)("recover", "--reports", str(tmp_path))
        assert recovered.code == 0, recovered.out + recovered.err
        assert "upstream-delay on replica-0, replica-1, replica-2: put back" in recovered.out
        assert [f.result(20).status for f in held] == [200] * 3
    assert traces.left_behind(lab) == []
