"""What the lab knows about its replicas holds for real ones: processes, GPU, honest health, orphans, the gate."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest
import urllib3

from drills.access import holders, procs
from drills.lab import processes
from drills.lab.client import Control, Lab
from drills.model import Json
from tests.lab import labs
from tests.lab.drilling import Driller

START_S = 240.0


def holding(lab: Lab, index: int) -> list[Json]:
    """Return the processes that have a GPU of the lab open."""
    return holders.find([str(lab.dir / "gpu" / "dev" / f"nvidia{index}")])[0]


@pytest.fixture
def control(lab: Lab) -> Control:
    control = lab.control()
    labs.eventually(lambda: labs.all_ready(control), START_S)
    return control


def test_the_lab_says_what_it_runs(lab: Lab) -> None:
    assert (lab.data["engine"], lab.data["versions"]["vllm"]) == ("vllm", "0.32.0")
    assert (lab.data["expected_replicas"], lab.data["model"]) == (2, "lab-chat")


def test_engines_are_found_and_hold_their_gpu_alone(lab: Lab, control: Control) -> None:
    for index in (0, 1):
        replica = labs.replica(control, f"replica-{index}")
        assert procs.title(replica["engine_pid"]).startswith("VLLM::EngineCore")
        assert [h["pid"] for h in holding(lab, index)] == [replica["engine_pid"]]
        titles = [procs.title(pid) for pid, _ in processes.session(replica["pid"])]
        assert any(title.startswith("VLLM::Worker") for title in titles)


def test_a_hung_engine_is_found_by_the_honest_health_only(lab: Lab, control: Control) -> None:
    replica = labs.replica(control, "replica-0")

    def health(of: str) -> int:
        return urllib3.request("GET", f"{replica[of]}/health", timeout=5, retries=False).status

    labs.eventually(lambda: health("proxy") == 200)
    os.kill(replica["engine_pid"], signal.SIGSTOP)
    try:
        labs.eventually(lambda: health("proxy") == 503)
        assert health("engine") == 200
    finally:
        os.kill(replica["engine_pid"], signal.SIGCONT)
    labs.eventually(lambda: health("proxy") == 200)


def test_a_killed_api_server_leaves_no_orphan_and_its_restart_waits_at_the_gate(lab: Lab, control: Control) -> None:
    before = labs.replica(control, "replica-1")
    members = processes.session(before["pid"])
    with Path(before["gate"]).open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        os.kill(before["pid"], signal.SIGKILL)
        labs.eventually(lambda: labs.replica(control, "replica-1")["state"] == "gated", 60)
        assert not [procs.title(pid) for pid, start in members if procs.alive(pid, start)]
        assert holding(lab, 1) == []
    labs.eventually(lambda: labs.all_ready(control), START_S)
    after = labs.replica(control, "replica-1")
    assert (after["uid"], after["restarts"]) == (before["uid"], before["restarts"] + 1)


def test_another_engine_than_the_one_that_is_up_is_refused(lab: Lab, drill: Driller) -> None:
    refused = drill.run("noop", "--engine", "emulator")
    assert refused.code == 3
    assert "runs another engine than emulator" in refused.err
