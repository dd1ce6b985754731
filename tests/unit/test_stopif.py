"""What real users feel ends a run, and so does not knowing it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills import stopif
from drills.clock import Clock
from drills.model import Json, Target
from drills.probes import promql
from drills.probes.http import ProbeError
from drills.stopif import StopIf

QUERY = "sum(rate(errors_total[1m])) > bool 5"
TARGET = cast("Target", SimpleNamespace(name="t", prometheus="http://127.0.0.1:9"))
NO_PROMETHEUS = cast("Target", SimpleNamespace(name="t", prometheus=None))


class Still(Clock):
    """A clock that is moved by hand."""

    now = 100.0

    def mono(self) -> float:
        return self.now


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | str], None]:
    """Let Prometheus answer that from now on: a value, or why there is none."""

    def answers(value: float | str) -> None:
        def ask(_server: Any, _query: str) -> Json:
            if isinstance(value, str):
                raise ProbeError(value)
            return {"value": value}

        monkeypatch.setattr(promql, "ask", ask)

    return answers


def test_before_the_drill_each_query_must_say_that_all_is_well(answer: Callable[[float | str], None]) -> None:
    answer(0.0)
    assert stopif.refusals([QUERY], TARGET) == []
    answer(1.0)
    assert "is 1 before the drill has begun" in stopif.refusals([QUERY], TARGET)[0]


def test_a_query_that_yields_nothing_is_refused_with_how_to_write_it(answer: Callable[[float | str], None]) -> None:
    """A filter is silent while all is well, and so is a metric that is gone."""
    answer("no series, or none with a sample of the last minute")
    [found] = stopif.refusals(
        [
            QUERY,
        ],
        TARGET,
    )
    assert QUERY in found
    assert "`... > bool 0.05`" in found


def test_without_prometheus_there_is_nobody_to_ask() -> None:
    assert stopif.refusals([QUERY], NO_PROMETHEUS) == ["limits.stop_if: there is no Prometheus to ask"]
    assert stopif.refusals([], NO_PROMETHEUS) == []


def test_a_value_ends_the_run_and_zero_does_not(answer: Callable[[float | str], None]) -> None:
    guard = StopIf([QUERY], TARGET, Still())
    [job] = guard.jobs()
    answer(0.0)
    job.look()
    assert guard.tripped() is None
    answer(1.0)
    job.look()
    assert guard.tripped() == {"guard": "stop_if", "value": 1.0, "bound": 0, "query": QUERY}


def test_one_look_that_fails_is_borne_and_silence_is_not(answer: Callable[[float | str], None]) -> None:
    clock = Still()
    guard = StopIf([QUERY], TARGET, clock)
    clock.now = 500.0  # the time from the plan to the load does not count
    [job] = guard.jobs()
    answer("timed out")
    with pytest.raises(ProbeError):
        job.look()
    assert guard.tripped() is None
    clock.now += stopif.BLIND_S + 0.1
    tripped = guard.tripped()
    assert tripped is not None
    assert tripped["value"] == "not answered for 10 s (timed out)"
    answer(0.0)
    job.look()
    assert guard.tripped() is None


def test_a_probe_that_hangs_is_a_silence_too() -> None:
    clock = Still()
    guard = StopIf([QUERY], TARGET, clock)
    guard.jobs()
    clock.now += stopif.BLIND_S + 0.1
    assert "no answer" in str(guard.tripped())
