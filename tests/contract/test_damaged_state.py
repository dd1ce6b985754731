"""State files that something spoilt: what can be put back is, what cannot is named, and nothing crashes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drills import lock, receipts, upkeep
from drills.access import ontarget, procs
from drills.access.filecustody import FileCustody
from drills.clock import Clock
from drills.custody import LockLost, LockUnreadable
from drills.errors import DrillError, Refused, UsageError
from drills.journal import Journal
from drills.lab import target as lab_target
from drills.model import Json, Receipt
from tests.unit.test_damage import changed

RUN, OTHER = "0badf00d", "feedf00d"


@pytest.fixture
def custody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileCustody]:
    """The custody of a lab that is not up; timers that a test leaves behind are ended."""
    monkeypatch.setenv("DRILL_LAB_DIR", str(tmp_path / "lab"))
    monkeypatch.chdir(tmp_path)
    yield lab_target.custody(tmp_path / "lab")
    for pid, start in TIMERS:
        procs.signal(pid, start, signal.SIGKILL)
    TIMERS.clear()


TIMERS: list[tuple[int, int]] = []


def lying(custody: FileCustody, tmp_path: Path, run: str = RUN) -> tuple[Receipt, Path]:
    """A receipt with its timer, whose fault is a marker file that is there."""
    (marker := tmp_path / f"marker-{run}").touch()
    step: Json = {"do": "remove", "path": str(marker)}
    receipt = Receipt(f"{run}-0-noop", run, "noop", "lab", "local", ({"name": "replica-0"},), {}, (), (step,), 600.0)
    armed = custody.arm(receipt)
    TIMERS.append((armed["pid"], armed["start"]))
    return receipt, marker


def spoil(custody: FileCustody, receipt: Receipt, **changes: Any) -> Path:
    """Write other values into the receipt's file."""
    path = Path(custody.receipt_file(receipt))
    path.write_text(json.dumps(receipts.to_json(receipt) | changes))
    return path


def timer_file(custody: FileCustody, receipt: Receipt) -> Path:
    return Path(custody.receipt_file(receipt)).with_suffix(".timer.json")


def recovered(tmp_path: Path, run: str | None = None) -> tuple[int, list[str]]:
    said: list[str] = []
    return upkeep.recover(run, None, None, tmp_path / "reports", said.append), said


def status(tmp_path: Path) -> str:
    return "\n".join(upkeep.status(None, None, tmp_path / "reports"))


