"""One run per target: who gets the lock, who is refused, and what a dead driver leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drills import lock, receipts
from drills.access import procs
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.clock import Clock
from drills.custody import Lock, LockLost
from drills.errors import Refused
from drills.model import Receipt

HOST = LocalHost()


@pytest.fixture
def custody(tmp_path: Path) -> FileCustody:
    return FileCustody(HOST, str(tmp_path / "state"), "lab")


def mine(run: str, pid: int | None = None) -> Lock:
    return lock.mine(run, Path("run-folder"), 60.0, pid or os.getpid(), Clock())


def dead(run: str) -> Lock:
    """Return the lock of a process that has ended."""
    process = subprocess.Popen(["sleep", "60"])
    taken = mine(run, process.pid)
    process.kill()
    process.wait(timeout=10)
    assert not procs.alive(taken.pid, taken.start)
    return taken


def test_a_held_target_is_refused_with_who_holds_it(custody: FileCustody) -> None:
    custody.take(mine("aaaaaaaa"), Clock())
    with pytest.raises(Refused, match=r"run aaaaaaaa of .* holds it.*drill stop aaaaaaaa"):
        custody.take(mine("bbbbbbbb"), Clock())
    held = custody.held()
    assert held is not None
    assert held.run == "aaaaaaaa"


@pytest.mark.parametrize("left_by_a_dead_driver", [False, True])
def test_of_many_at_once_one_gets_it(custody: FileCustody, left_by_a_dead_driver: bool) -> None:
    if left_by_a_dead_driver:
        custody.take(dead("aaaaaaaa"), Clock())

    def attempt(number: int) -> bool:
        try:
            custody.take(mine(f"{number:08x}"), Clock())
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    assert set(HOST.list(f"{custody.state_dir}/lock")) == {"lock.json", "lock.json.mutex"}


def test_the_lock_of_a_dead_driver_is_taken_over_when_nothing_is_left(custody: FileCustody) -> None:
    custody.take(dead("aaaaaaaa"), Clock())
    custody.take(mine("bbbbbbbb"), Clock())
    held = custody.held()
    assert held is not None
    assert held.run == "bbbbbbbb"


def test_what_is_not_put_back_is_refused_even_when_its_run_is_gone(custody: FileCustody) -> None:
    custody.take(dead("aaaaaaaa"), Clock())
    leave(custody)
    with pytest.raises(Refused, match=r"not put back yet: noop on replica-1 .*drill recover"):
        custody.take(mine("bbbbbbbb"), Clock())
    held = custody.held()
    assert held is not None
    assert held.run == "aaaaaaaa"


def test_what_a_run_that_lives_has_done_is_its_own_to_put_back(custody: FileCustody) -> None:
    """Nobody is told to recover a target on which a drill is going on."""
    custody.take(mine("aaaaaaaa"), Clock())
    leave(custody)
    with pytest.raises(Refused, match=r"run aaaaaaaa of .* holds it"):
        custody.take(mine("bbbbbbbb"), Clock())


def leave(custody: FileCustody) -> None:
    """Put down the receipt of a noop of run aaaaaaaa."""
    left = Receipt("aaaaaaaa-0-noop", "aaaaaaaa", "noop", "lab", "local", ({"name": "replica-1"},), {}, (), (), 60.0)
    HOST.write(custody.receipt_file(left), json.dumps(receipts.to_json(left)))


def test_only_who_holds_it_lets_it_go(custody: FileCustody) -> None:
    custody.take(mine("aaaaaaaa"), Clock())
    custody.release("bbbbbbbb")
    assert custody.held() is not None
    custody.release("aaaaaaaa")
    assert custody.held() is None
    custody.take(mine("cccccccc"), Clock())


@pytest.mark.parametrize(("expires_in_s", "gone"), [(60.0, False), (-1.0, True)])
def test_of_another_machine_only_the_expiry_tells(expires_in_s: float, gone: bool) -> None:
    """A pid means nothing there."""
    clock = Clock()
    other = dataclasses.replace(
        mine("aaaaaaaa"), machine="another boot", pid=1, expires_wall=clock.wall() + expires_in_s
    )
    assert lock.dead(other, clock) is gone


def test_a_pid_means_nothing_in_another_namespace_of_the_same_machine() -> None:
    """Drivers in containers of one node: both may be pid 1."""
    boot, _, _ = lock.machine().partition(" ")
    held = dataclasses.replace(mine("aaaaaaaa"), machine=f"{boot} pid:[1]", start=1)
    assert not lock.dead(held, Clock())


def test_a_lock_that_was_lost_is_noticed_and_says_to_whom(custody: FileCustody) -> None:
    clock = Clock()
    ours, theirs = dead("aaaaaaaa"), mine("bbbbbbbb")
    custody.take(ours, clock)
    custody.renew(ours, clock)
    custody.take(theirs, clock)
    custody.renew(theirs, clock)
    with pytest.raises(LockLost, match=r"lock of run aaaaaaaa was lost: run bbbbbbbb of .* has it"):
        custody.renew(ours, clock)
    custody.release(theirs.run)
    with pytest.raises(LockLost, match="its file is gone"):
        custody.renew(theirs, clock)


def test_who_is_asked_to_stop_is_told_by_whom_until_it_is_forgotten(custody: FileCustody) -> None:
    custody.ask_to_stop("aaaaaaaa", "ann@desk")
    assert [custody.asked_to_stop(run) for run in ("aaaaaaaa", "bbbbbbbb")] == ["ann@desk", None]
    custody.forget_stop("aaaaaaaa")
    custody.forget_stop("aaaaaaaa")
    assert custody.asked_to_stop("aaaaaaaa") is None
