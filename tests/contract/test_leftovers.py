"""A suite runs unattended: what runs that are gone left on its target is put back first, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from drills import lock, session, suite, upkeep
from drills.access import procs
from drills.access.filecustody import FileCustody
from drills.clock import Clock
from drills.errors import NotRestored, Refused
from drills.journal import Journal, read
from drills.lab import target as lab_target
from drills.model import Json, Receipt
from drills.options import Options
from drills.receipts import to_json

RUN = "0badf00d"


@pytest.fixture
def custody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileCustody]:
    """The custody of a lab that is not up; timers that a test leaves behind are ended."""
    monkeypatch.setenv("DRILL_LAB_DIR", str(tmp_path / "lab"))
    monkeypatch.chdir(tmp_path)
    found = lab_target.custody(tmp_path / "lab")
    yield found
    for left in found.outstanding():
        if left.timer.get("pid"):
            procs.signal(left.timer["pid"], left.timer["start"], signal.SIGKILL)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(reports=tmp_path / "reports")


def leave(custody: FileCustody, options: Options, pid: int, *steps: Json) -> Receipt:
    """Leave the lock of that process, a receipt of its run, and a journal that tells of it."""
    folder = options.reports / "runs" / f"20260101T000000Z-noop-{RUN}"
    folder.mkdir(parents=True)
    victims: tuple[Json, ...] = ({"name": "replica-0"},)
    receipt = Receipt(f"{RUN}-0-noop", RUN, "noop", "lab", "local", victims, {}, (), steps, 600.0)
    with Journal(folder / "journal.jsonl") as journal:
        journal.tell("header", {"run": RUN})
        journal.tell("receipt", {"receipt": to_json(receipt)})
    custody.arm(receipt)
    taken = lock.mine(RUN, folder, 600, pid, Clock())
    custody.host.write(f"{custody.state_dir}/lock/lock.json", json.dumps(asdict(taken)))
    return receipt


def gone() -> int:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return int(done.stdout)


def test_what_a_run_that_is_gone_left_is_put_back_and_said(
    custody: FileCustody, options: Options, tmp_path: Path
) -> None:
    (tmp_path / "marker").touch()
    leave(custody, options, gone(), {"do": "remove", "path": str(tmp_path / "marker")})
    other = options.reports / "runs" / "20260101T000001Z-noop-feedbeef"
    other.mkdir()
    with Journal(other / "journal.jsonl") as journal:
        journal.tell("header", {"run": "feedbeef"})
    said: list[str] = []
    assert upkeep.put_back_leftovers(options, said.append)
    assert not (tmp_path / "marker").exists()
    assert (custody.outstanding(), custody.held()) == ([], None)
    assert f"run {RUN}: noop on replica-0: put back" in said
    assert [e.event for e in read(other / "journal.jsonl")] == ["header"], (
        "of a run elsewhere, maybe on another machine"
    )


def test_where_nothing_is_left_nothing_is_said(custody: FileCustody, options: Options) -> None:
    said: list[str] = []
    assert not upkeep.put_back_leftovers(options, said.append)
    assert (said, custody.held()) == ([], None)


def test_what_a_living_run_has_on_is_left_alone(
    custody: FileCustody, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "marker").touch()
    leave(custody, options, os.getpid(), {"do": "remove", "path": str(tmp_path / "marker")})
    monkeypatch.setattr(session, "run", lambda *_, **__: pytest.fail("a drill was begun"))
    with pytest.raises(Refused, match=f"run {RUN} is alive"):
        suite.run(["monthly"], options, print)
    assert (tmp_path / "marker").exists()


def test_what_cannot_be_put_back_lets_no_drill_begin(
    custody: FileCustody, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(custody, options, gone(), {"do": "run", "argv": ["/bin/sh", "-c", "exit 4"]})
    said: list[str] = []
    monkeypatch.setattr(session, "run", lambda *_, **__: pytest.fail("a drill was begun"))
    with pytest.raises(NotRestored, match="drill recover"):
        suite.run(["monthly"], options, said.append)
    assert "NOT RESTORED, run by hand: /bin/sh -c 'exit 4'" in said
    assert custody.held() is not None


def test_only_a_suite_repairs(custody: FileCustody, options: Options, tmp_path: Path) -> None:
    """Whoever names a drill is there, and is asked to look first."""
    (tmp_path / "marker").touch()
    leave(custody, options, gone(), {"do": "remove", "path": str(tmp_path / "marker")})
    with pytest.raises(Refused, match=r"not put back yet.*drill recover"):
        suite.run(["noop"], options, print)
    assert (tmp_path / "marker").exists()
