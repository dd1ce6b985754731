"""A lab that is up: it serves, it restarts what dies, it replaces what is deleted, it pages."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import urllib3

from drills.access import procs
from drills.errors import Refused
from drills.lab import manage
from drills.lab.client import Control, Lab
from drills.lab.target import LabTarget
from drills.model import CanDelete, HasEvents, HasGpus, HasLedger, HasProxies
from tests.lab import labs

pytestmark = pytest.mark.lab
HTTP = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(total=10))


def complete(url: str, request_id: str) -> dict[str, Any]:
    body = {"model": "lab-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    answer = HTTP.request("POST", f"{url}/chat/completions", json=body, headers={"X-Request-Id": request_id})
    assert answer.status == 200, answer.data
    return dict(answer.json())


def prometheus(lab: Lab, query: str) -> list[dict[str, Any]]:
    answer = HTTP.request("GET", f"{lab.data['prometheus']}/api/v1/query", fields={"query": query})
    return list(answer.json()["data"]["result"])


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [e["change"] for e in events]


def until_ready_again(control: Control, since: int, name: str) -> list[dict[str, Any]]:
    """Return what happened to the replica up to its next `ready`."""

    def look() -> list[dict[str, Any]] | None:
        seen = labs.changes(control, since, name)
        return seen if "ready" in kinds(seen) else None

    return labs.eventually(look)


def test_a_completion_goes_through_edge_router_and_ledger(lab: Lab, target: LabTarget) -> None:
    began = time.monotonic()
    answer = complete(target.endpoint, "run-1-0")
    assert answer["usage"]["completion_tokens"] == 3
    [attempt] = [a for a in target.collect_ledger(began) if a["id"] == "run-1-0"]
    assert attempt["role"] == "primary"
    assert attempt["close"] == "complete"
    assert attempt["start"] >= began


def test_status_and_lab_json_agree_with_the_processes(lab: Lab, control: Control) -> None:
    found = manage.status(lab.dir)
    assert found is not None
    assert [r["name"] for r in found["replicas"]] == ["replica-0", "replica-1", "replica-2", "small-0"]
    for r in found["replicas"]:
        assert procs.alive(r["pid"], r["pid_start"])
        assert procs.alive(r["engine_pid"], r["engine_start"])
        assert procs.title(r["engine_pid"]).startswith("VLLM::EngineCore")
    names = {p["name"] for p in found["processes"] if procs.alive(p["pid"], p["start"])}
    assert {"router", "edge", "gpu-exporter", "proxy-replica-0", "proxy-small-0"} <= names
    assert lab.data["versions"]["vllm"].startswith("0.32")


def test_control_api_wants_the_token(lab: Lab, control: Control) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert HTTP.request("POST", f"{lab.data['control']}/down", headers=headers).status == 401
    assert lab.alive


def test_the_target_has_the_lab_s_abilities(target: LabTarget) -> None:
    for ability in (CanDelete, HasEvents, HasGpus, HasLedger, HasProxies):
        assert isinstance(target, ability)
    first = target.replicas()[0]
    assert (first.role, first.ready, first.restarts) == ("primary", True, first.restarts)
    [gpu] = first.gpus
    device = target.gpu_device(gpu)
    assert any(_is(f, device) for f in Path(f"/proc/{first.engine_pid}/fd").iterdir())
    listed = target.control_host().run([*target.nvidia_smi("local"), "-L"], timeout_s=20)
    assert gpu in listed.out
    with pytest.raises(Refused, match="no host 'gpu-9'"):
        target.host("gpu-9")


def _is(file: Path, device: str) -> bool:
    try:
        return str(file.readlink()) == device
    except OSError:
        return False


def test_a_crashed_engine_is_restarted_as_the_same_incarnation(control: Control) -> None:
    before, since = labs.replica(control, "replica-0"), labs.last_event(control)
    os.kill(before["engine_pid"], signal.SIGKILL)
    events = until_ready_again(control, since, "replica-0")
    # The API server of a dead engine exits by itself with status 0, and is restarted all the same.
    assert kinds(events) == ["notready", "gone", "started", "ready"]
    assert events[1]["code"] == 0
    assert {e["by"] for e in events} == {"supervisor"}
    after = labs.replica(control, "replica-0")
    assert (after["uid"], after["restarts"]) == (before["uid"], before["restarts"] + 1)
    assert after["pid"] != before["pid"]
    assert after["engine_pid"] != before["engine_pid"]
    assert after["ready_mono"] > after["started_mono"]


def test_an_api_server_killed_alone_leaves_no_engine_beside_the_new_one(control: Control) -> None:
    before, since = labs.replica(control, "replica-1"), labs.last_event(control)
    os.kill(before["pid"], signal.SIGKILL)

    def started() -> dict[str, Any] | None:
        return next((e for e in labs.changes(control, since, "replica-1") if e["change"] == "started"), None)

    labs.eventually(started)
    assert not procs.alive(before["engine_pid"], before["engine_start"])
    events = until_ready_again(control, since, "replica-1")
    assert next(e for e in events if e["change"] == "gone")["signal"] == "SIGKILL"


def test_the_router_tries_again_under_the_same_id(lab: Lab, target: LabTarget, control: Control) -> None:
    victim, since, began = labs.replica(control, "replica-2"), labs.last_event(control), time.monotonic()
    for pid in (victim["engine_pid"], victim["pid"]):
        os.kill(pid, signal.SIGKILL)
    for number in range(6):  # round robin: some go to the dead one first
        complete(f"{lab.data['entry']['router']}/v1", f"run-{number}-0")
    attempts = target.collect_ledger(began)
    lost = {a["id"] for a in attempts if a["replica"] == "replica-2"}
    served = {a["id"] for a in attempts if a["close"] == "complete" and a["replica"] != "replica-2"}
    assert lost
    assert served == {f"run-{number}-0" for number in range(6)}
    until_ready_again(control, since, "replica-2")


def test_delete_makes_a_new_incarnation_and_touches_nobody_else(target: LabTarget, control: Control) -> None:
    before = {r.name: r for r in target.replicas()}
    since = labs.last_event(control)
    target.delete_replica(before["replica-2"], grace_s=10)
    events = until_ready_again(control, since, "replica-2")
    assert kinds(events) == ["notready", "gone", "started", "ready"]
    assert {e["by"] for e in events} == {"controller"}
    after = {r.name: r for r in target.replicas()}
    assert after["replica-2"].uid != before["replica-2"].uid
    assert after["replica-2"].restarts == 0
    with pytest.raises(Refused, match="replica-2 is now"):
        target.delete_replica(before["replica-2"], grace_s=0)
    others = set(before) - {"replica-2"}
    assert {n: (after[n].uid, after[n].pid) for n in others} == {n: (before[n].uid, before[n].pid) for n in others}


def test_delete_without_grace_kills(target: LabTarget, control: Control) -> None:
    victim = next(r for r in target.replicas() if r.name == "replica-0")
    since = labs.last_event(control)
    target.delete_replica(victim, grace_s=0)
    events = until_ready_again(control, since, "replica-0")
    assert next(e for e in events if e["change"] == "gone")["signal"] == "SIGKILL"
    assert labs.replica(control, "replica-0")["uid"] != victim.uid


def test_a_held_gate_holds_the_restart_and_the_alert_pages_and_resolves(lab: Lab, control: Control) -> None:
    quiet = 'count(up{job="vllm", model="lab-chat"} == 1) == 3 unless on () count(ALERTS)'
    labs.eventually(lambda: prometheus(lab, quiet), 30)
    victim, since = labs.replica(control, "replica-1"), labs.last_event(control)

    def notified(status: str, after: float) -> dict[str, Any] | None:
        mine = (n for n in control.notifications() if n["alert"] == "VllmReplicaDown" and n["mono"] > after)
        return next((n for n in mine if n["status"] == status), None)

    with Path(victim["gate"]).open("a") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        killed = time.monotonic()
        os.kill(victim["engine_pid"], signal.SIGKILL)
        labs.eventually(lambda: labs.replica(control, "replica-1")["state"] == "gated")
        firing = labs.eventually(lambda: notified("firing", killed))
        assert firing["labels"] | {"service": "lab", "model": "lab-chat", "severity": "page"} == firing["labels"]
        state = prometheus(lab, 'ALERTS{alertname="VllmReplicaDown", alertstate="firing"}')
        assert [s["metric"]["model"] for s in state] == ["lab-chat"]
        assert "started" not in kinds(labs.changes(control, since, "replica-1"))
    until_ready_again(control, since, "replica-1")
    assert labs.eventually(lambda: notified("resolved", firing["mono"]))


def test_every_rule_is_evaluated_without_error(lab: Lab, control: Control) -> None:
    groups = HTTP.request("GET", f"{lab.data['prometheus']}/api/v1/rules").json()["data"]["groups"]
    rules = {r["name"]: r["health"] for g in groups for r in g["rules"]}
    assert set(rules.values()) == {"ok"}, json.dumps(rules)
    assert prometheus(lab, "dcgm:gpus_seen")[0]["value"][1] == "4"
    assert {r["metric"]["job"] for r in prometheus(lab, "up == 1")} == {"vllm", "edge", "router", "dcgm"}
