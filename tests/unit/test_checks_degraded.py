from pathlib import Path

import pytest

from drills.checks import CHECKS
from drills.model import Verdict
from drills.params import FROM_FILE
from tests.unit import runs
from tests.unit.retries import OFF, degrade, held, in_fault, late, quiet_service
from tests.unit.runs import HIT, judge

DECLARED = {"fallback_models": ["lab-small"], "cached": {"header": "x-cache", "value": "hit"}}
#: Arrivals that had the fault before them for a second at least, the SLA's bound.
N = 1167


def run_of(rate: float = 20.0) -> runs.Run:
    run = held(quiet_service(rate))
    run.plan["target"]["degradation"] = DECLARED
    return run


def test_pass_when_the_smaller_model_answers_all(tmp_path: Path) -> None:
    run = run_of()
    degrade(in_fault(run)[10:])
    degrade(in_fault(run)[100:110], cached=True)
    row = judge(run, tmp_path, "degraded")
    assert (row.verdict, row.value, row.bound, row.n) == (Verdict.PASS, round((N - 10) / N, 6), 0.9, N)
    assert (row.detail["fallback"], row.detail["cached"], row.detail["opened_s"]) == (N - 20, 10, 0.5)
    assert row.detail["degraded_ttft_p99_s"] == 0.45


def test_fail_when_users_wait_instead(tmp_path: Path) -> None:
    run = run_of()
    late(in_fault(run))
    row = judge(run, tmp_path, "degraded")
    assert (row.verdict, row.value) == (Verdict.FAIL, 0.0)
    assert f"0 of {N} arrivals got a degraded answer within 1 s" in row.reason
    assert "90 % are needed" in row.reason
    assert row.detail["outcomes"] == {"ok": N}


def test_fail_when_the_fallback_is_slow(tmp_path: Path) -> None:
    run = run_of()
    degrade(in_fault(run), ttft_s=1.5)
    row = judge(run, tmp_path, "degraded")
    assert (row.verdict, row.value, row.detail["degraded_late"]) == (Verdict.FAIL, 0.0, N)
    assert f"{N} a later one" in row.reason
    assert judge(run, tmp_path, "degraded", ttft=2.0).verdict is Verdict.PASS


def test_fail_when_it_opens_late(tmp_path: Path) -> None:
    run = run_of()
    degrade(in_fault(run)[40:])
    assert judge(run, tmp_path, "degraded").detail["opened_s"] == 2.0
    row = judge(run, tmp_path, "degraded", within=1.0)
    assert (row.verdict, "1 s allowed" in row.reason) == (Verdict.FAIL, True)


def test_who_comes_right_before_the_fault_goes_off_needs_no_other_answer(tmp_path: Path) -> None:
    run = run_of()
    degrade(in_fault(run, HIT, OFF - 1.1))
    row = judge(run, tmp_path / "a", "degraded", min_share=1.0)
    assert (row.verdict, row.value) == (Verdict.PASS, 1.0)
    run.drop("revert.end")
    run.drop("proof.off")
    assert judge(run, tmp_path / "b", "degraded", min_share=1.0).n == N + 32  # it never went off


@pytest.mark.parametrize("rest", ["error", "hung", "truncated"])
def test_whoever_got_nothing_was_not_degraded(tmp_path: Path, rest: str) -> None:
    run = run_of()
    degrade(in_fault(run)[:600])
    run.fail(in_fault(run)[600:], rest)
    row = judge(run, tmp_path, "degraded")
    assert (row.verdict, row.detail["outcomes"]) == (Verdict.FAIL, {"degraded": 600, rest: N - 600})


def test_of_hit_asks_only_for_those_whom_no_primary_answered_in_time(tmp_path: Path) -> None:
    run = run_of()
    degrade(in_fault(run, HIT + 5, HIT + 7))
    row = judge(run, tmp_path / "a", "degraded", of="hit")
    assert (row.verdict, row.n, row.value, row.detail["opened_s"]) == (Verdict.PASS, 40, 1.0, 0.0)
    assert judge(run, tmp_path / "b", "degraded").verdict is Verdict.FAIL
    late(in_fault(run, HIT + 7, HIT + 8))
    row = judge(run, tmp_path / "c", "degraded", of="hit")
    assert (row.verdict, row.n) == (Verdict.FAIL, 60)
    assert "that no primary answered in time" in row.reason


def test_of_hit_does_not_ask_for_a_stream_that_was_on_its_way_when_the_link_was_cut(tmp_path: Path) -> None:
    run = run_of()
    degrade(in_fault(run, HIT + 0.1, HIT + 2))
    mine = next(r for r in in_fault(run, HIT, HIT + 0.1))
    cut = {"outcome": "hung", "done": False, "finish": None, "tokens": None}
    mine |= cut
    line = next(line for line in run.ledger if line["id"] == mine["attempts"][0]["id"])
    assert judge(run, tmp_path / "a", "degraded", of="hit", min_share=1.0).verdict is not Verdict.PASS
    line["replica"] = runs.VICTIM
    assert judge(run, tmp_path / "b", "degraded", of="hit", min_share=1.0).verdict is Verdict.PASS
    mine |= {"first_token": None, "last_token": None, "chunks": []}  # no token yet: another model could have answered
    assert judge(run, tmp_path / "c", "degraded", of="hit", min_share=1.0).verdict is not Verdict.PASS


def test_inconclusive_when_nobody_needed_it(tmp_path: Path) -> None:
    run = run_of()
    row = judge(run, tmp_path, "degraded", of="hit")
    assert (row.verdict, row.n, row.value) == (Verdict.INCONCLUSIVE, 0, None)
    degrade(in_fault(run)[:4])
    assert judge(run, tmp_path, "degraded", of="hit").verdict is Verdict.INCONCLUSIVE


def test_inconclusive_when_a_few_more_than_allowed_were_left_out(tmp_path: Path) -> None:
    run = run_of()
    degrade(in_fault(run, HIT + 5, HIT + 6))
    late(in_fault(run, HIT + 6, HIT + 6.15))
    row = judge(run, tmp_path, "degraded", of="hit")
    assert (row.verdict, row.n, row.value) == (Verdict.INCONCLUSIVE, 23, round(20 / 23, 6))


def test_not_judged_where_the_target_has_no_degradation(tmp_path: Path) -> None:
    run = run_of()
    run.plan["target"]["degradation"] = {"fallback_models": [], "cached": None}
    assert judge(run, tmp_path, "degraded").verdict is Verdict.NOT_JUDGED


def test_inconclusive_without_an_injection(tmp_path: Path) -> None:
    assert judge(runs.quiet(), tmp_path, "degraded").verdict is Verdict.INCONCLUSIVE


def test_a_plan_must_leave_it_the_time() -> None:
    check = CHECKS["degraded"]
    params = check.Params.model_validate({"within": "90s"}, context=FROM_FILE)
    assert check.plan_errors(params, {"phases": {"fault_s": 60.0}}) == ["within: 90 s is longer than the fault, 60 s"]
    assert check.plan_errors(params, {"phases": {"fault_s": 90.0}}) == []


@pytest.mark.parametrize("params", [{"of": "some"}, {"ttft": 1}, {"within": "soon"}, {"min_share": "-1%"}])
def test_parameters_that_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(params))):
        CHECKS["degraded"].Params.model_validate(params, context=FROM_FILE, strict=True)
