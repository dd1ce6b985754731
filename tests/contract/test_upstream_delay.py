"""upstream-delay on real proxies: what it writes, how it proves itself on old connections, and how it goes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from drills import receipts
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.errors import Refused
from drills.faults import for_receipt
from drills.faults.upstream_delay import UpstreamDelay
from drills.model import Context, Host, Json, Observation, Receipt, Replica, Restored
from drills.params import FROM_FILE
from tests.contract.peers import ProxyUnderTest, eventually, free_port, http, proxy

HOST = LocalHost()
NAMES = ("r0", "r1", "small")
DELAY_S = 0.6


class Models(BaseHTTPRequestHandler):
    """A server that answers at once, on connections that stay."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"object":"list","data":[]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@dataclass
class Route:
    """A target of two primaries and a fallback; only what the fault asks for."""

    folder: Path
    proxies: dict[str, ProxyUnderTest]
    name: str = "bench"
    kind: str = "lab"
    rows: list[Replica] = field(default_factory=list)

    @property
    def custody(self) -> FileCustody:
        return FileCustody(HOST, str(self.folder / "drill"), self.name)

    def replicas(self) -> list[Replica]:
        return self.rows

    def control_host(self) -> Host:
        return HOST

    def host(self, name: str) -> Host:
        return HOST

    def proxy(self, replica: Replica) -> Json:
        front = self.proxies[replica.name]
        folder = str(self.folder / replica.name)
        return {"listen": f"http://{front.listen}", "control": front.control, "faults_dir": folder}

    def primaries(self) -> list[Replica]:
        return [r for r in self.rows if r.role == "primary"]


@pytest.fixture
def route(tmp_path: Path) -> Iterator[Route]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    with contextlib.ExitStack() as stack:
        fronts = {}
        for name in NAMES:
            folder = tmp_path / name
            folder.mkdir()
            fronts[name] = stack.enter_context(proxy(folder, server.server_port, "--faults-dir", str(folder)))
        roles = {name: "fallback" if name == "small" else "primary" for name in NAMES}
        rows = [Replica(name, f"u-{name}", role, "http://127.0.0.1:9", ready=True) for name, role in roles.items()]
        yield Route(tmp_path, fronts, rows=rows)
    server.shutdown()
    server.server_close()
    thread.join(10)


class Deed:
    """The fault on the route, with what it told."""

    def __init__(self, route: Route, mode: str = "first_byte", delay_s: float = DELAY_S) -> None:
        self.route: Any = route
        self.fault = UpstreamDelay(UpstreamDelay.Params.model_validate({"mode": mode, "delay": delay_s}), "lab")
        self.told: list[tuple[str, Json]] = []
        self.context = Context(lambda e, d: self.told.append((e, d)), time.sleep, time.monotonic, lambda: False)

    def aim(self, deadline_s: float = 60.0) -> Receipt:
        victims = self.route.primaries()
        return self.fault.aim(self.route, victims, run="r", receipt="r-0-upstream-delay", deadline_s=deadline_s)

    def inject(self, receipt: Receipt) -> None:
        self.fault.inject(self.route, receipt, self.context)

    def observe(self, receipt: Receipt, fault: UpstreamDelay | None = None) -> Observation:
        return (fault or self.fault).observe(self.route, receipt, self.context)


def by_replica(seen: Observation) -> dict[str, Json]:
    return {e["replica"]: e for e in seen.evidence}


@pytest.mark.parametrize("mode", ["first_byte", "per_request", "per_chunk"])
def test_it_is_proven_on_a_connection_from_before_and_off_by_a_request_that_was_held(route: Route, mode: str) -> None:
    deed = Deed(route, mode)
    assert deed.fault.preflight(deed.route, route.primaries()) == []
    receipt = deed.aim()
    deed.inject(receipt)
    assert [event for event, _ in deed.told] == ["inject.hit", "inject.step", "inject.step"]
    assert deed.told[0][1]["victims"] == ["r0", "r1"]
    on = deed.observe(receipt)
    assert (on.on, on.bystanders_ok) == (True, True), on.evidence
    seen = by_replica(on)
    assert {name: e["late"] for name, e in seen.items()} == {"r0": True, "r1": True, "small": False}
    assert {seen[name]["connection"] for name in ("r0", "r1")} == {"opened before the fault"}

    assert deed.fault.revert(deed.route, receipt, deed.context) is Restored.CLEAN
    off = deed.observe(receipt)
    assert (off.on, off.bystanders_ok) == (False, True), off.evidence
    assert by_replica(off)["r0"]["connection"] == "opened before the way back"
    assert [path for path in receipt.prior["files"].values() if Path(path).exists()] == []


def test_another_process_proves_it_on_new_connections_and_says_so(route: Route) -> None:
    deed = Deed(route)
    receipt = deed.aim()
    deed.inject(receipt)
    stranger: Any = for_receipt(receipts.from_json(json.loads(json.dumps(receipts.to_json(receipt)))), "lab")
    seen = deed.observe(receipt, stranger)
    assert seen.on is True
    assert {e["connection"] for e in seen.evidence} == {"new"}
    assert stranger.revert(deed.route, receipt, deed.context) is Restored.CLEAN
    assert deed.observe(receipt, stranger).on is False


