"""Which runs may be compared, and which differences are more than chance."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from drills import comparable
from drills.comparable import Change, beyond_chance, change, differences
from drills.model import Json

PLAN: Json = {
    "run": "aaaa1111",
    "seed": 1,
    "hash": "x",
    "experiment": {
        "name": "gpu-reset",
        "title": "A replica loses its GPU",
        "load": {"arrivals": {"kind": "poisson", "rate": 20.0}, "client": {"timeout": 30.0}},
        "faults": [{"fault": "gpu-reset", "params": {"victims": 1, "how": "crash"}, "warning": "words"}],
        "checks": [{"check": "failover", "params": {"within": 5.0}}],
    },
    "target": {
        "name": "lab",
        "kind": "lab",
        "endpoint": "http://127.0.0.1:18000/v1",
        "expected_replicas": 3,
        "model": "lab-chat",
        "sla": {"ttft": {"quantile": 0.99, "value_s": 1.0}, "errors": 0.01},
        "lab": {"engine": "emulator", "port_base": 18000},
    },
    "phases": {"warmup_s": 10.0, "baseline_s": 60.0, "fault_s": 60.0, "recovery_s": 93.0, "recovery_from": "injection"},
    "defect": None,
}


def changed(path: str, value: Any) -> Json:
    """Return the plan with one value replaced."""
    plan = copy.deepcopy(PLAN)
    *way, last = path.split(".")
    place: Any = plan
    for name in way:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[last] = value
    return plan


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("run", "bbbb2222"),
        ("seed", 2),
        ("hash", "y"),
        ("experiment.title", "other words"),
        ("experiment.faults.0.warning", "other words"),
        ("experiment.checks", []),
        ("target.endpoint", "http://127.0.0.1:19000/v1"),
        ("target.lab.port_base", 19000),
        ("phases.recovery_s", 60.0),
        ("experiment.load.client.header", None),
        ("experiment.load.client.timeout", 30),
    ],
)
def test_what_does_not_change_what_is_measured_leaves_runs_comparable(path: str, value: Any) -> None:
    """Seed, words, bounds, ports and a parameter that says nothing do not count."""
    other = changed(path, value)
    assert differences(PLAN, other) == []
    assert comparable.key(PLAN) == comparable.key(other)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("experiment.name", "pod-kill", "drill: gpu-reset, pod-kill"),
        ("experiment.faults.0.params.victims", 2, "faults[0].params.victims: 1, 2"),
        ("experiment.faults.0.params.how", "xid", "faults[0].params.how: crash, xid"),
        ("experiment.faults.0.route", True, "faults[0].route: none, true"),
        ("experiment.load.arrivals.rate", 30.0, "load.arrivals.rate: 20.0, 30.0"),
        ("experiment.load.client.timeout", 10.0, "load.client.timeout: 30.0, 10.0"),
        ("target.name", "staging", "target.name: lab, staging"),
        ("target.expected_replicas", 4, "target.expected_replicas: 3, 4"),
        ("target.lab.engine", "vllm", "target.engine: emulator, vllm"),
        ("target.model", "other", "model: lab-chat, other"),
        ("target.sla.ttft.value_s", 2.0, "sla.ttft.value_s: 1.0, 2.0"),
        ("phases.fault_s", 30.0, "phases.fault_s: 60.0, 30.0"),
        ("defect", "no-retries", "defect: none, no-retries"),
    ],
)
def test_what_changes_what_is_measured_is_named(path: str, value: Any, said: str) -> None:
    """The one part of the plan that differs is said with both values."""
    assert differences(PLAN, changed(path, value)) == [said]


@pytest.mark.parametrize(
    "damaged", [{}, {"experiment": 3, "target": [], "phases": None}, {"experiment": {"faults": "x"}}]
)
def test_a_damaged_plan_is_not_comparable_and_breaks_nothing(damaged: Json) -> None:
    """Whatever is missing differs."""
    assert differences(PLAN, damaged)
    assert differences(damaged, damaged) == []


def latency(value: float | str | None, low: float | None, high: float | None, n: int = 1200) -> Json:
    """Return a row of verdict.json."""
    params = {"metric": "ttft", "quantile": 0.99, "cohort": "fault", "max": "sla"}
    return {"check": "latency", "params": params, "value": value, "interval": [low, high], "n": n}


def share(low: float, high: float, check: str = "availability") -> Json:
    """Return a row of verdict.json."""
    return {
        "check": check,
        "params": {"cohort": "fault"},
        "value": (low + high) / 2,
        "interval": [low, high],
        "n": 1200,
    }


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (latency(0.11, 0.09, 0.15), latency(0.2, 0.14, 0.3), Change.CHANCE),
        (latency(0.11, 0.09, 0.15), latency(0.2, 0.15, 0.3), Change.CHANCE),
        (latency(0.11, 0.09, 0.15), latency(0.2, 0.16, 0.3), Change.WORSE),
        (latency(0.2, 0.16, 0.3), latency(0.11, 0.09, 0.15), Change.BETTER),
        (latency(0.11, 0.09, 0.15), latency("inf", 2.0, None), Change.WORSE),
        (latency(0.11, 0.09, 0.15), latency("inf", None, None), Change.WORSE),
        (latency("inf", None, None), latency("inf", None, None), Change.CHANCE),
        (latency(0.11, 0.09, 0.15), latency(None, None, None, n=20), Change.NO_INTERVAL),
        (latency(0.11, 0.09, 0.15), latency("inf", None, None, n=0), Change.CHANCE),
        (share(0.99, 1.0), share(0.9, 0.95), Change.WORSE),
        (share(0.9, 0.95), share(0.99, 1.0), Change.BETTER),
        (share(0.9, 0.99), share(0.99, 1.0), Change.CHANCE),
        (share(0.1, 0.2, "automation"), share(0.5, 0.6, "automation"), Change.NO_INTERVAL),
        (share(0.1, 0.2), {"check": "availability", "interval": "damaged"}, Change.NO_INTERVAL),
    ],
)
def test_a_change_is_beyond_chance_only_where_intervals_do_not_overlap(before: Json, after: Json, what: Change) -> None:
    """Better or worse by what the check measures; intervals that touch overlap."""
    assert change(before, after) is what


def test_all_requests_failed_is_an_infinite_low_end_only_where_so_many_have_one() -> None:
    """Of five requests a median's interval is open below, whatever they did."""
    few = latency("inf", None, None, n=5)
    few["params"]["quantile"] = 0.5
    assert comparable.interval(latency("inf", None, None)) == (math.inf, math.inf)
    assert comparable.interval(few) == (None, math.inf)


def test_open_ends_may_be_anywhere() -> None:
    """What is not known is no difference."""
    assert not beyond_chance((None, 1.0), (None, 2.0))
    assert not beyond_chance(None, (1.0, 2.0))
    assert beyond_chance((None, 1.0), (2.0, None))


def test_rows_stand_beside_each_other_by_what_they_measure() -> None:
    """A tighter bound is the same measurement, another quantile is not."""
    tight, other = latency(0.1, 0.1, 0.1), latency(0.1, 0.1, 0.1)
    tight["params"]["max"] = 0.5
    other["params"]["quantile"] = 0.5
    assert comparable.row_key(tight) == comparable.row_key(latency(0.2, 0.1, 0.3))
    assert comparable.row_key(other) != comparable.row_key(tight)
