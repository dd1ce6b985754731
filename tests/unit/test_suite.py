"""Several drills in one command: which ones, what ends it, and how long the next one waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills import gate, opening, session, suite
from drills.clock import Clock
from drills.errors import DrillError, Refused
from drills.experiment import Experiment, find_experiment
from drills.model import Replica, Target
from drills.options import Options
from drills.session import Told
from drills.suite import SUITES

NOBODY = "http://127.0.0.1:9"  # the port where nobody listens


class Patient(Clock):
    """A clock whose waits are over at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def mono(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


# ---- which ones ---------------------------------------------------------------------------------------


def test_a_suite_stands_for_its_drills_in_its_order_and_all_of_them_are_there() -> None:
    four = ["upstream-delay", "packet-loss", "pod-kill", "gpu-reset"]
    assert suite.expanded(["noop", "monthly", "pod-kill"]) == ["noop", *four, "pod-kill"]
    assert [find_experiment(name).name for name in SUITES["monthly"]] == four


# ---- what ends it -------------------------------------------------------------------------------------


class Ran:
    """Carries out `drill run` with drills that end as they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, codes: dict[str, int | DrillError]) -> None:
        self.begun: list[str] = []
        self.settled: list[int] = []
        self.said: list[str] = []
        self.codes, self.reports = codes, tmp_path / "reports"
        monkeypatch.setenv("DRILL_LAB_DIR", str(tmp_path / "lab"))
        monkeypatch.setattr(opening, "open_target", self.opened)
        monkeypatch.setattr(opening, "refuse_impossible", lambda *_: None)
        monkeypatch.setattr(gate, "settle", self.settle)
        monkeypatch.setattr(session, "_run_one", self.run_one)

    @contextmanager
    def opened(self, *_: Any) -> Iterator[Any]:
        yield SimpleNamespace(endpoint="http://127.0.0.1:9/v1", expected_replicas=3)

    def settle(self, *_: Any, **__: Any) -> bool:
        self.settled.append(len(self.begun))
        return True

    def run_one(self, one: Experiment, *_: Any) -> Told:
        self.begun.append(one.name)
        code = self.codes.get(one.name, 0)
        if isinstance(code, DrillError):
            raise code
        return Told(code, (f"{one.name} ended",))

    def __call__(self, *names: str, **more: Any) -> int:
        return session.run(names, Options(reports=self.reports), self.said.append, **more)


def test_the_target_settles_between_two_drills(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = Ran(monkeypatch, tmp_path, {})
    assert ran("noop", "pod-kill", "gpu-reset") == 0
    assert ran.begun == ["noop", "pod-kill", "gpu-reset"]
    assert ran.settled == [1, 2]


def test_after_a_repair_it_settles_before_the_first_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = Ran(monkeypatch, tmp_path, {})
    ran("noop", "pod-kill", settle_first=True)
    assert ran.settled == [0, 1]


@pytest.mark.parametrize(
    ("code", "goes_on"), [(0, True), (1, True), (2, True), (3, True), (4, False), (5, False), (70, False)]
)
def test_what_was_stopped_not_restored_or_our_bug_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, goes_on: bool
) -> None:
    ran = Ran(monkeypatch, tmp_path, {"noop": code})
    assert ran("noop", "pod-kill") == code
    assert ran.begun == ["noop", *(["pod-kill"] if goes_on else [])]
    assert ran.said[-1] == f"{ran.begun[-1]} ended"


def test_a_drill_that_is_refused_keeps_no_other_from_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = Ran(monkeypatch, tmp_path, {"pod-kill": Refused("pod-kill: limits forbid it"), "gpu-reset": 1})
    assert ran("noop", "pod-kill", "gpu-reset") == 3
    assert ran.begun == ["noop", "pod-kill", "gpu-reset"]
    blocks = [
        "noop:",
        "noop ended",
        "pod-kill:",
        "refused: pod-kill: limits forbid it",
        "gpu-reset:",
        "gpu-reset ended",
    ]
    assert ran.said == blocks


def test_one_drill_needs_no_heading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = Ran(monkeypatch, tmp_path, {})
    assert ran("noop") == 0
    assert ran.said == ["noop ended"]


def test_what_ended_before_a_bug_is_still_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = Ran(monkeypatch, tmp_path, {"pod-kill": DrillError("bug")})
    with pytest.raises(DrillError):
        ran("noop", "pod-kill", "gpu-reset")
    assert (ran.begun, ran.said) == (["noop", "pod-kill"], ["noop:", "noop ended"])


def test_when_none_could_run_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran = Ran(monkeypatch, tmp_path, {})

    def impossible(_spec: Any, faults: Any) -> None:
        if faults[0].name != "noop":
            raise Refused(f"{faults[0].name}: cannot be done here")

    monkeypatch.setattr(opening, "refuse_impossible", impossible)
    with pytest.raises(Refused, match="pod-kill: cannot be done here"):
        ran("pod-kill", "gpu-reset")
    assert ran.begun == []
    assert ran("noop", "pod-kill") == 0, "its own preflight refuses it, with a journal"
    assert "will be refused: pod-kill: cannot be done here" in ran.said


# ---- how long the next one waits ----------------------------------------------------------------------


class Troubles:
    """What keeps a target from being settled, look by look; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: list[str]) -> None:
        self.looks, self.seen = list(looks), 0
        self.said: list[str] = []
        self.clock = Patient()
        monkeypatch.setattr(gate, "unsettled", self.unsettled)

    def unsettled(self, _: Target) -> list[str]:
        self.seen += 1
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def settle(self, stopping: Callable[[], bool] = lambda: False) -> bool:
        return gate.settle(cast("Target", None), self.clock, stopping=stopping, say=self.said.append)


