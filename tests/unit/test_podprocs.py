"""A pod's processes are told by control groups: of both drivers, both versions, and whatever they call themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills.access import podprocs

UID = "0a1b2c3d-1111-2222-3333-444455556666"
OTHER = "0a1b2c3d-1111-2222-3333-444455556667"
SANDBOX, VLLM, SIDECAR = "a" * 64, "b" * 64, "c" * 64


def cgroupfs(uid: str, container: str) -> str:
    return f"12:cpu:/kubepods/burstable/pod{uid}/{container}\n3:memory:/kubepods/burstable/pod{uid}/{container}\n"


def systemd(uid: str, container: str) -> str:
    name = uid.replace("-", "_")
    slices = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{name}.slice"
    return f"0::{slices}/cri-containerd-{container}.scope\n"


class Proc:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.add(1, "0::/init.scope\n", parent=0, start=1, title="init")

    def add(self, pid: int, groups: str, *, parent: int, start: int, title: str, state: str = "S") -> None:
        place = self.folder / str(pid)
        (place / "ns").mkdir(parents=True)
        (place / "ns" / "net").touch()
        (place / "cgroup").write_text(groups)
        (place / "stat").write_text(f"{pid} (a) b) {state} {parent} {'0 ' * 17}{start} 0 0\n")
        (place / "cmdline").write_bytes(title.replace(" ", "\0").encode())


@pytest.fixture(params=[cgroupfs, systemd])
def proc(request: pytest.FixtureRequest, tmp_path: Path) -> Proc:
    groups, made = request.param, Proc(tmp_path)
    made.add(100, groups(UID, SANDBOX), parent=90, start=1000, title="/pause")
    made.add(110, groups(UID, VLLM), parent=90, start=1100, title="python vllm serve")
    made.add(111, groups(UID, VLLM), parent=110, start=1110, title="VLLM::EngineCore")
    made.add(112, groups(UID, VLLM), parent=90, start=1200, title="sh")  # executed in it later
    made.add(120, groups(UID, SIDECAR), parent=90, start=1050, title="VLLM::EngineCore")  # says so, in vain
    made.add(130, groups(OTHER, VLLM), parent=90, start=900, title="VLLM::EngineCore")
    return made


def test_the_containers_first_process_its_engine_and_the_sandbox(proc: Proc) -> None:
    found = podprocs.look(UID, VLLM, proc.folder)
    assert found["main"] == {"pid": 110, "start": 1100}
    assert found["engine"] == {"pid": 111, "start": 1110}
    assert (found["netns"]["pid"], found["netns"]["start"]) == (100, 1000)
    assert found["host"]["pid"] == 1


def test_the_network_is_found_while_the_container_is_away(proc: Proc) -> None:
    found = podprocs.look(UID, "d" * 64, proc.folder)
    assert found["main"] is found["engine"] is None
    assert found["netns"]["pid"] == 100


def test_two_engines_are_not_one(proc: Proc) -> None:
    groups = (proc.folder / "111" / "cgroup").read_text()
    proc.add(113, groups, parent=110, start=1120, title="VLLM::EngineCore_DP1")
    assert podprocs.look(UID, VLLM, proc.folder)["engine"] is None


def test_the_dead_do_not_count(proc: Proc) -> None:
    groups = (proc.folder / "111" / "cgroup").read_text()
    proc.add(113, groups, parent=110, start=1120, title="VLLM::EngineCore", state="Z")
    assert podprocs.look(UID, VLLM, proc.folder)["engine"] == {"pid": 111, "start": 1110}


def test_a_pod_that_is_not_here(proc: Proc) -> None:
    found = podprocs.look(UID[:-1], VLLM, proc.folder)  # the beginning of a uid is not that uid
    assert found["netns"] is found["main"] is found["engine"] is None
