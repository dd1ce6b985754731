"""engine-hang: what counts as proof, on real processes behind a server whose answers the test decides."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from drills.access import procs
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.faults.engine_hang import EngineHang
from drills.model import Context, Host, Receipt, Replica, Restored
from tests.contract import serving_tree
from tests.contract.peers import eventually
from tests.contract.serving_tree import Tree

HOST = LocalHost()
GOOD = (
    b'{"model":"m","choices":[{"message":{"content":"t0"},"finish_reason":"length"}],"usage":{"completion_tokens":1}}'
)


class Completions(ThreadingHTTPServer):
    """Answers completions unless it is told to be silent."""

    daemon_threads = True
    silent = False


class Handler(BaseHTTPRequestHandler):
    server: Completions

    def do_POST(self) -> None:
        if not self.server.silent:
            self.send_response(200)
            self.send_header("Content-Length", str(len(GOOD)))
            self.end_headers()
            self.wfile.write(GOOD)
            return
        while self.rfile.read(1):  # until the other side has had enough
            pass

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Completions]:
    found = Completions(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, args=(0.05,))
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join(10)


class Bench:
    """A target of one replica, and a driver's view of the fault on it."""

    name = "bench"
    kind = "lab"
    model = "m"
    fallback_models = ()

    def __init__(self, tree: Tree, server: Completions, folder: Path) -> None:
        self.custody = FileCustody(HOST, str(folder), "bench")
        self.fault = EngineHang(EngineHang.Params(), "lab")
        (pid, start), (engine_pid, engine_start) = tree.server, tree.engine
        url = f"http://127.0.0.1:{server.server_port}"
        self.replica = Replica("r0", "u0", "primary", url, ready=True, pid=pid, pid_start=start)
        self.replica = replace(self.replica, engine_pid=engine_pid, engine_start=engine_start)

    def replicas(self) -> list[Replica]:
        return [self.replica]

    def control_host(self) -> Host:
        return HOST

    def host(self, name: str) -> Host:
        return HOST

    def context(self) -> Context:
        return Context(lambda *_: None, time.sleep, time.monotonic, lambda: True)  # looks once, does not wait

    @property
    def it(self) -> Any:
        return self

    def hang(self) -> Receipt:
        receipt = self.fault.aim(self.it, self.replicas(), run="r", receipt="r-0", deadline_s=60)
        self.fault.inject(self.it, receipt, self.context())
        return receipt

    def on(self, receipt: Receipt) -> bool | None:
        return self.fault.observe(self.it, receipt, self.context()).on


@pytest.fixture
def tree() -> Iterator[Tree]:
    with serving_tree.running() as found:
        yield found


@pytest.fixture
def bench(tree: Tree, server: Completions, tmp_path: Path) -> Bench:
    return Bench(tree, server, tmp_path)


def state(tree: Tree) -> str:
    found = procs.stat(tree.engine[0])
    return found[0] if found else "gone"


def test_stopped_and_silent_is_on_and_going_on_and_answering_is_off(
    bench: Bench, tree: Tree, server: Completions
) -> None:
    assert bench.fault.preflight(bench.it, bench.replicas()) == []
    receipt = bench.hang()
    eventually(lambda: state(tree) == "T")
    server.silent = True
    assert bench.on(receipt) is True
    assert bench.fault.revert(bench.it, receipt, bench.context()) is Restored.CLEAN
    eventually(lambda: state(tree) != "T")
    server.silent = False
    assert bench.on(receipt) is False


def test_one_without_the_other_proves_nothing(bench: Bench, tree: Tree, server: Completions) -> None:
    receipt = bench.hang()
    eventually(lambda: state(tree) == "T")
    assert bench.on(receipt) is None, "somebody else answers for an engine that is stopped"
    bench.custody.undo(receipt)
    server.silent = True
    assert bench.on(receipt) is None, "it goes on and has not made a token yet"


def test_an_engine_that_is_gone_does_not_hang(bench: Bench, tree: Tree, server: Completions) -> None:
    receipt = bench.hang()
    procs.signal(*tree.engine, signal.SIGKILL)
    eventually(lambda: not procs.alive(*tree.engine))
    server.silent = True
    assert bench.on(receipt) is False
    assert bench.fault.revert(bench.it, receipt, bench.context()) is Restored.CLEAN


def test_an_engine_that_somebody_stopped_already_is_refused(bench: Bench, tree: Tree) -> None:
    procs.signal(*tree.engine, signal.SIGSTOP)
    eventually(lambda: state(tree) == "T")
    [reason] = bench.fault.preflight(bench.it, bench.replicas())
    assert reason == "r0: its engine is stopped already, by somebody else"
    nameless = replace(bench.replica, engine_pid=None, engine_start=None)
    [reason] = bench.fault.preflight(bench.it, [nameless])
    assert "engine process is not known" in reason