def locked(custody: FileCustody, text: str) -> Path:
    (path := Path(custody.state_dir) / "lock" / "lock.json").parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def dead_lock(tmp_path: Path, run: str = RUN) -> Json:
    """The lock of a driver that is gone."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return asdict(lock.mine(run, tmp_path / "folder", 600.0, int(gone.stdout), Clock()))


# ---- receipts ----------------------------------------------------------------------------------------


def test_one_that_cannot_be_read_hides_no_other(custody: FileCustody, tmp_path: Path) -> None:
    cut, _ = lying(custody, tmp_path, OTHER)
    _, marker = lying(custody, tmp_path, RUN)
    path = Path(custody.receipt_file(cut))
    path.write_bytes(path.read_bytes()[:90])
    before = status(tmp_path)
    assert f"{path}: is no receipt of this version" in before
    assert "to be put back: noop on replica-0 (run 0badf00d)" in before
    with pytest.raises(Refused, match="is no receipt of this version"):
        custody.take(lock.mine("cccccccc", tmp_path, 60.0, os.getpid(), Clock()), Clock())
    code, said = recovered(tmp_path)
    assert (code, marker.exists(), path.exists()) == (5, False, True)
    assert f"run {RUN}: noop on replica-0: put back" in said
    assert any(line.startswith(f"{path}: is no receipt of this version (it is no JSON); look at") for line in said)
    assert said[-1].startswith(f"NOT RESTORED, run by hand: rm -f {path}  #")
    assert recovered(tmp_path)[0] == 5
    path.unlink()
    assert recovered(tmp_path) == (0, ["nothing to put back"])


def test_of_one_run_only_what_may_be_its_own_counts(custody: FileCustody, tmp_path: Path) -> None:
    cut, _ = lying(custody, tmp_path, OTHER)
    lying(custody, tmp_path, RUN)
    spoil(custody, cut, victims=[{}])
    assert recovered(tmp_path, RUN)[0] == 0
    assert recovered(tmp_path, OTHER)[0] == 5


def test_a_damaged_receipt_is_undone_from_the_journal_where_that_tells(custody: FileCustody, tmp_path: Path) -> None:
    receipt, marker = lying(custody, tmp_path)
    (folder := tmp_path / "reports" / "runs" / f"20260101T000000Z-noop-{RUN}").mkdir(parents=True)
    with Journal(folder / "journal.jsonl") as journal:
        journal.tell("receipt", {"receipt": receipts.to_json(receipt)})
    Path(custody.receipt_file(receipt)).write_text("")
    code, said = recovered(tmp_path)
    assert (code, marker.exists(), custody.found().unreadable) == (0, False, []), said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"victims": [{}]}, r"victims\[0\]\.name is missing"),
        ({"undo": ["x"]}, r"undo\[0\] is not what it should be"),
        ({"undo": [{"do": "remove"}]}, r"undo\[0\]\.path is missing"),
        ({"undo": [{"do": "format", "path": "/"}]}, r"undo\[0\]\.do is none of remove, signal"),
        ({"undo": [{"do": "unchain", "iptables": "i", "table": "t", "chain": "c"}]}, r"undo\[0\]\.netns is missing"),
        ({"undo": [{"do": "signal", "pid": 0, "start": 1, "signal": "KILL"}]}, r"undo\[0\]\.pid is not what"),
        ({"undo": [{"do": "signal", "pid": 7, "start": 1, "signal": "DIE"}]}, r"undo\[0\]\.signal is not what"),
        ({"undo": [{"do": "run", "argv": []}]}, r"undo\[0\]\.argv is missing"),
        ({"id": "../../x"}, "id is not what it should be"),
        ({"id": f"{RUN}-1-noop"}, f"it is that of {RUN}-1-noop"),
        ({"deadline_s": 1e300}, "deadline_s is not what it should be"),
    ],
)
def test_a_receipt_of_another_shape_is_named(custody: FileCustody, tmp_path: Path, changes: Json, why: str) -> None:
    receipt, marker = lying(custody, tmp_path)
    spoil(custody, receipt, **changes)
    assert "is no receipt of this version" in status(tmp_path)
    code, said = recovered(tmp_path)
    assert (code, marker.exists()) == (5, True)
    with pytest.raises(Refused, match=rf"{receipt.id}\.json: is no receipt of this version \({why}"):
        custody.outstanding()
    assert any("run by hand" in line for line in said)
    with pytest.raises(UsageError, match="no run does"):
        upkeep.stop(RUN, None, None)


def test_a_folder_and_a_pipe_in_the_place_of_receipts(custody: FileCustody, tmp_path: Path) -> None:
    (folder := Path(custody.state_dir) / "receipts" / f"{RUN}-0-noop.json").mkdir(parents=True)
    os.mkfifo(folder.parent / f"{RUN}-1-noop.json")
    assert status(tmp_path).count("is no receipt of this version") == 2
    assert recovered(tmp_path)[0] == 5


def test_the_steps_are_those_that_are_carried_out() -> None:
    assert set(receipts.STEPS) == set(ontarget.STEPS)


# ---- timers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        '{"state": "armed"}',
        '{"state": "undone", "at": 1e300}',
        '{"state": "undone", "at": 5}',
        '{"state": "armed", "pid": -1, "start": 0, "deadline_wall": 5}',
        '{"state": "armed", "pid": 1e30, "start": 0, "deadline_wall": 1e300}',
        '{"state": ["x"]}',
        "[]",
        "",
        "{",
    ],
)
def test_whatever_a_timer_says_its_fault_is_undone_and_its_receipt_taken_away(
    custody: FileCustody, tmp_path: Path, said: str
) -> None:
    receipt, marker = lying(custody, tmp_path)
    timer_file(custody, receipt).write_text(said)
    assert "what its timer says cannot be read" in status(tmp_path)
    code, lines = recovered(tmp_path)
    assert (code, marker.exists(), list((Path(custody.state_dir) / "receipts").iterdir())) == (0, False, []), lines


def test_what_is_not_restored_always_comes_with_a_command(
    custody: FileCustody, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = Receipt(f"{RUN}-0-noop", RUN, "noop", "lab", "local", ({"name": "replica-0"},), {}, (), (), 600.0)
    armed = custody.arm(receipt)
    TIMERS.append((armed["pid"], armed["start"]))
    monkeypatch.setattr(FileCustody, "disarm", lambda *_: False)
    code, said = recovered(tmp_path)
    assert code == 5
    assert [line.partition(": ")[2] for line in said if line.startswith("NOT RESTORED")] == [
        f"kill -9 {armed['pid']}",
        f"drill recover {RUN}",
    ]


# ---- the lock ----------------------------------------------------------------------------------------

LOCKS: list[Json] = [
    {"taken_wall": None}, {"expires_wall": None}, {"taken_wall": 1e300}, {"folder": 5}, {"pid": 0}, {"pid": "x"},
    {"run": ""}, {"folder": "a\0b"}, {"machine": None}, {"owner": ["x"]},
]  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", *map(json.dumps, LOCKS)])
def test_a_lock_that_cannot_be_read_is_not_taken_for_none(custody: FileCustody, tmp_path: Path, text: str) -> None:
    if text.startswith("{") and len(text) > 1:
        text = json.dumps(dead_lock(tmp_path) | json.loads(text))
    path = locked(custody, text)
    told = rf"{path}: is no lock that can be read .*when none does: rm {path}; then `drill recover`"
    with pytest.raises(LockUnreadable, match=told):
        custody.take(lock.mine("cccccccc", tmp_path, 60.0, os.getpid(), Clock()), Clock())
    for act in (lambda: recovered(tmp_path), lambda: upkeep.stop(RUN, None, None)):
        with pytest.raises(Refused, match=told):
            act()
    assert f"{path}: is no lock that can be read" in status(tmp_path)
    assert "no run holds it" not in status(tmp_path)
    custody.release(RUN)
    assert path.read_text() == text
    path.unlink()
    assert recovered(tmp_path)[0] == 0


def test_a_run_whose_lock_is_damaged_has_lost_it(custody: FileCustody, tmp_path: Path) -> None:
    mine = lock.mine(RUN, tmp_path, 60.0, os.getpid(), Clock())
    custody.take(mine, Clock())
    locked(custody, "{")
    with pytest.raises(LockLost, match="is no lock that can be read"):
        custody.renew(mine, Clock())


# ---- whatever is done to them ------------------------------------------------------------------------


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_no_damage_crashes_who_looks(custody: FileCustody, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    step: Json = {
        "do": "unrule",
        "netns": {"pid": 7, "start": 8, "inode": 9},
        "iptables": "i",
        "table": "t",
        "chain": "c",
    }
    process: Json = {"pid": 7, "start": 8}
    steps: list[Json] = [
        step | {"rule": ["-p", "tcp"]},
        process | {"do": "signal", "signal": "KILL", "once_gone": process},
    ]
    name = f"{RUN}-0-noop"
    whole = Receipt(name, RUN, "noop", "lab", "local", ({"name": "r"},), {}, (), tuple(steps), 600.0)
    said: Json = {"state": "undone", **process, "deadline_wall": 5.0, "at": 6.0}
    held = asdict(lock.mine(RUN, tmp_path, 600.0, os.getpid(), Clock()))
    spoilt = [receipts.to_json(whole), said, held]
    at = rng.randrange(3)
    spoilt[at] = changed(spoilt[at], rng)
    (folder := Path(custody.state_dir) / "receipts").mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(spoilt[0]))
    (folder / f"{name}.timer.json").write_text(json.dumps(spoilt[1]))
    locked(custody, json.dumps(spoilt[2]))
    assert RUN in status(tmp_path)
    for left in custody.found().outstanding:
        assert all(receipts.manual(step) for step in left.receipt.undo)
    refusal = ""
    try:  # it need not be refused
        upkeep.stop(RUN, None, None)
    except DrillError as error:
        refusal = str(error)
    assert "\n" not in refusal
