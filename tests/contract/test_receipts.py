"""The way back: receipts on the target, the timer that outlives the driver, the closed set of undo steps."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drills import receipts
from drills.access import procs
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.errors import Refused
from drills.model import Receipt, Restored

WAIT_S = 10.0


def receipt_of(tmp: Path, **changes: Any) -> Receipt:
    """A receipt whose fault is a marker file."""
    base: dict[str, Any] = {
        "id": "run1-0-noop",
        "run": "run1",
        "fault": "noop",
        "target": "t",
        "host": "local",
        "victims": ({"name": "replica-0"},),
        "prior": {},
        "holds": (),
        "undo": ({"do": "remove", "path": str(tmp / "marker")},),
        "deadline_s": 60.0,
    }
    return Receipt(**{**base, **changes})


def until(true: Callable[[], bool]) -> bool:
    """Wait, bounded, until something is true."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def custody(tmp_path: Path) -> Iterator[FileCustody]:
    """The custody of a target; timers that a test leaves behind are ended."""
    found = FileCustody(LocalHost(), str(tmp_path / "state"), "t")
    yield found
    for left in found.outstanding():
        if left.timer.get("pid"):
            procs.signal(left.timer["pid"], left.timer["start"], signal.SIGKILL)


def test_a_receipt_survives_json_unchanged(tmp_path: Path) -> None:
    receipt = receipt_of(tmp_path, prior={"a": [1, None]}, holds=("x",))
    assert receipts.from_json(json.loads(json.dumps(receipts.to_json(receipt)))) == receipt


def test_undo_may_run_twice_and_disarm_takes_the_receipt_away(tmp_path: Path, custody: FileCustody) -> None:
    receipt = receipt_of(tmp_path)
    armed = custody.arm(receipt)
    (tmp_path / "marker").touch()
    assert [o.timer_state for o in custody.outstanding()] == ["armed"]
    assert custody.undo(receipt) == (Restored.CLEAN, [])
    assert custody.undo(receipt) == (Restored.CLEAN, [])
    assert not (tmp_path / "marker").exists()
    assert custody.disarm(receipt)
    assert custody.outstanding() == []
    assert not procs.alive(armed["pid"], armed["start"])


def test_the_timer_is_no_child_of_the_driver_and_undoes_at_its_deadline(tmp_path: Path, custody: FileCustody) -> None:
    """A driver's whole process group is killed; the fault is off at its deadline anyway."""
    (tmp_path / "marker").touch()
    receipt = json.dumps(receipts.to_json(receipt_of(tmp_path, deadline_s=2.0)))
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, custody.state_dir, receipt],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    armed = json.loads(driver.stdout.readline())
    found = procs.stat(armed["pid"])
    assert found is not None
    assert found[1] != driver.pid
    assert os.getpgid(armed["pid"]) != os.getpgid(driver.pid)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(WAIT_S)
    driver.stdout.close()
    assert (tmp_path / "marker").exists(), "undone before its deadline"
    assert until(lambda: not (tmp_path / "marker").exists())
    assert until(lambda: [o.timer_state for o in custody.outstanding()] == ["undone"])


DRIVER = """
import json, sys, time
from drills import receipts
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
custody = FileCustody(LocalHost(), sys.argv[1], "t")
print(json.dumps(custody.arm(receipts.from_json(json.loads(sys.argv[2])))), flush=True)
time.sleep(60)
"""


def test_locks_are_held_until_the_undo_lets_go_of_them(tmp_path: Path, custody: FileCustody) -> None:
    gate = tmp_path / "gate.lock"
    receipt = receipt_of(tmp_path, holds=(str(gate),))
    custody.arm(receipt)
    with gate.open() as waiting:
        with pytest.raises(BlockingIOError):
            fcntl.flock(waiting, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert custody.undo(receipt)[0] is Restored.CLEAN
        fcntl.flock(waiting, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert [o.timer_state for o in custody.outstanding()] == ["released"]
    assert custody.disarm(receipt)


def test_a_timer_that_cannot_hold_its_lock_refuses_the_fault(tmp_path: Path, custody: FileCustody) -> None:
    gate = tmp_path / "gate.lock"
    with gate.open("w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="could not be armed"):
            custody.arm(receipt_of(tmp_path, holds=(str(gate),)))
    assert custody.outstanding() == []


def test_a_killed_timer_does_not_stop_the_undo(tmp_path: Path, custody: FileCustody) -> None:
    receipt = receipt_of(tmp_path, holds=(str(tmp_path / "gate"),))
    armed = custody.arm(receipt)
    (tmp_path / "marker").touch()
    procs.signal(armed["pid"], armed["start"], signal.SIGKILL)
    assert custody.undo(receipt) == (Restored.CLEAN, [])
    assert not (tmp_path / "marker").exists()
    assert custody.disarm(receipt)


def test_a_terminated_timer_undoes_first(tmp_path: Path, custody: FileCustody) -> None:
    """When the machine goes down the fault goes first."""
    armed = custody.arm(receipt_of(tmp_path))
    (tmp_path / "marker").touch()
    procs.signal(armed["pid"], armed["start"], signal.SIGTERM)
    assert until(lambda: not (tmp_path / "marker").exists())


def test_one_failing_step_does_not_stop_the_others_and_is_named(tmp_path: Path, custody: FileCustody) -> None:
    bad = {"do": "run", "argv": ["/bin/sh", "-c", "echo no such rule >&2; exit 4"]}
    receipt = receipt_of(tmp_path, undo=({"do": "remove", "path": str(tmp_path / "marker")}, bad))
    custody.arm(receipt)
    (tmp_path / "marker").touch()
    restored, manual = custody.undo(receipt)
    assert restored is Restored.DIRTY
    assert manual == ["/bin/sh -c 'echo no such rule >&2; exit 4'"]
    assert not (tmp_path / "marker").exists()


def test_only_what_is_still_ours_is_put_back(tmp_path: Path, custody: FileCustody) -> None:
    setting = tmp_path / "setting"
    step = {"do": "write", "path": str(setting), "text": "before", "ours": "ours"}
    receipt = receipt_of(tmp_path, undo=(step,))
    setting.write_text("ours")
    assert custody.undo(receipt)[0] is Restored.CLEAN
    assert setting.read_text() == "before"
    setting.write_text("somebody else's")
    assert custody.undo(receipt)[0] is Restored.CLEAN
    assert setting.read_text() == "somebody else's"


def test_a_signal_goes_to_that_very_process_only(tmp_path: Path, custody: FileCustody) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        start = procs.start(sleeper.pid)
        assert start is not None
        wrong = {"do": "signal", "pid": sleeper.pid, "start": start + 1, "signal": "KILL"}
        assert custody.undo(receipt_of(tmp_path, undo=(wrong,)))[0] is Restored.CLEAN
        assert sleeper.poll() is None
        right = {**wrong, "start": start}
        custody.undo(receipt_of(tmp_path, id="run1-1-noop", undo=(right,)))
        assert sleeper.wait(WAIT_S) == -signal.SIGKILL
    finally:
        sleeper.kill()
        sleeper.wait(WAIT_S)


def test_a_receipt_that_cannot_be_read_is_named_with_what_to_do(custody: FileCustody) -> None:
    for text in ("{", "[]", "null", '{"id": 1}'):
        LocalHost().write(f"{custody.state_dir}/receipts/x.json", text)
        with pytest.raises(Refused, match=r"receipts/x.json: is no receipt.*remove it"):
            custody.outstanding()
    LocalHost().remove(f"{custody.state_dir}/receipts/x.json")
