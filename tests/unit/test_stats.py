"""The exact tests against published tables, against scipy's own distribution, and by their own laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from drills import stats
from drills.model import Verdict

P99_TABLE = [
    # n, passes up to this many violations (None: never), fails from this many on
    (100, None, 4),
    (298, None, 7),
    (299, 0, 7),
    (300, 0, 7),
    (500, 1, 10),
    (1000, 4, 16),
    (2000, 12, 29),
    (5000, 38, 63),
]


@pytest.mark.parametrize(("n", "pass_up_to", "fail_from"), P99_TABLE)
def test_p99_table(n: int, pass_up_to: int | None, fail_from: int) -> None:
    first_not_passing = 0 if pass_up_to is None else pass_up_to + 1
    if pass_up_to is not None:
        assert stats.judge_share(pass_up_to, n, 0.01) is Verdict.PASS
    assert stats.judge_share(first_not_passing, n, 0.01) is Verdict.INCONCLUSIVE
    assert stats.judge_share(fail_from - 1, n, 0.01) is Verdict.INCONCLUSIVE
    assert stats.judge_share(fail_from, n, 0.01) is Verdict.FAIL


@pytest.mark.parametrize(("quantile", "least"), [(0.95, 59), (0.99, 299), (0.999, 2995)])
def test_fewest_requests_for_a_claim(quantile: float, least: int) -> None:
    assert stats.claim_minimum(quantile) == least
    assert stats.judge_share(0, least, 1 - quantile) is Verdict.PASS
    assert stats.judge_share(0, least - 1, 1 - quantile) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("k", "n", "q"), [(0, 0, 0.01), (-1, 10, 0.01), (11, 10, 0.01), (0, 500, math.nan)])
def test_nonsense_is_never_a_pass(k: int, n: int, q: float) -> None:
    assert stats.judge_share(k, n, q) is Verdict.INCONCLUSIVE


@given(st.integers(1, 3000), st.data())
def test_bounds_are_the_exact_binomial_tails(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    low, high = stats.lower_bound(k, n), stats.upper_bound(k, n)
    assert low <= k / n <= high
    if k < n:
        assert scipy_stats.binom.cdf(k, n, high) == pytest.approx(0.05, abs=1e-6)
    if k > 0:
        assert scipy_stats.binom.sf(k - 1, n, low) == pytest.approx(0.05, abs=1e-6)


@given(st.integers(1, 2000), st.floats(0.001, 0.999), st.data())
def test_one_more_violation_never_improves_the_verdict(n: int, q: float, data: st.DataObject) -> None:
    order = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL]
    k = data.draw(st.integers(0, n - 1))
    assert order.index(stats.judge_share(k, n, q)) <= order.index(stats.judge_share(k + 1, n, q))


@pytest.mark.parametrize(
    ("quantile", "n", "rank"), [(0.99, 100, 99), (0.99, 101, 100), (0.07, 100, 7), (0.5, 1, 1), (0.999, 10, 10)]
)
def test_nearest_rank(quantile: float, n: int, rank: int) -> None:
    assert stats.nearest_rank(list(range(1, n + 1)), quantile) == rank


def test_failures_are_infinitely_slow() -> None:
    values = [0.1] * 98 + [math.inf] * 2
    assert stats.nearest_rank(values, 0.98) == 0.1
    assert stats.nearest_rank(values, 0.99) == math.inf
    assert stats.nearest_rank([], 0.99) is None


def test_the_interval_is_open_above_while_the_sample_cannot_bound_it() -> None:
    # The largest of 300 values is above p99 with 95.1 %, but not with the 97.5 % a two-sided interval needs.
    assert stats.quantile_interval(list(range(300)), 0.99)[1] is None
    assert stats.quantile_interval(list(range(400)), 0.99)[1] is not None
    assert stats.quantile_interval([], 0.99) == (None, None)


@given(st.integers(1, 1500), st.floats(0.01, 0.999))
def test_the_interval_has_its_coverage_and_no_spare_rank(n: int, quantile: float) -> None:
    low, high = stats.quantile_interval(list(range(1, n + 1)), quantile)
    cdf = scipy_stats.binom.cdf
    if low is not None:
        assert cdf(low - 1, n, quantile) <= 0.025
        assert cdf(low, n, quantile) > 0.025
    if high is not None:
        assert cdf(high - 1, n, quantile) >= 0.975
        assert high == 1 or cdf(high - 2, n, quantile) < 0.975
    else:
        assert cdf(n - 1, n, quantile) < 0.975


@given(n=st.integers(1, 400), q=st.floats(0.0, 0.5), data=st.data())
def test_what_was_counted_within_the_share_passes_and_only_what_is_surely_over_it_fails(
    n: int, q: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, n))
    verdict = stats.judge_counted(k, n, q)
    assert (verdict is Verdict.PASS) == (k <= q * n + 1e-9)
    assert (verdict is Verdict.FAIL) == (k > q * n + 1e-9 and stats.lower_bound(k, n) > q)
    assert stats.judge_counted(0, 0, q) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("k", "mean"), [(0, 5.0), (1, 5.0), (12, 5.0), (3, 0.0), (20.7, 20.0)])
def test_the_chance_of_a_count_is_that_of_poisson(k: float, mean: float) -> None:
    below = sum(math.exp(-mean) * mean**i / math.factorial(i) for i in range(math.floor(k)))
    assert stats.chance_of_more(k, mean) == pytest.approx(1.0 - below, abs=1e-12)
