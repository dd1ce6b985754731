"""A run's hold on its target: kept while the run is busy, lost to others, let go."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drills import lock, tenure
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.clock import Clock
from drills.custody import Lock, LockLost
from drills.errors import DrillError, Refused, Unreachable
from drills.model import Json
from drills.tenure import ChangedByOthers, Tenure

RUN = "0badf00d"


class Silent(FileCustody):
    """A custody that does not answer for a while, and says when it was asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalHost(), str(folder), "lab")
        self.silent = False
        self.asked, self.lost = threading.Event(), threading.Event()

    def renew(self, lock: Lock, clock: Clock) -> None:
        self.asked.set()
        if self.silent:
            raise Unreachable("api: no answer")
        try:
            super().renew(lock, clock)
        except LockLost:
            self.lost.set()
            raise


class Held:
    """A tenure and what it noted."""

    def __init__(self, custody: FileCustody, run: str = RUN, **abilities: Any) -> None:
        self.notes: list[tuple[str, Json]] = []
        target: Any = SimpleNamespace(name="lab", custody=custody, **abilities)
        mine = lock.mine(run, Path("run-folder"), 60.0, os.getpid(), Clock())
        self.it = Tenure(target, mine, Clock(), lambda event, data: self.notes.append((event, data)))


def test_it_is_kept_by_a_thread_of_its_own_and_let_go_at_the_end(tmp_path: Path) -> None:
    custody = Silent(tmp_path)
    held = Held(custody)
    held.it.begin()
    assert custody.asked.wait(10)
    custody.ask_to_stop(RUN, "ann")
    with pytest.raises(Refused, match="holds it"):
        Held(custody, "another").it.begin()
    assert held.it.end(release=True)
    held.it.look()
    assert (custody.held(), custody.asked_to_stop(RUN)) == (None, None)


def test_what_is_not_put_back_keeps_the_lock(tmp_path: Path) -> None:
    custody = Silent(tmp_path)
    held = Held(custody)
    held.it.begin()
    assert not held.it.end(release=False)
    left = custody.held()
    assert left is not None
    assert left.run == RUN


def test_one_that_was_refused_changes_nothing(tmp_path: Path) -> None:
    custody = Silent(tmp_path)
    first, second = Held(custody), Held(custody, "another")
    first.it.begin()
    with pytest.raises(Refused):
        second.it.begin()
    assert custody.held() is not None
    first.it.end(release=True)


def test_a_lock_that_is_anothers_is_a_change_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenure, "KEEP_INTERVAL_S", 0.01)
    custody = Silent(tmp_path)
    held = Held(custody)
    held.it.begin()
    held.it.look()
    another = lock.mine("another", Path("elsewhere"), 60.0, os.getpid(), Clock())
    custody.host.write(f"{tmp_path}/lock/lock.json", json.dumps(asdict(another)))
    assert custody.lost.wait(10)
    assert not held.it.end(release=True)
    with pytest.raises(ChangedByOthers, match="run another"):
        held.it.look()
    assert [event for event, _ in held.notes] == ["changed_by_others"]
    left = custody.held()
    assert left is not None
    assert left.run == "another"


def test_a_target_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    custody = Silent(tmp_path)
    held = Held(custody)
    custody.silent = True
    held.it.keep()
    held.it.look()
    assert held.notes == [("unreachable", {"asked": "lock", "reason": "api: no answer"})]


def test_an_embedded_target_is_touched(tmp_path: Path) -> None:
    touched: list[str] = []
    custody = Silent(tmp_path)
    held = Held(custody, keep_alive=lambda: touched.append("once"), load_core=lambda: None)
    custody.take(held.it.lock, Clock())
    held.it.keep()
    assert touched == ["once"]


def test_what_goes_wrong_in_the_thread_is_raised_by_the_run(tmp_path: Path) -> None:
    def broken() -> None:
        raise DrillError("lab: the supervisor does not answer")

    held = Held(Silent(tmp_path), keep_alive=broken, load_core=lambda: None)
    held.it.begin()
    held.it.end(release=True)
    with pytest.raises(DrillError, match="supervisor does not answer"):
        held.it.look()
