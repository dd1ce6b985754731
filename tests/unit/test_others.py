"""What others change ends a run; what an autoscaler does is told, and waited for."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills import others
from drills.clock import Clock
from drills.errors import Unreachable
from drills.model import Json, Receipt, Target
from drills.others import Others
from drills.probes.http import ProbeError
from drills.surroundings import Surroundings
from drills.tenure import ChangedByOthers

SCALED: Json = {"subject": "Deployment vllm", "what": "replicas", "was": 3, "now": 5, "by": "autoscaler"}
EDITED: Json = {"subject": "Deployment vllm", "what": "specification", "was": "a1", "now": "b2", "by": "others"}


class Instant(Clock):
    """A clock on which waits are over at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def mono(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Service:
    """A target whose changes a test sets."""

    name = "t"

    def __init__(self, *looks: list[Json] | Exception) -> None:
        self.looks = list(looks)
        self.asked: list[Sequence[Receipt]] = []

    def others_at_work(self) -> list[str]:
        return []

    def changes_by_others(self, ours: Sequence[Receipt]) -> list[Json]:
        self.asked.append(ours)
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(found, Exception):
            raise found
        return found


def watching(service: Service) -> tuple[Others, list[tuple[str, Json]]]:
    told: list[tuple[str, Json]] = []
    made = Others(cast("Target", service), lambda event, data: told.append((event, data)), list)
    return made, told


def test_what_others_change_ends_the_run() -> None:
    made, told = watching(Service([EDITED]))
    made.raise_if_changed()
    made.look()
    made.look()
    with pytest.raises(ChangedByOthers, match="Deployment vllm: specification a1 → b2, by others"):
        made.raise_if_changed()
    assert told == [("changed_by_others", EDITED)]  # once


def test_what_the_drill_itself_did_is_for_the_target_to_know() -> None:
    service = Service([])
    mine: Any = object()
    Others(cast("Target", service), lambda *_: None, lambda: [mine]).look()
    assert service.asked == [[mine]]


def test_an_autoscaler_ends_nothing_and_is_told_until_it_is_back() -> None:
    made, told = watching(Service([SCALED], [SCALED | {"now": 6}], []))
    for _ in range(3):
        made.look()
        made.raise_if_changed()
    assert [(event, data["now"]) for event, data in told] == [("scaled", 5), ("scaled", 6), ("scaled.back", 6)]


def waited(service: Service, *, stopped: bool = False) -> tuple[float, list[str], list[str]]:
    """Look once, then wait; returns how long that took, what was said, and the events."""
    made, told = watching(service)
    made.look()
    clock, said = Instant(), list[str]()
    made.until_back(clock, stopping=lambda: stopped, say=said.append)
    return clock.now, said, [event for event, _ in told]


def test_the_run_waits_until_it_is_scaled_back() -> None:
    took, said, events = waited(Service([SCALED], Unreachable("away"), [SCALED], []))
    assert took == 3 * others.BACK_POLL_S
    assert said == ["waiting up to 10 min until it is scaled back: Deployment vllm: replicas 3 → 5, by autoscaler"]
    assert events == ["scaled", "scaled.back"]


def test_the_wait_is_bounded_and_what_is_left_is_told() -> None:
    took, _, events = waited(Service([SCALED]))
    assert took == others.BACK_TIMEOUT_S
    assert events == ["scaled", "scaled.left"]


def test_whoever_stops_the_run_need_not_wait() -> None:
    took, _, events = waited(Service([SCALED]), stopped=True)
    assert (took, events) == (0.0, ["scaled", "scaled.left"])


def test_nothing_scaled_nothing_to_wait_for() -> None:
    assert waited(Service([])) == (0.0, [], [])


def test_a_target_that_cannot_be_asked_is_a_look_that_failed() -> None:
    made, told = watching(Service(Unreachable("cluster: away")))
    with pytest.raises(ProbeError, match="cluster: away"):
        made.look()
    made.raise_if_changed()
    assert told == []


def test_a_target_that_is_nobody_elses_is_not_looked_at() -> None:
    alone = cast("Target", SimpleNamespace(name="lab"))
    assert Others(alone, lambda *_: None, list).jobs() == []
    assert [job.probe for job in watching(Service([]))[0].jobs()] == ["others"]


def test_a_run_looks_out_for_all_of_it() -> None:
    service: Any = Service([EDITED])
    service.alertmanager = service.prometheus = None
    around = Surroundings({"target": {}}, service, Clock(), tell=lambda *_: None, note=lambda *_: None, ours=list)
    around.begin(1.0)  # nobody to be told
    [job] = around.jobs()
    around.look_out()
    job.look()
    with pytest.raises(ChangedByOthers):
        around.look_out()


def test_what_has_scaled_is_looked_at_once_more_when_asked() -> None:
    """A pod may start before the next look."""
    assert watching(Service([SCALED]))[0].scaled()
    assert not watching(Service([]))[0].scaled()
    assert not watching(Service(Unreachable("away")))[0].scaled()
