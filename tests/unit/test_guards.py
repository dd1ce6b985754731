"""Guards trip on what they are for, and on nothing else."""

from __future__ import annotations

from drills.guards import Guards
from drills.model import Json

ERRORS = {"guard": "error_ratio", "params": {"max": 0.6, "over": 3.0}}
READY = {"guard": "ready_replicas", "params": {"min": 1}}


def beats(*seconds: tuple[int, int]) -> list[Json]:
    return [{"second": {"ended": ended, "bad": bad}} for ended, bad in seconds]


def test_the_ratio_is_over_the_whole_window() -> None:
    guards = Guards([ERRORS])
    assert guards.tripped(beats((10, 0), (10, 10), (10, 10)), 3) == {
        "guard": "error_ratio",
        "value": 0.6667,
        "bound": 0.6,
    }
    assert guards.tripped(beats((10, 10), (10, 0), (10, 10), (10, 0)), 3) is None


def test_a_short_or_idle_window_says_nothing() -> None:
    guards = Guards([ERRORS])
    assert guards.tripped(beats((10, 10), (10, 10)), 3) is None
    assert guards.tripped(beats((2, 2), (2, 2), (2, 2)), 3) is None


def test_too_few_ready_replicas() -> None:
    assert Guards([READY]).tripped([], 0) == {"guard": "ready_replicas", "value": 0, "bound": 1}
    assert Guards([READY]).tripped([], 1) is None