def test_a_proxy_that_does_not_obey_is_no_proof(route: Route) -> None:
    deed = Deed(route)
    receipt = deed.aim()
    deed.inject(receipt)
    HOST.write(receipt.prior["files"]["r1"], "{ torn")  # as if this proxy were deaf: the file is there, no delay is
    seen = deed.observe(receipt)
    assert seen.on is None
    assert {e["replica"]: e["late"] for e in seen.evidence} == {"r0": True, "r1": False, "small": False}
    deed.fault.revert(deed.route, receipt, deed.context)


def test_a_bystander_that_is_late_as_well_is_seen(route: Route) -> None:
    deed = Deed(route)
    receipt = deed.aim()
    deed.inject(receipt)
    route.proxies["small"].fault("first_byte", DELAY_S)
    assert deed.observe(receipt).bystanders_ok is False
    deed.fault.revert(deed.route, receipt, deed.context)


def test_the_timer_takes_it_off_while_every_control_port_hangs_and_requests_are_held(route: Route) -> None:
    deed = Deed(route, delay_s=30.0)
    receipt = replace(deed.aim(), deadline_s=0.5)
    route.custody.arm(receipt)
    deed.inject(receipt)
    primaries = [route.proxies[name] for name in ("r0", "r1")]
    eventually(lambda: all(http("GET", f"{front.control}/status")["faults"] for front in primaries))
    with contextlib.ExitStack() as silent:
        for front in primaries:
            host, _, port = front.control.removeprefix("http://").rpartition(":")
            for _ in range(150):
                silent.enter_context(socket.create_connection((host, int(port))))
        held = [front.connect() for front in primaries]
        for client in held:
            client.send(b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n")
        for client in held:
            assert client.until(b'"data":[]}')  # far sooner than 30 s, or the peer's deadline has passed
    assert [o.timer_state for o in route.custody.outstanding()] == ["undone"]
    assert deed.observe(receipt).on is False
    assert route.custody.disarm(receipt)


def test_the_way_back_does_not_wait_for_a_proxy_that_is_stopped(route: Route) -> None:
    deed = Deed(route, delay_s=30.0)
    receipt = deed.aim()
    deed.inject(receipt)
    front = route.proxies["r0"]
    os.kill(front.child.pid, 19)
    try:
        began = time.monotonic()
        assert deed.fault.revert(deed.route, receipt, deed.context) is Restored.CLEAN
        took_s = time.monotonic() - began
    finally:
        os.kill(front.child.pid, 18)
    assert took_s < 15, took_s
    assert deed.observe(receipt).on is False


def test_whoever_stops_the_run_does_not_wait_for_a_late_answer(route: Route) -> None:
    deed = Deed(route, delay_s=40.0)
    receipt = deed.aim()
    deed.inject(receipt)
    asked: list[float] = []

    def stopping() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 4

    deed.context.stopping = stopping
    began = time.monotonic()
    assert deed.observe(receipt).on is None
    assert time.monotonic() - began < 20  # half of the delay: it was not waited for
    assert deed.fault.revert(deed.route, receipt, deed.context) is Restored.CLEAN
    assert deed.observe(receipt).on is False  # and the way back is proven all the same


def test_preflight_refuses_what_could_not_be_proven(route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    deed = Deed(route)
    route.proxies["r0"].fault("first_byte", DELAY_S, name="somebody")
    [late] = deed.fault.preflight(deed.route, route.primaries())
    assert late.startswith("r0: takes 0.6 s to answer already")
    route.proxies["r0"].lift("somebody")
    nowhere = {"listen": f"http://127.0.0.1:{free_port()}", "control": "", "faults_dir": None}
    monkeypatch.setattr(route, "proxy", lambda replica: nowhere)
    reasons = deed.fault.preflight(deed.route, route.primaries()[:1])
    assert [r.partition(" (")[0] for r in reasons] == [
        "r0: its proxy takes no faults as files",
        "r0: its proxy does not answer",
    ]


def test_a_replica_that_was_replaced_is_not_delayed(route: Route) -> None:
    deed = Deed(route)
    receipt = deed.aim()
    route.rows[1] = replace(route.rows[1], uid="another")
    with pytest.raises(Refused, match="r1: is no longer the replica that was aimed at"):
        deed.inject(receipt)
    assert [path for path in receipt.prior["files"].values() if Path(path).exists()] == []
    assert deed.told == []


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"delay": "100ms"}, "at least 200ms: less cannot be told from noise"),
        ({"delay": 5}, "unit"),
        ({"mode": "first"}, "first_byte"),
        ({"victims": 1}, "Extra inputs"),
    ],
)
def test_parameters(params: Json, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        UpstreamDelay.Params.model_validate(params, context=FROM_FILE)
    assert UpstreamDelay.Params().model_dump() == {"mode": "first_byte", "delay": 5.0}
