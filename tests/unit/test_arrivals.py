"""Schedules are drawn ahead, from the seed alone."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills.load.arrivals import first_pauses, offsets
from drills.load.plan import ArrivalPlan


def first(plan: ArrivalPlan, seed: int, count: int) -> list[float]:
    return list(itertools.islice(offsets(plan, seed), count))


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    starts = first(ArrivalPlan("poisson", rate=20.0), seed=7, count=20_000)
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert statistics.fmean(gaps) == pytest.approx(0.05, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(0.05, rel=0.05)
    assert sum(gap > 0.1 for gap in gaps) / len(gaps) == pytest.approx(0.135, abs=0.01)  # e^-2


@given(rate=st.floats(0.1, 1000), seed=st.integers())
def test_the_seed_alone_decides_the_schedule(rate: float, seed: int) -> None:
    plan = ArrivalPlan("poisson", rate=rate)
    starts = first(plan, seed, 50)
    assert starts == first(plan, seed, 50)
    assert starts != first(plan, seed + 1, 50)
    assert all(a < b for a, b in itertools.pairwise([0.0, *starts]))


def test_constant_arrivals_do_not_drift() -> None:
    starts = first(ArrivalPlan("constant", rate=3.0), seed=1, count=3_001)
    assert starts[0] == 0.0
    assert starts[3_000] == 1_000.0


def test_a_closed_loop_has_no_schedule() -> None:
    plan = ArrivalPlan("users", users=4, think_s=2.0)
    assert plan.closed
    with pytest.raises(ValueError, match="closed loop"):
        offsets(plan, seed=1)


def test_users_do_not_begin_in_step() -> None:
    pauses = first_pauses(ArrivalPlan("users", users=100, think_s=2.0), seed=1)
    assert len(pauses) == 100
    assert all(0.0 <= pause <= 2.0 for pause in pauses)
    assert statistics.pstdev(pauses) > 0.4
