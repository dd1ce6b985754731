"""Victims: select, filter, and only then count."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills.errors import Refused
from drills.faults import common
from drills.model import Replica
from drills.victims import all_of_route, choose, wanted


def replica(n: int, *, ready: bool = True, role: str = "primary") -> Replica:
    return Replica(name=f"r{n}", uid=f"u{n}", role=role, url="http://x", ready=ready)


def pick(
    replicas: list[Replica], asked: int | str = 1, *, max_victims: float = 0.34, min_healthy: int = 1
) -> list[str]:
    chosen = choose(replicas, asked, random.Random(1), max_victims=max_victims, min_healthy=min_healthy)
    return [r.name for r in chosen]


def test_only_ready_primaries_are_eligible() -> None:
    replicas = [replica(0, ready=False), replica(1, role="fallback"), replica(2), replica(3, ready=False), replica(4)]
    assert {pick(replicas)[0] for _ in range(20)} <= {"r2", "r4"}


def test_the_same_seed_chooses_the_same_victim_whatever_the_order() -> None:
    replicas = [replica(n) for n in range(5)]
    assert pick(replicas) == pick(list(reversed(replicas)))


@pytest.mark.parametrize(
    ("replicas", "asked", "limits", "says"),
    [
        ([], 1, {}, "no eligible replica"),
        ([replica(0, ready=False)], 1, {}, "no eligible replica"),
        ([replica(0), replica(1)], "34%", {}, "is none"),
        ([replica(0), replica(1)], 3, {}, "2 eligible"),
        ([replica(0), replica(1), replica(2)], 2, {}, "max_victims allows 1 of 3"),
        ([replica(0)], 1, {}, "0 healthy replicas would be left"),
        ([replica(0), replica(1), replica(2, ready=False)], 1, {"min_healthy": 2}, "1 healthy"),
    ],
)
def test_refused(replicas: list[Replica], asked: int | str, limits: dict[str, int], says: str) -> None:
    with pytest.raises(Refused, match=says):
        pick(replicas, asked, **limits)


@given(st.integers(1, 100), st.integers(0, 200))
def test_a_share_rounds_down(percent: int, eligible: int) -> None:
    assert wanted(f"{percent}%", eligible) == eligible * percent // 100


def test_a_protected_replica_is_healthy_and_never_a_victim() -> None:
    replicas = [replica(0), replica(1)]
    replicas[0] = Replica(**{**replicas[0].__dict__, "labels": {"tier": "critical"}})
    choices = {
        choose(replicas, 1, random.Random(seed), max_victims=0.5, min_healthy=1, protect=["tier=critical"])[0].name
        for seed in range(20)
    }
    assert choices == {"r1"}
    with pytest.raises(Refused, match="r0 protected"):
        choose(replicas[:1], 1, random.Random(1), max_victims=1, min_healthy=0, protect=["tier=critical"])


def test_a_limit_of_no_victims_is_a_limit() -> None:
    with pytest.raises(Refused, match="max_victims allows 0 of 3"):
        pick([replica(n) for n in range(3)], 1, max_victims=0.0)


def test_a_route_is_all_primaries_ready_or_not() -> None:
    replicas = [replica(2), replica(1, ready=False), replica(0), replica(3, role="fallback")]
    assert [r.name for r in all_of_route(replicas, allowed=True)] == ["r0", "r1", "r2"]


def test_a_route_is_refused_where_it_is_not_allowed_empty_or_protected() -> None:
    critical = Replica(**{**replica(0).__dict__, "labels": {"tier": "critical"}})
    with pytest.raises(Refused, match="allow_route_faults is false"):
        all_of_route([replica(0)], allowed=False)
    with pytest.raises(Refused, match="no primary replica"):
        all_of_route([replica(0, role="fallback")], allowed=True)
    with pytest.raises(Refused, match="r0 on it: protected"):
        all_of_route([critical, replica(1)], allowed=True, protect=["tier=critical"])


@pytest.mark.parametrize(
    ("pinned", "now", "same"),
    [
        ({}, {}, True),
        ({"pid": None}, {"pid": 5, "pid_start": 6}, True),  # its node was reached since
        ({"pid": 5}, {"pid": 7}, False),
        ({"pid": 5}, {"pid": None}, False),
        ({"pid": None}, {"uid": "another"}, False),
        ({"engine_pid": 8}, {"engine_pid": 9}, False),
    ],
)
def test_whether_it_is_still_the_one_that_was_aimed_at(pinned: dict[str, Any], now: dict[str, Any], same: bool) -> None:
    base = Replica("vllm-0", "u", "primary", "", ready=True)
    victim = common.pinned(replace(base, **pinned))
    assert (common.still_the_one(victim, [replace(base, **now)]) is not None) is same
