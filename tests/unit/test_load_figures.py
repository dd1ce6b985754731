"""The figures of the heartbeat."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills.load.figures import Figures, quantile
from drills.load.record import Record
from drills.model import Outcome


def record(ttft: float | None, outcome: Outcome = Outcome.OK, lag: float = 0.001) -> Record:
    first = None if ttft is None else 10.0 + ttft
    error = "reset" if outcome is Outcome.ERROR else None
    return Record(1, 1, 1, 10.0, 0.0, outcome, 8, first_token=first, end=12.0, error=error, lag=lag)


@given(values=st.lists(st.integers(0, 1000), min_size=1), q=st.floats(0.01, 1.0))
def test_quantiles_are_nearest_rank(values: list[int], q: float) -> None:
    ordered = sorted(float(value) for value in values)
    found = quantile(ordered, q)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= q * len(ordered) - 1e-9
    assert sum(value < found for value in ordered) < q * len(ordered) + 1e-9
    assert quantile([], q) is None


def test_failures_are_infinitely_slow_and_infinity_is_null() -> None:
    figures = Figures()
    for n in range(10):
        figures.draw()
        figures.end(record(0.1) if n < 8 else record(None, Outcome.ERROR))
    beat = json.loads(json.dumps(figures.beat(1.0, 0.5), allow_nan=False))
    assert beat["second"] == {"drawn": 10, "ended": 10, "bad": 2, "ttft_p50_ms": 100.0, "ttft_p99_ms": None}
    assert beat["outcomes"] == {"ok": 8, "error": 2}
    assert beat["errors"] == {"reset": 2}


def test_a_failure_after_its_first_token_is_no_fast_answer() -> None:
    figures = Figures()
    figures.end(record(0.1, Outcome.TRUNCATED))
    assert figures.beat(1.0, 0.0)["ttft_p50_ms"] is None


def test_the_window_is_ten_beats_and_counts_are_for_ever() -> None:
    figures = Figures()
    figures.draw()
    figures.end(record(5.0, lag=0.2))
    beats = [figures.beat(float(n), 0.1 * n) for n in range(12)]
    assert [beat["ttft_p99_ms"] for beat in beats] == [5000.0] * 10 + [None] * 2
    assert beats[0]["second"]["ended"] == 1
    assert beats[1]["second"]["ended"] == 0
    assert beats[-1]["ended"] == 1
    final = figures.final(records=1)
    assert final["lag_p99_ms"] == 200.0
    assert final["cpu_max"] == pytest.approx(1.1)
