"""A helper pod that is told to end has every fault undone first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.access import procs


def armed(state_dir: Path, name: str, undo: list[dict[str, object]]) -> Path:
    spec = state_dir / "receipts" / f"{name}.json"
    spec.write_text(json.dumps({"undo": undo, "holds": [], "deadline_s": 600}))
    done = subprocess.run(
        [sys.executable, "-m", "drills.access.ontarget", "arm", str(spec)], capture_output=True, timeout=30, check=True
    )
    assert json.loads(done.stdout)["ok"]
    return spec.with_suffix(".timer.json")


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "drills.access.nodekeeper", str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def ended(state: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(state.read_text())
    pid, start = found["pid"], found["start"]
    assert isinstance(pid, int)
    assert isinstance(start, int)
    assert not procs.alive(pid, start)
    return found


def test_with_nothing_on_it_just_ends(keeper: subprocess.Popen[str]) -> None:
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(30) == 0


def test_every_fault_is_undone_before_it_ends(keeper: subprocess.Popen[str], tmp_path: Path) -> None:
    marks = [tmp_path / "one", tmp_path / "two"]
    states = []
    for mark in marks:
        mark.touch()
        states.append(armed(tmp_path, mark.name, [{"do": "remove", "path": str(mark)}]))
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(60) == 0
    assert not any(mark.exists() for mark in marks)
    assert [ended(state)["state"] for state in states] == ["undone", "undone"]


def test_one_that_cannot_be_undone_does_not_hold_up_the_others(keeper: subprocess.Popen[str], tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    bad = armed(tmp_path, "a-bad", [{"do": "run", "argv": ["false"]}])
    good = armed(tmp_path, "b-good", [{"do": "remove", "path": str(mark)}])
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(60) == 0
    assert not mark.exists()
    assert (ended(bad)["state"], ended(good)["state"]) == ("undo failed", "undone")


def test_what_is_no_state_of_a_timer_or_of_a_dead_one_is_passed_over(
    keeper: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / "receipts" / "torn.timer.json").write_text('{"state": "arm')
    dead = {"state": "armed", "pid": os.getpid(), "start": 1}
    (tmp_path / "receipts" / "dead.timer.json").write_text(json.dumps(dead))
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(30) == 0
