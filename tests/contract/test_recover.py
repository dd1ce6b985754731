"""`recover` when the way back is not smooth: stuck timers, receipts of another version, damaged journals."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drills import lock, receipts
from drills import recover as recovering
from drills.access import procs
from drills.access.filecustody import FileCustody
from drills.access.local import TEMPORARY, LocalHost
from drills.clock import Clock
from drills.custody import Outstanding
from drills.journal import Journal, read
from drills.model import Json, Receipt, Restored
from drills.recover import Recovered
from tests.contract.gpu_bench import bench

HOST = LocalHost()
RUN = "0badf00d"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The state folder of a target; timers that a test leaves behind are ended."""
    folder = tmp_path / "state"
    folder.mkdir()
    yield folder
    for left in custody(folder).outstanding():
        if left.timer.get("pid"):
            procs.signal(left.timer["pid"], left.timer["start"], signal.SIGKILL)


def custody(state: Path) -> FileCustody:
    return FileCustody(HOST, str(state), "t")


def receipt_of(state: Path, number: int = 0, **changes: Any) -> Receipt:
    """A receipt whose fault is a marker file."""
    base: Json = {
        "id": f"{RUN}-{number}-noop",
        "run": RUN,
        "fault": "noop",
        "target": "t",
        "host": "local",
        "victims": ({"name": f"replica-{number}"},),
        "prior": {},
        "holds": (),
        "undo": ({"do": "remove", "path": str(state / f"marker-{number}")},),
        "deadline_s": 600.0,
    }
    return Receipt(**{**base, **changes})


def on(state: Path, receipt: Receipt) -> Json:
    """Arm the receipt and make its marker."""
    armed = custody(state).arm(receipt)
    Path(receipt.undo[0]["path"]).touch()
    return armed


def recover(state: Path, run: str | None = None, folders: dict[str, Path] | None = None) -> Recovered:
    """Recover without a target: what lies on the host is enough."""
    return recovering.recover(custody(state), None, run, folders or {}, Clock())


def run_folder(tmp_path: Path, *told: Receipt) -> Path:
    """A run folder whose journal tells of these receipts and then stops."""
    folder = tmp_path / f"20260101T000000Z-noop-{RUN}"
    folder.mkdir()
    with Journal(folder / "journal.jsonl") as journal:
        journal.tell("header", {"run": RUN})
        for receipt in told:
            journal.tell("receipt", {"receipt": receipts.to_json(receipt)})
    return folder


def dead_lock(state: Path, folder: Path) -> None:
    """Leave the lock of a driver that is gone."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    held = lock.mine(RUN, folder, 600, int(gone.stdout), Clock())
    HOST.write(str(state / "lock" / "lock.json"), json.dumps(held.__dict__))


def ended(folder: Path) -> list[Json]:
    return [event.data for event in read(folder / "journal.jsonl") if event.event == "end"]


def test_a_timer_that_is_stopped_keeps_neither_its_gate_nor_its_receipt(tmp_path: Path, state: Path) -> None:
    gate = tmp_path / "gate.lock"
    receipt = receipt_of(state, holds=(str(gate),))
    armed = on(state, receipt)
    procs.signal(armed["pid"], armed["start"], signal.SIGSTOP)
    done = recover(state)
    assert done.restored is Restored.CLEAN, done.lines
    assert not procs.alive(armed["pid"], armed["start"])
    with gate.open() as waiting:
        fcntl.flock(waiting, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert custody(state).outstanding() == []


def test_a_stopped_timer_of_a_fault_without_locks_is_ended_too(state: Path) -> None:
    armed = on(state, receipt_of(state))
    procs.signal(armed["pid"], armed["start"], signal.SIGSTOP)
    assert recover(state).restored is Restored.CLEAN
    assert not procs.alive(armed["pid"], armed["start"])


def test_a_stuck_timer_goes_on_holding_what_could_not_be_undone(tmp_path: Path, state: Path) -> None:
    """Its gate keeps the replica away from what is not put back yet."""
    bad = {"do": "run", "argv": ["/bin/sh", "-c", "exit 4"]}
    receipt = receipt_of(state, holds=(str(tmp_path / "gate.lock"),), undo=(bad,))
    armed = custody(state).arm(receipt)
    procs.signal(armed["pid"], armed["start"], signal.SIGSTOP)
    assert recover(state).restored is Restored.DIRTY
    assert procs.alive(armed["pid"], armed["start"])


def test_one_that_fails_does_not_stop_the_others_and_the_result_says_so(state: Path) -> None:
    on(state, receipt_of(state, 0))
    bad = {"do": "run", "argv": ["/bin/sh", "-c", "exit 4"]}
    custody(state).arm(receipt_of(state, 1, undo=(bad,)))
    done = recover(state)
    assert done.restored is Restored.DIRTY
    assert done.manual == ["/bin/sh -c 'exit 4'"]
    assert not (state / "marker-0").exists()
    assert [o.receipt.id for o in custody(state).outstanding()] == [f"{RUN}-1-noop"]


@pytest.mark.parametrize("changes", [{"fault": "fault-of-tomorrow"}, {"params": {"key-of-tomorrow": 1}}])
def test_a_receipt_of_another_version_is_undone_by_its_steps(tmp_path: Path, state: Path, changes: Json) -> None:
    on(state, receipt_of(state, **changes))
    with bench(tmp_path / "bench") as target:
        target.custody = custody(state)
        done = recovering.recover(target.custody, target, None, {}, Clock())
    assert done.restored is Restored.CLEAN, done.lines
    assert not (state / "marker-0").exists()
    assert custody(state).outstanding() == []


def test_an_undo_that_cannot_even_be_tried_is_not_clean(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault without undo steps has no manual commands; the exit code must not depend on those."""
    on(state, receipt_of(state, 0))
    armed = custody(state).arm(receipt_of(state, 1, undo=()))
    monkeypatch.setattr(FileCustody, "disarm", lambda *_: False)
    done = recover(state)
    assert (done.restored, done.lines[0]) == (
        Restored.DIRTY,
        f"run {RUN}: noop on replica-1: NOT put back: its on-target timer could not be ended",
    )
    procs.signal(armed["pid"], armed["start"], signal.SIGKILL)