def test_a_target_that_is_settled_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    troubles = Troubles(monkeypatch, [])
    assert troubles.settle()
    assert (troubles.said, troubles.clock.now) == ([], 0.0)


def test_it_waits_until_the_alert_is_over_and_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    troubles = Troubles(monkeypatch, ["VllmReplicaDown fires"], ["replica-1: not ready"], [])
    assert troubles.settle()
    assert troubles.seen == 3
    assert troubles.said == ["waiting up to 10 min until the target has settled: VllmReplicaDown fires", "settled"]


def test_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    troubles = Troubles(monkeypatch, ["replica-1: not ready"])
    assert not troubles.settle()
    assert gate.SETTLE_TIMEOUT_S <= troubles.clock.now <= gate.SETTLE_TIMEOUT_S + gate.SETTLE_POLL_S
    assert troubles.said[-1] == "not settled: replica-1: not ready"


def test_a_signal_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    troubles = Troubles(monkeypatch, ["replica-1: not ready"])
    assert not troubles.settle(stopping=lambda: troubles.seen >= 2)
    assert troubles.seen == 2


def unsettled(*replicas: Replica, expected: int = 1, **more: Any) -> list[str]:
    facts = {"expected_replicas": expected, "prometheus": None, "model": "m", "fallback_models": ()} | more
    return gate.unsettled(cast("Target", SimpleNamespace(replicas=lambda: list(replicas), **facts)))


def test_who_is_not_ready_or_silent_is_named() -> None:
    found = unsettled(
        Replica("replica-0", "0", "primary", NOBODY, ready=True),
        Replica("replica-1", "1", "primary", NOBODY, ready=False),
    )
    assert found[0] == "replica-1: not ready"
    assert [line.partition(":")[0] for line in found] == ["replica-1", "replica-0", "replica-1"]
    assert unsettled(expected=3) == ["0 of 3 replicas are there"]


def test_alerts_that_cannot_be_read_are_not_taken_for_none() -> None:
    assert f"{NOBODY} cannot be read" in unsettled(prometheus=NOBODY, expected=0)[0]


def test_what_others_are_at_is_waited_for() -> None:
    """A pod that the drill before evicted, as well."""
    busy = {"others_at_work": lambda: ["others are at work: pod a: is being evicted"], "changes_by_others": list}
    assert unsettled(expected=0, **busy) == ["others are at work: pod a: is being evicted"]


def test_a_target_that_cannot_be_asked_has_not_settled() -> None:
    def silent() -> list[Replica]:
        raise DrillError("lab: the supervisor does not answer")

    target = SimpleNamespace(replicas=silent, prometheus=None)
    assert gate.unsettled(cast("Target", target)) == ["lab: the supervisor does not answer"]
