"""When a client repeats itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills.load.plan import RetryPlan
from drills.load.record import Attempt
from drills.load.retry import Budget, delay_s, wanted
from drills.model import Outcome

TWICE = RetryPlan(max=2)
SDK = RetryPlan(max=2, backoff_s=0.5, jitter="sdk")


def failed(error: str | None = "refused", outcome: Outcome = Outcome.ERROR, **more: Any) -> Attempt:
    return Attempt(more.pop("attempt", 0), "r-0-0", 1.0, outcome=outcome, error=error, **more)


@pytest.mark.parametrize("plan", [TWICE, SDK])
def test_failures_before_the_headers_are_repeated(plan: RetryPlan) -> None:
    for error in ("refused", "reset", "timeout", "dns"):
        assert wanted(plan, failed(error), {})
    assert wanted(plan, failed(None, Outcome.HUNG), {})


@pytest.mark.parametrize("plan", [TWICE, SDK])
@pytest.mark.parametrize(
    ("status", "again"),
    [(500, True), (502, True), (503, True), (429, True), (408, True), (409, True), (400, False), (404, False)],
)
def test_statuses_are_repeated_as_the_sdk_does(plan: RetryPlan, status: int, again: bool) -> None:
    error = "http_5xx" if status >= 500 else "http_4xx"
    assert wanted(plan, failed(error, status=status, headers=1.1), {}) is again


def test_never_after_the_first_token() -> None:
    for outcome in (Outcome.TRUNCATED, Outcome.HUNG, Outcome.ERROR):
        assert wanted(TWICE, failed(None, outcome, headers=1.1), {})
        assert not wanted(TWICE, failed(None, outcome, headers=1.1, first_token=1.2), {})


def test_the_sdk_has_handed_the_stream_out_once_the_headers_are_there() -> None:
    assert not wanted(SDK, failed(None, Outcome.TRUNCATED, headers=1.1, status=200), {})
    assert not wanted(SDK, failed("sse_error", headers=1.1, status=200), {})


def test_the_sdk_obeys_x_should_retry() -> None:
    assert wanted(SDK, failed("http_4xx", status=400), {"x-should-retry": "true"})
    assert not wanted(SDK, failed("http_5xx", status=503), {"x-should-retry": "false"})


def test_not_more_often_than_the_plan_says() -> None:
    assert [wanted(TWICE, failed(attempt=n), {}) for n in range(4)] == [True, True, False, False]
    assert not wanted(RetryPlan(max=0), failed(), {})


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.DEGRADED, Outcome.CANCELLED])
def test_what_did_not_fail_is_not_repeated(outcome: Outcome) -> None:
    assert not wanted(TWICE, failed(None, outcome), {})


def test_backoff_doubles_to_its_bound() -> None:
    plan = RetryPlan(max=9, backoff_s=0.25, backoff_max_s=1.0, jitter="none")
    assert [delay_s(plan, n, 0.5, {}) for n in range(4)] == [0.25, 0.5, 1.0, 1.0]


@given(attempt=st.integers(0, 20), draw=st.floats(0, 1, exclude_max=True))
def test_jitter_stays_in_its_range(attempt: int, draw: float) -> None:
    full = RetryPlan(max=9, backoff_s=0.25, backoff_max_s=8.0, jitter="full")
    assert 0.0 <= delay_s(full, attempt, draw, {}) <= min(0.25 * 2**attempt, 8.0)
    base = min(0.5 * 2**attempt, 8.0)
    assert 0.75 * base <= delay_s(SDK, attempt, draw, {}) <= base


def test_the_sdk_honours_retry_after_within_reason() -> None:
    assert delay_s(SDK, 0, 0.0, {"retry-after": "3"}) == 3.0
    for odd in ("61", "-1", "0", "soon", "nan"):
        assert delay_s(SDK, 0, 0.0, {"retry-after": odd}) == 0.5
    assert delay_s(SDK, 0, 0.0, {"retry-after-ms": "1500", "retry-after": "3"}) == 1.5
    noon = {"retry-after": "Mon, 30 Nov 2026 12:00:00 GMT"}
    assert delay_s(SDK, 0, 0.0, noon, lambda: 1796039993.0) == 7.0
    assert delay_s(SDK, 0, 0.0, noon, lambda: 1796040001.0) == 0.5  # over already
    assert delay_s(SDK, 0, 0.0, {"retry-after": "Mon, 99 Foo 2026 99:00:00 GMT"}) == 0.5
    assert delay_s(SDK, 0, 0.0, {"retry-after": "Mon, 30 Nov 999999999999 12:00:00 GMT"}) == 0.5
    assert delay_s(RetryPlan(jitter="none"), 0, 0.0, {"retry-after": "3"}) == 0.25


def test_the_budget_is_a_share_of_the_requests_in_the_window() -> None:
    budget = Budget(0.1, window_s=10.0)
    for n in range(100):
        budget.request(n * 0.05)
    assert sum(budget.take(5.0) for _ in range(50)) == 10
    # At 12.5 the requests before 2.5 are forgotten, the retries of 5.0 are not.
    assert not budget.take(12.5)
    for n in range(100):
        budget.request(15.5 + n * 0.01)
    assert sum(budget.take(16.5) for _ in range(50)) == 10


def test_too_few_requests_leave_no_retry() -> None:
    budget = Budget(0.1)
    budget.request(0.0)
    assert not budget.take(0.1)


def test_without_a_budget_every_retry_is_allowed() -> None:
    budget = Budget(None)
    assert all(budget.take(0.0) for _ in range(1000))
