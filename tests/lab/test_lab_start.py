"""How a lab starts, fails to start, and ends: one sentence when it cannot, and never a process left over."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.errors import Refused
from drills.lab import keeper, manage, processes
from drills.lab.config import LabConfig
from drills.lab.defects import plant
from tests.lab import labs

pytestmark = pytest.mark.lab


@pytest.fixture
def small() -> LabConfig:
    """The smallest whole lab: one primary, the fallback, no monitoring, no time to start."""
    return LabConfig(port_base=labs.free_port_base(), replicas=1, gpus=2, startup_s=0.1, monitoring=False)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a lab that is taken down afterwards, and checked to have left nothing."""
    folder = tmp_path / "lab"
    yield folder
    manage.down(folder)
    assert labs.processes_of(folder) == []


def gone(folder: Path) -> bool:
    return not labs.processes_of(folder)


def test_up_down_and_a_second_up(folder: Path, small: LabConfig) -> None:
    said: list[str] = []
    small = dataclasses.replace(small, network=False)  # in namespaces not all of its ports would be taken here
    before = folder / "monitoring" / "prometheus" / "wal"
    before.mkdir(parents=True)
    lab = manage.up(small, owner="run:abc", echo=said.append, folder=folder)
    assert not before.exists()  # the lab before would go on counting in this one's alerts
    assert said[0].startswith("lab: starting 1 x lab-chat")
    assert said[-1] == f"lab: up, users come in at http://127.0.0.1:{small.port_base}/v1"
    assert lab.data["owner"] == "run:abc"
    assert manage.find(folder) == lab
    with pytest.raises(Refused, match=r"already up in .* \(pid \d+, ports from \d+\); use it, or take it down"):
        manage.up(small, folder=folder)
    lab.control().own("user", None)
    found = manage.find(folder)
    assert found is not None
    assert found.data["owner"] == "user"
    assert all(processes.taken(port) for port in small.all_ports())
    assert manage.down(folder)
    assert gone(folder)
    assert not any(processes.taken(port) for port in small.all_ports())
    assert manage.find(folder) is None
    assert not manage.down(folder)


def test_nobody_is_paged_while_a_lab_comes_up(folder: Path, small: LabConfig) -> None:
    """Its replicas are away for longer than the alert waits, and Prometheus has seen none of them yet."""
    slow = dataclasses.replace(small, monitoring=True, startup_s=small.alert_for_s + 2)
    lab = manage.up(slow, echo=lambda _: None, folder=folder)
    assert lab.control().notifications() == []


def test_a_taken_port_is_named_with_who_has_it(folder: Path, small: LabConfig) -> None:
    with socket.create_server(("127.0.0.1", small.ports.router)), pytest.raises(Refused) as refused:
        manage.up(small, folder=folder)
    text = str(refused.value)
    assert f"port {small.ports.router} (router) is taken by pid {os.getpid()}" in text
    assert "--port-base" in text
    assert "\n" not in text
    assert not folder.exists()


def test_a_folder_that_cannot_be_written(small: LabConfig) -> None:
    with pytest.raises(Refused, match=r"/dev/null/lab: Not a directory; choose another folder with DRILL_LAB_DIR"):
        manage.up(small, folder=Path("/dev/null/lab"))


def test_a_replica_that_never_becomes_ready(folder: Path, small: LabConfig) -> None:
    slow = dataclasses.replace(small, engine_args=("--startup-s=600",), ready_within_s=1.5)
    with pytest.raises(Refused, match=r"replica-0 did not become ready within 1\.5 s.*replica-0\.log"):
        manage.up(slow, folder=folder)
    assert gone(folder)


def test_a_replica_that_cannot_start_says_why(folder: Path, small: LabConfig) -> None:
    wrong = dataclasses.replace(small, engine_args=("--max-num-seqs=0",))
    with pytest.raises(Refused, match=r"replica-0 ended \(2\) while the lab was starting: .*at least 1"):
        manage.up(wrong, folder=folder)
    assert gone(folder)


def test_a_start_that_takes_too_long_is_taken_down(folder: Path, small: LabConfig) -> None:
    with pytest.raises(Refused, match=r"not up within 0\.5 s and taken down again"):
        manage.up(dataclasses.replace(small, startup_s=600), wait_s=0.5, folder=folder)
    assert gone(folder)


def test_without_prometheus_the_lab_comes_up_and_says_so(
    folder: Path, small: LabConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRILL_TOOLS", "/nonexistent")
    monkeypatch.setenv("PATH", labs.path_without_monitoring(tmp_path))
    said: list[str] = []
    lab = manage.up(dataclasses.replace(small, monitoring=True), echo=said.append, folder=folder)
    assert lab.data["prometheus"] is None
    assert any("alerts cannot be judged" in line for line in said)
    assert any("alerts cannot be judged" in note for note in lab.data["notes"])


def test_a_killed_supervisor_leaves_nothing(folder: Path, small: LabConfig) -> None:
    lab = manage.up(small, folder=folder)
    os.kill(lab.pid, signal.SIGKILL)
    labs.eventually(lambda: gone(folder), 10)
    assert manage.find(folder) is None  # though lab.json still lies there
    manage.up(small, folder=folder)


def test_a_killed_keeper_takes_the_lab_with_it(folder: Path, small: LabConfig) -> None:
    manage.up(small, folder=folder)
    held = keeper.holder(folder)
    assert held is not None
    os.kill(held[0], signal.SIGKILL)
    labs.eventually(lambda: gone(folder), 10)


def test_engines_left_by_a_double_kill_are_ended_by_down(folder: Path, small: LabConfig) -> None:
    lab = manage.up(small, folder=folder)
    held = keeper.holder(folder)
    assert held is not None
    os.kill(held[0], signal.SIGSTOP)  # cannot adopt, cannot clean up
    os.kill(lab.pid, signal.SIGKILL)
    os.kill(held[0], signal.SIGKILL)
    labs.eventually(lambda: not keeper.locked(folder), 10)
    assert manage.down(folder)
    labs.eventually(lambda: gone(folder), 10)


def test_a_lab_nobody_touches_ends(folder: Path, small: LabConfig) -> None:
    lab = manage.up(small, folder=folder)
    lab.control().own("run:abc", 0.3)
    labs.eventually(lambda: gone(folder), 15)
    assert manage.find(folder) is None


def test_restart_never(folder: Path, small: LabConfig) -> None:
    control = manage.up(plant("restart-never", small), folder=folder).control()
    victim = labs.replica(control, "replica-0")
    os.kill(victim["engine_pid"], signal.SIGKILL)
    labs.eventually(lambda: labs.replica(control, "replica-0")["state"] == "stopped")
    control.delete("replica-0", victim["uid"], 0)
    assert [e["change"] for e in labs.changes(control, 0, "replica-0")] == ["started", "ready", "notready", "gone"]
