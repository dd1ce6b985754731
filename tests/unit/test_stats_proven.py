"""What the verdict on a p99 promises, held against latencies whose true p99 is known.

A service just over its bound passes in at most 5 % of runs, one just under it fails in at most 5 %, and the interval
that is reported holds the true p99 in 95 % of runs. By exact probabilities where there are some, else by simulation
with three standard errors of room.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from drills import stats
from drills.model import Verdict

RUNS = 2000
SIZES = (300, 1000, 5000)
BOUND_S = 1.0
WRONG, COVERED = 0.05, 0.93
Draw = Callable[[np.random.Generator, Any], Any]


def log_normal(random: np.random.Generator, shape: Any) -> Any:
    """TTFT as queues make it: p50 near 0.25 s, a long tail; true p99 = 1."""
    sigma = 0.6
    return np.exp(sigma * (random.standard_normal(shape) - scipy_stats.norm.ppf(0.99)))


def bimodal(random: np.random.Generator, shape: Any) -> Any:
    """98 % fast, 2 % behind a retry: half of the slow mode lies beyond the true p99 = 1."""
    slow = random.random(shape) < 0.02
    return np.where(slow, random.normal(1.0, 0.1, shape), random.normal(0.05, 0.01, shape))


DISTRIBUTIONS = pytest.mark.parametrize("draw", [log_normal, bimodal])


def most(rate: float, runs: int = RUNS) -> float:
    """Return the most of `runs` in which something of that rate may happen by chance: three standard errors more."""
    return rate + 3 * math.sqrt(rate * (1 - rate) / runs)


def verdicts(draw: Draw, n: int, true_p99_s: float) -> dict[Verdict, float]:
    """Return the share of each verdict over many runs of n requests."""
    random = np.random.default_rng([n, round(1000 * true_p99_s)])
    over = [int((true_p99_s * draw(random, n) > BOUND_S).sum()) for _ in range(RUNS)]
    found = [stats.judge_share(k, n, 0.01) for k in over]
    return {verdict: found.count(verdict) / RUNS for verdict in Verdict}


@pytest.mark.parametrize("n", [299, *SIZES, 20_000])
def test_exactly_at_the_bound_either_error_is_rarer_than_five_per_cent(n: int) -> None:
    """The worst case of both: further over the bound a pass is rarer still, further under it a fail is."""
    by_count = [stats.judge_share(k, n, 0.01) for k in range(n + 1)]
    passes, fails = by_count.count(Verdict.PASS), by_count.index(Verdict.FAIL)
    assert scipy_stats.binom.cdf(passes - 1, n, 0.01) <= WRONG
    assert scipy_stats.binom.sf(fails - 1, n, 0.01) <= WRONG


@DISTRIBUTIONS
@pytest.mark.parametrize("n", SIZES)
def test_a_true_p99_just_over_the_bound_rarely_passes(draw: Draw, n: int) -> None:
    assert verdicts(draw, n, 1.01 * BOUND_S)[Verdict.PASS] <= most(WRONG)


@DISTRIBUTIONS
@pytest.mark.parametrize("n", SIZES)
def test_a_true_p99_just_under_the_bound_rarely_fails(draw: Draw, n: int) -> None:
    assert verdicts(draw, n, 0.99 * BOUND_S)[Verdict.FAIL] <= most(WRONG)


@DISTRIBUTIONS
def test_far_from_the_bound_the_verdict_is_the_right_one(draw: Draw) -> None:
    """Else a judge that never decides would do well above."""
    assert verdicts(draw, 1000, 0.5 * BOUND_S)[Verdict.PASS] > 0.9
    assert verdicts(draw, 1000, 2.0 * BOUND_S)[Verdict.FAIL] > 0.75


@DISTRIBUTIONS
@pytest.mark.parametrize("n", SIZES)
def test_the_reported_interval_holds_the_true_p99(draw: Draw, n: int) -> None:
    random = np.random.default_rng(n)
    held = 0
    for _ in range(RUNS):
        low, high = stats.quantile_interval(np.sort(draw(random, n)).tolist(), 0.99)
        assert low is not None
        assert (high is None) == (n == 300), "open above just where the sample cannot bound it"
        held += low <= 1.0 and (high is None or high >= 1.0)
    assert held / RUNS >= COVERED
