"""The commands between drills, on labs of their own: up, status, down; and who takes a run's lab down."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.lab import manage
from drills.lab.config import LabConfig
from drills.lab.opening import run_owner
from tests.lab import labs
from tests.lab.drilling import Driller, events

pytestmark = pytest.mark.lab


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Driller]:
    """`drill` without a lab; whatever happens, nothing of one is left."""
    driller = Driller(tmp_path / "lab", tmp_path / "reports", labs.free_port_base())
    yield driller
    manage.down(tmp_path / "lab")
    assert labs.processes_of(tmp_path / "lab") == []


def one_line(text: str) -> str:
    [line] = text.strip().splitlines()
    assert line.startswith("drill: ")
    return line


def test_up_status_and_down(drill: Driller, tmp_path: Path) -> None:
    base, reports = str(drill.port_base), ("--reports", str(drill.reports))
    assert drill("lab", "status").out.strip() == "lab: not up; a run starts it, or `drill lab up`"
    assert drill("status", *reports).out.splitlines() == [
        "target lab: lab not up; a run starts it, or `drill lab up`",
        "no run holds it",
        "nothing is to be put back",
    ]
    nothing = drill("recover", *reports)
    assert (nothing.code, nothing.out.strip()) == (0, "nothing to put back")
    unknown = drill("recover", "00000000", *reports)
    assert (unknown.code, "run 00000000: not known here" in one_line(unknown.err)) == (64, True)

    up = drill("lab", "up", "--port-base", base, "--startup", "1s")
    assert up.code == 0, up.out + up.err
    assert f"users come in at http://127.0.0.1:{base}/v1" in up.out
    said = drill("lab", "status")
    assert said.code == 0
    for name in ("replica-0", "replica-1", "replica-2", "small-0"):
        assert [line.split()[1] for line in said.out.splitlines() if line.startswith(name)] == ["ready"]
    assert "owner user" in said.out
    assert drill("status", *reports).out.splitlines() == [
        f"target lab: lab up at http://127.0.0.1:{base}/v1",
        "no run holds it",
        "nothing is to be put back",
    ]
    again = drill("lab", "up", "--port-base", base)
    assert again.code == 3
    assert "already up" in one_line(again.err)
    nothing = drill("recover", *reports)
    assert (nothing.code, nothing.out.strip()) == (0, "nothing to put back")
    assert manage.find(tmp_path / "lab") is not None, "recover took down a lab that is the user's"

    down = drill("lab", "down")
    assert (down.code, down.out.strip()) == (0, "lab: down")
    assert labs.processes_of(tmp_path / "lab") == []
    assert drill("lab", "down").out.strip() == "lab: none was up"


def test_a_lab_that_a_killed_run_had_started_lives_until_recover(drill: Driller, tmp_path: Path) -> None:
    process = drill.start("short-noop", "--startup", "1s")
    folder = drill.until("phase", process, None)
    run = folder.name.rsplit("-", 1)[1]
    too_early = drill("recover", "--reports", str(drill.reports))
    assert (too_early.code, f"run {run} is alive" in one_line(too_early.err)) == (3, True)
    drill.until("proof.on", process, None)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    lab = manage.find(tmp_path / "lab")
    assert lab is not None, "the lab died with its driver"
    assert labs.all_ready(lab.control())
    said = drill("status", "--reports", str(drill.reports)).out
    assert f"run {run} of " in said
    assert "was cut short" in said
    assert f"to be put back: noop on replica-{folder_victim(folder)} (run {run}): its timer undoes it at " in said
    assert f"not finished: {folder}" in said

    recovered = drill("recover", "--reports", str(drill.reports))
    assert recovered.code == 0, recovered.out + recovered.err
    assert f"lock of run {run} released" in recovered.out
    assert "lab: down (a run that was cut short had started it)" in recovered.out
    assert labs.processes_of(tmp_path / "lab") == []
    again = drill("recover", "--reports", str(drill.reports))
    assert (again.code, again.out.strip()) == (0, "nothing to put back")


def folder_victim(folder: Path) -> str:
    [receipt] = events(folder, "receipt")
    return str(receipt["data"]["receipt"]["victims"][0]["name"]).removeprefix("replica-")


def test_recover_leaves_the_lab_of_a_run_that_lives(drill: Driller, tmp_path: Path) -> None:
    """Between two drills of a suite, and while the last one is judged, nobody holds the lock."""
    small = LabConfig(port_base=drill.port_base, replicas=1, gpus=2, startup_s=0.1, monitoring=False)
    starter = subprocess.Popen(["sleep", "600"])
    try:
        owner = run_owner(starter.pid)
        lab = manage.up(small, owner=owner, echo=lambda _: None, folder=tmp_path / "lab")
        spared = drill("recover", "--reports", str(drill.reports))
        assert (spared.code, spared.out.strip()) == (0, "nothing to put back")
        assert lab.alive
    finally:
        starter.kill()
        starter.wait()
    taken = drill("recover", "--reports", str(drill.reports))
    assert taken.out.strip() == "lab: down (a run that was cut short had started it)"
    assert not lab.alive
