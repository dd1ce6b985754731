"""A target that cannot be asked for a while: the run goes on, and what is to be put back is waited for, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills import active, run
from drills.clock import Clock
from drills.errors import DrillError, Stopped, Unreachable
from drills.experiment import find_experiment
from drills.journal import read
from drills.model import Context, Fault, Json, Receipt, Restored, Target
from drills.plan import make_plan
from drills.run import Drill
from drills.setting import Setting
from drills.signals import StopFlag
from drills.target import lab_target

RECEIPT = Receipt("0badf00d-0-noop", "0badf00d", "noop", "t", "local", ({"name": "replica-0"},), {}, (), (), 60.0)


class Patient(Clock):
    """A clock whose waits are over at once."""

    def __init__(self) -> None:
        self.now = 100.0

    def mono(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Custody:
    """Answers when it is told to; what it answers can be set."""

    def __init__(self) -> None:
        self.away = False
        self.who: str | None = None

    def asked_to_stop(self, _run: str) -> str | None:
        if self.away:
            raise Unreachable("api: no answer within 5 s")
        return self.who

    def outstanding(self) -> list[Any]:
        return []


@pytest.fixture
def clock() -> Patient:
    return Patient()


@pytest.fixture
def custody() -> Custody:
    return Custody()


@pytest.fixture
def drill(tmp_path: Path, clock: Patient, custody: Custody) -> Iterator[Drill]:
    """A run that has not begun; only what it asks its target is looked at."""
    plan = make_plan(find_experiment("noop"), lab_target(), run="0badf00d", seed=1).to_json()
    target: Any = SimpleNamespace(custody=custody, name="t", prometheus=None)
    view: Any = SimpleNamespace(say=lambda _: None)
    made = Drill(Setting(plan, [], target, tmp_path, view, StopFlag(), clock, {}))
    yield made
    made.sampler.close()
    made.journal.close()


def told(drill: Drill, event: str) -> list[Json]:
    return [e.data for e in read(drill.journal.path) if e.event == event]


def test_a_silent_target_does_not_end_the_run_and_is_asked_again_later(
    drill: Drill, clock: Patient, custody: Custody
) -> None:
    custody.away = True
    drill._ask_target()
    assert told(drill, "unreachable") == [{"asked": "stop, timers", "reason": "api: no answer within 5 s"}]
    assert drill.next_ask_mono == clock.now + run.ASK_AGAIN_S
    custody.away = False
    drill._ask_target()
    assert drill.next_ask_mono == clock.now + run.ASK_INTERVAL_S
    custody.who = "ann@desk"
    with pytest.raises(Stopped, match="drill stop, by ann@desk"):
        drill._ask_target()
    assert told(drill, "stop") == [{"by": "ann@desk", "how": "drill stop"}]


def fault_that_is_away(times: int, attempts: list[int]) -> Fault:
    """A fault whose target does not answer so many times."""

    def revert(*_: Any) -> Restored:
        attempts.append(len(attempts))
        if len(attempts) <= times:
            raise Unreachable("api: connection refused")
        return Restored.CLEAN

    return cast("Fault", SimpleNamespace(name="noop", revert=revert))


def reverted(times: int, clock: Patient) -> tuple[Restored, str, int]:
    attempts: list[int] = []
    context = Context(lambda *_: None, clock.sleep, clock.mono, lambda: False)
    fault = fault_that_is_away(times, attempts)
    restored, why = active.revert(fault, cast("Target", None), RECEIPT, context)
    return restored, why, len(attempts)


def test_a_revert_waits_for_a_target_that_comes_back(clock: Patient) -> None:
    assert reverted(20, clock) == (Restored.CLEAN, "", 21)
    assert clock.now == 100 + 20 * active.REACH_AGAIN_S


def test_the_wait_is_bounded_and_what_is_not_known_is_not_called_clean(clock: Patient) -> None:
    restored, why, _ = reverted(10_000, clock)
    assert (restored, why) == (Restored.UNKNOWN, "Unreachable: api: connection refused")
    assert clock.now <= 100 + active.REACH_TIMEOUT_S + active.REACH_AGAIN_S


def test_what_fails_for_another_reason_is_tried_twice_without_a_wait(clock: Patient) -> None:
    attempts: list[int] = []

    def revert(*_: Any) -> Restored:
        attempts.append(1)
        raise DrillError("no such rule")

    context = Context(lambda *_: None, clock.sleep, clock.mono, lambda: False)
    fault: Any = SimpleNamespace(name="noop", revert=revert)
    assert active.revert(fault, cast("Target", None), RECEIPT, context)[0] is Restored.UNKNOWN
    assert (len(attempts), clock.now) == (active.REVERT_ATTEMPTS, 100.0)