def test_what_only_the_journal_tells_of_is_undone_too(tmp_path: Path, state: Path) -> None:
    """The driver died between the journal and the target, or the target lost its copy."""
    receipt = receipt_of(state)
    (state / "marker-0").touch()
    folder = run_folder(tmp_path, receipt)
    dead_lock(state, folder)
    done = recover(state, folders={RUN: folder})
    assert done.restored is Restored.CLEAN
    assert not (state / "marker-0").exists()
    assert [e["status"] for e in ended(folder)] == ["crashed"]
    assert custody(state).outstanding() == []
    assert custody(state).held() is None
    assert recover(state, folders={RUN: folder}).lines == []


@pytest.mark.parametrize("named", [False, True])
def test_a_journal_that_cannot_be_written_costs_no_undo(tmp_path: Path, state: Path, named: bool) -> None:
    on(state, receipt_of(state))
    folder = tmp_path / f"20260101T000000Z-noop-{RUN}"
    (folder / "journal.jsonl").mkdir(parents=True)
    dead_lock(state, folder)
    done = recover(state, RUN if named else None, {RUN: folder})
    assert done.restored is Restored.CLEAN
    assert not (state / "marker-0").exists()
    assert any(line.startswith("not written down: ") for line in done.lines)
    assert custody(state).held() is None


def test_a_run_cut_short_before_it_touched_anything_is_closed(tmp_path: Path, state: Path) -> None:
    folder = run_folder(tmp_path)
    half_taken, another = (state / "lock" / f"lock.json.{run}" for run in (RUN, "another"))
    half_taken.parent.mkdir()
    half_taken.touch()
    another.touch()
    assert recover(state, folders={RUN: folder}).lines == [f"run {RUN}: journal closed"]
    assert (half_taken.exists(), another.exists()) == (False, True)
    assert ended(folder) == [
        {"status": "crashed", "reason": "the driver was cut short; nothing was to be put back"},
    ]


def test_the_journal_of_a_run_that_lives_is_left_alone(tmp_path: Path, state: Path) -> None:
    """It may be drilling another target."""
    folder = run_folder(tmp_path)
    with Journal(folder / "journal.jsonl") as living:
        living.tell("phase", {"phase": "warmup", "planned_s": 1.0})
        assert recover(state, folders={RUN: folder}).lines == []
        assert ended(folder) == []


def test_files_whose_writer_died_are_swept_and_others_are_not(state: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (state / "receipts").mkdir()
    dead = [state / name / f"{TEMPORARY}{int(gone.stdout)}-1234-abc" for name in (".", "receipts")]
    mine = state / "receipts" / f"{TEMPORARY}{os.getpid()}-{procs.start(os.getpid())}-abc"
    foreign = state / f"{TEMPORARY}something-else"
    for path in (*dead, mine, foreign):
        path.touch()
    recover(state)
    assert [path.exists() for path in (*dead, mine, foreign)] == [False, False, True, True]


def test_what_was_being_written_beside_a_file_of_the_fault_is_swept_too(state: Path, tmp_path: Path) -> None:
    """A proxy's folder is outside the state folder; only receipts tell of it."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (folder := tmp_path / "faults").mkdir()
    (dead := folder / f"{TEMPORARY}{int(gone.stdout)}-1234-abc").touch()
    (somebody_s := folder / "another.json").touch()
    on(state, receipt_of(state, undo=({"do": "remove", "path": str(folder / "fault.json")},)))
    assert recover(state).restored is Restored.CLEAN
    assert [path.exists() for path in (dead, somebody_s)] == [False, True]


# ---- what is typed by hand -------------------------------------------------------------------------------


def test_what_is_to_be_typed_elsewhere_is_no_command_here(state: Path) -> None:
    """A pid of a node means another process on the machine of whoever reads it."""
    kill: Json = {"do": "signal", "pid": 4711, "start": 1, "signal": "CONT"}
    away = receipt_of(state, host="node-1", undo=(kill, {**kill, "host": "node-2"}))
    assert receipts.by_hand(away) == ["# on node-1: kill -CONT 4711", "# on node-2: kill -CONT 4711"]
    assert receipts.by_hand(receipt_of(state, undo=(kill,))) == ["kill -CONT 4711"]
    job = {"do": "job", "name": "j", "namespace": "llm", "host": "node-1"}
    assert receipts.manual(job) == "kubectl --namespace llm delete job j"  # from anywhere


def test_a_timer_that_does_not_end_is_ended_on_its_node(state: Path) -> None:
    stuck = {"state": "armed", "pid": 4711, "start": 1, "node": "node-2"}
    assert recovering._end_timer(Outstanding(receipt_of(state, host="node-1"), stuck)) == ["# on node-2: kill -9 4711"]
    here = Outstanding(receipt_of(state), {"state": "armed", "pid": 4711, "start": 1})
    assert recovering._end_timer(here) == ["kill -9 4711"]
