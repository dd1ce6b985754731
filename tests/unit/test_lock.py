"""One run per target: who gets the lock, who is refused, and what a dead driver leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from drills import lock, receipts
from drills.access import procs
from drills.access.local import LocalHost
from drills.clock import Clock
from drills.errors import Refused
from drills.lock import Lock
from drills.model import Receipt, Target

HOST = LocalHost()


@pytest.fixture
def target(tmp_path: Path) -> Target:
    found = SimpleNamespace(name="lab", state_dir=str(tmp_path / "state"), control_host=lambda: HOST)
    return cast("Target", found)


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


def test_a_held_target_is_refused_with_who_holds_it(target: Target) -> None:
    lock.take(target, mine("aaaaaaaa"), Clock())
    with pytest.raises(Refused, match=r"run aaaaaaaa of .* holds it.*drill stop aaaaaaaa"):
        lock.take(target, mine("bbbbbbbb"), Clock())
    held = lock.read(HOST, target.state_dir)
    assert held is not None
    assert held.run == "aaaaaaaa"


@pytest.mark.parametrize("left_by_a_dead_driver", [False, True])
def test_of_many_at_once_one_gets_it(target: Target, left_by_a_dead_driver: bool) -> None:
    if left_by_a_dead_driver:
        lock.take(target, dead("aaaaaaaa"), Clock())

    def attempt(number: int) -> bool:
        try:
            lock.take(target, mine(f"{number:08x}"), Clock())
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
    assert set(HOST.list(f"{target.state_dir}/lock")) == {"lock.json", "lock.json.mutex"}


def test_the_lock_of_a_dead_driver_is_taken_over_when_nothing_is_left(target: Target) -> None:
    lock.take(target, dead("aaaaaaaa"), Clock())
    lock.take(target, mine("bbbbbbbb"), Clock())
    held = lock.read(HOST, target.state_dir)
    assert held is not None
    assert held.run == "bbbbbbbb"


def test_what_is_not_put_back_is_refused_even_when_its_run_is_gone(target: Target) -> None:
    lock.take(target, dead("aaaaaaaa"), Clock())
    left = Receipt("aaaaaaaa-0-noop", "aaaaaaaa", "noop", "lab", "local", ({"name": "replica-1"},), {}, (), (), 60.0)
    HOST.write(receipts.path(target.state_dir, left), json.dumps(receipts.to_json(left)))
    with pytest.raises(Refused, match=r"not put back yet: noop on replica-1 .*drill recover"):
        lock.take(target, mine("bbbbbbbb"), Clock())
    held = lock.read(HOST, target.state_dir)
    assert held is not None
    assert held.run == "aaaaaaaa"


def test_only_who_holds_it_lets_it_go(target: Target) -> None:
    lock.take(target, mine("aaaaaaaa"), Clock())
    lock.release(HOST, target.state_dir, "bbbbbbbb")
    assert lock.read(HOST, target.state_dir) is not None
    lock.release(HOST, target.state_dir, "aaaaaaaa")
    assert lock.read(HOST, target.state_dir) is None
    lock.take(target, mine("cccccccc"), Clock())


@pytest.mark.parametrize(("expires_in_s", "gone"), [(60.0, False), (-1.0, True)])
def test_of_another_machine_only_the_expiry_tells(expires_in_s: float, gone: bool) -> None:
    """A pid means nothing there."""
    clock = Clock()
    other = dataclasses.replace(
        mine("aaaaaaaa"), machine="another boot", pid=1, expires_wall=clock.wall() + expires_in_s
    )
    assert other.dead(clock) is gone
