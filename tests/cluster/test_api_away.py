"""The API server is away for 20 s in the middle of a fault: the fault ends at its time, and the run as it should."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.model import Json
from tests.cluster import node, traces
from tests.cluster.cases import experiment
from tests.cluster.driving import begun, driller, kill_group, place, words, written
from tests.cluster.emulator import serving
from tests.cluster.served import Served
from tests.lab.drilling import Driller, events

AWAY_S = 20.0
API = "kube-apiserver"


@pytest.fixture(scope="module")
def shared(own_node: Path) -> Iterator[Served]:
    """All of it, on a node whose API server can be stopped."""
    with serving(Served, own_node) as made:
        yield made


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, service: Served) -> Iterator[Driller]:
    service.declare(tmp_path, entry="router", e2e="4s")
    made = driller(tmp_path, cluster, timeout_s=400.0)
    yield made
    made("recover", *place(made))


def packet_loss(drill: Driller) -> list[str]:
    return words(drill, written(drill, experiment("packet-loss")))


def away() -> None:
    """Stop the API server for a while, whatever happens meanwhile."""
    node.stop(API)
    try:
        time.sleep(AWAY_S)
    finally:
        node.start(API)


def data(folder: Path, name: str) -> list[Json]:
    """Return what the journal says of those events of the fault itself."""
    return [e["data"] for e in events(folder, name) if not e["data"].get("beside")]


def test_the_fault_is_over_in_time_and_the_run_ends_as_it_should(drill: Driller, shared: Served) -> None:
    pods = traces.pods(shared)
    with begun(drill, packet_loss(drill)) as process:
        folder = drill.until("proof.on", process, None, within_s=240.0)
        assert traces.ours(traces.rules(pods))
        away()
        out = process.communicate(timeout=360)[0]
    # Nobody could be asked while the fault was on; what was put back is proven once somebody can be.
    assert [one["restored"] for one in data(folder, "revert.end")] == ["clean"], out
    assert traces.ours(traces.rules(pods)) == []
    assert [one["ok"] for one in data(folder, "proof.off")] == [True], out
    assert data(folder, "unreachable")
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["restored"], verdict["left"]) == ("clean", "healthy"), out
    # What happened to the pods meanwhile is not known, and what was not looked at does not pass.
    assert (process.returncode, verdict["verdict"]) == (2, "inconclusive"), out
    assert "is silent for" in verdict["reason"], out
    [failover] = [row for row in verdict["checks"] if row["check"] == "failover"]
    assert failover["verdict"] == "pass", out
    names = {one["name"]: one["uid"] for one in data(folder, "gate")[0]["replicas"]}
    assert {one["name"]: one["uid"] for one in data(folder, "left")[0]["replicas"]} == names


def test_without_driver_and_api_server_the_timer_ends_it(drill: Driller, shared: Served) -> None:
    pods = traces.pods(shared)
    with begun(drill, packet_loss(drill)) as process:
        folder = drill.until("proof.on", process, None, within_s=240.0)
        kill_group(process)
        [armed] = data(folder, "timer.armed")
        left_s = float(armed["deadline_s"])
        node.stop(API)
        try:
            deadline = time.monotonic() + left_s + 30.0
            while traces.ours(traces.rules(pods)):
                assert time.monotonic() < deadline, "the fault outlives its deadline"
                time.sleep(0.5)
        finally:
            node.start(API)
        shared.namespace.wait("the API server", lambda: node.kubectl("get", "--raw", "/readyz") == "ok")
        done = drill("recover", *place(drill))
        assert done.code == 0, done.out + done.err
