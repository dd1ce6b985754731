from pathlib import Path

import pytest

from drills.checks import CHECKS
from drills.model import Verdict
from drills.params import FROM_FILE
from tests.unit import runs
from tests.unit.runs import HIT, RECOVERY, judge


def test_pass_counts_degraded_answers_as_answers(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.between(HIT, RECOVERY)[:400]:
        r["outcome"] = "degraded"
    row = judge(run, tmp_path, "availability")
    assert (row.verdict, row.value, row.bound, row.n) == (Verdict.PASS, 1.0, 0.99, 1199)
    assert row.interval is not None
    assert row.interval[0] is not None
    assert 0.996 < row.interval[0] < 0.998
    assert row.detail["outcomes"] == {"degraded": 400, "ok": 799}


@pytest.mark.parametrize("outcome", ["error", "truncated", "hung", "shed", "cancelled", "no such word"])
def test_fail_whatever_the_reason(tmp_path: Path, outcome: str) -> None:
    run = runs.healthy()
    run.fail(run.between(HIT, RECOVERY)[:20], outcome)
    row = judge(run, tmp_path, "availability")
    assert (row.verdict, row.value) == (Verdict.FAIL, round(1179 / 1199, 6))


def test_inconclusive_between(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.between(HIT, RECOVERY)[:10])
    assert judge(run, tmp_path, "availability").verdict is Verdict.INCONCLUSIVE


def test_the_cohort_and_the_bound_are_those_asked_for(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.between(HIT, RECOVERY)[:100])
    assert judge(run, tmp_path, "availability", cohort="baseline").verdict is Verdict.PASS
    assert judge(run, tmp_path, "availability", min=0.9).verdict is Verdict.PASS
    assert judge(run, tmp_path, "availability", min=0.95).verdict is Verdict.FAIL


def test_no_arrivals_are_inconclusive(tmp_path: Path) -> None:
    assert judge(runs.quiet(), tmp_path, "availability").verdict is Verdict.INCONCLUSIVE


def test_a_bound_that_no_sample_can_show_is_refused_at_plan_time() -> None:
    check = CHECKS["availability"]
    whole = check.Params.model_validate({"min": "100%"}, context=FROM_FILE)
    assert check.plan_errors(whole, {}) == [
        "min: 100% can be refuted by a sample but never shown; write for example 99%"
    ]
    assert check.plan_errors(check.Params.model_validate({"min": "99%"}, context=FROM_FILE), {}) == []


def test_too_few_arrivals_are_said_to_be_too_few(tmp_path: Path) -> None:
    """All of them were answered: without the number nobody could tell why that is no pass."""
    run = runs.healthy(rate=4.0)
    found = judge(run, tmp_path, "availability")
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason.endswith("arrivals were not answered; 1 % allowed; too few to show it: 299 are needed at least")


@pytest.mark.parametrize(("expected", "said"), [(300.0, True), (400.0, False)])
def test_a_plan_says_that_there_may_be_too_few(expected: float, said: bool) -> None:
    plan = {"target": {"sla": {"errors": 0.01}}, "expected_requests": {"fault": expected}}
    check = CHECKS["availability"]
    notes = check.plan_notes(check.Params.model_validate({}, context=FROM_FILE), plan)
    assert bool(notes) is said
