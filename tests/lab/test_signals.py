"""Signals, closed terminals and killed timers: one line or none, the right code, everything put back, a verdict."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.access import procs
from drills.lab import keeper, manage
from drills.lab.client import Lab
from drills.lab.target import custody
from tests.lab import labs
from tests.lab.drilling import DRILL, Driller, events, eventually

pytestmark = pytest.mark.lab


@pytest.fixture
def drill(lab: Lab, tmp_path: Path) -> Driller:
    """`drill` on the shared lab."""
    labs.eventually(lambda: labs.all_ready(lab.control()), 30)
    return Driller(lab.dir, tmp_path / "reports", lab.data["port_base"])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Driller]:
    """`drill` without a lab."""
    driller = Driller(tmp_path / "own" / "lab", tmp_path / "reports", labs.free_port_base())
    yield driller
    manage.down(tmp_path / "own" / "lab")


def test_a_reader_that_goes_away_changes_nothing(drill: Driller, lab: Lab) -> None:
    """`drill run … | head`: reverted, judged, reported, and the exit code is the verdict's."""
    process = drill.start("short-noop")
    folder = drill.until("proof.on", process, None)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(120) == 0
    assert (folder / "verdict.json").is_file()
    assert (folder / "postmortem.md").is_file()
    [off] = events(folder, "proof.off")
    assert off["data"]["ok"] is True
    assert custody(lab.dir).outstanding() == []


def test_a_terminal_that_closes_stops_the_run_and_it_is_judged(drill: Driller, lab: Lab) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(DRILL[0], [*DRILL, "run", *drill.here("short-noop")], drill.env | {"TERM": "xterm"})
    deadline = time.monotonic() + 60
    os.set_blocking(terminal, False)
    while time.monotonic() < deadline:
        try:
            os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.05)
        folder = drill.latest()
        if folder is not None and events(folder, "proof.on"):
            break
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 4
    assert folder is not None
    assert [e["data"]["signal"] for e in events(folder, "signal")] == ["SIGHUP"]
    assert (folder / "verdict.json").is_file()
    assert (folder / "postmortem.md").is_file()
    assert custody(lab.dir).outstanding() == []


def test_a_killed_timer_ends_the_fault_at_once(drill: Driller) -> None:
    """A held fault without its timer is a fault that nobody would undo."""
    process = drill.start("short-noop")
    folder = drill.until("proof.on", process, None)
    [armed] = events(folder, "timer.armed")
    assert procs.signal(armed["data"]["pid"], armed["data"]["start"], signal.SIGKILL)
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 2, out
    assert events(folder, "timer.lost")
    assert events(folder, "revert.end")[0]["data"]["restored"] == "clean"


def test_status_does_not_promise_a_timer_that_is_dead(drill: Driller, lab: Lab) -> None:
    process = drill.start("short-noop")
    folder = drill.until("proof.on", process, None)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    [armed] = events(folder, "timer.armed")
    procs.signal(armed["data"]["pid"], armed["data"]["start"], signal.SIGKILL)
    eventually(lambda: not procs.alive(armed["data"]["pid"], armed["data"]["start"]), 5)
    assert "its timer was killed" in drill("status", "--reports", str(drill.reports)).out
    refused = drill("lab", "down")
    assert refused.code == 3
    assert "drill recover" in refused.err
    assert drill("recover", "--reports", str(drill.reports)).code == 0
    assert custody(lab.dir).outstanding() == []


@pytest.mark.parametrize("after_s", [0.3, 0.6, 1.2])
def test_a_signal_before_anything_is_touched_is_one_line(alone: Driller, after_s: float) -> None:
    process = alone.start("short-noop")
    time.sleep(after_s)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    if process.returncode == -signal.SIGTERM:
        pytest.fail("the interpreter had not begun with us yet") if after_s > 0.5 else None
        return
    assert process.returncode == 4, out
    assert out.strip().splitlines()[-1].startswith("drill: SIGTERM: stopped")
    assert labs.processes_of(Path(alone.env["DRILL_LAB_DIR"])) == []


def test_a_lab_that_a_killed_run_had_half_started_is_seen_and_taken_down(alone: Driller) -> None:
    folder = Path(alone.env["DRILL_LAB_DIR"])
    process = alone.start("short-noop", "--startup", "20s")
    eventually(lambda: keeper.locked(folder) and (folder / "progress.ndjson").is_file(), 20)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    assert "starting or ending" in alone("status").out
    assert "starting or ending" in alone("lab", "status").out
    second = alone.run("short-noop")
    assert second.code == 3
    recovered = alone("recover")
    assert recovered.code == 0
    assert "lab: down" in recovered.out
    assert labs.processes_of(folder) == []


def test_two_that_start_a_lab_at_once_do_not_hurt_each_other(alone: Driller) -> None:
    first, second = (
        subprocess.Popen(
            [*DRILL, "lab", "up", "--startup", "1s", "--port-base", str(alone.port_base)],
            env=alone.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    )
    said = {p.communicate(timeout=90)[0]: p.returncode for p in (first, second)}
    assert sorted(said.values()) == [0, 3], said
    [refused] = [out for out, code in said.items() if code == 3]
    assert "Traceback" not in refused
    assert "starting" in refused or "already up" in refused


def test_the_lab_is_not_taken_from_under_a_run(drill: Driller, lab: Lab) -> None:
    process = drill.start("short-noop")
    drill.until("phase", process, None)
    refused = drill("lab", "down")
    assert refused.code == 3
    assert "drill stop" in refused.err
    for command in ("judge", "report"):
        going = drill(command, "latest", "--reports", str(drill.reports))
        assert going.code == 64
        assert "still going" in going.err
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert lab.alive
