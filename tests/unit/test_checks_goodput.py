from collections.abc import Callable
from pathlib import Path

import pytest

from drills.checks import CHECKS
from drills.model import Verdict
from drills.params import FROM_FILE
from tests.unit import runs
from tests.unit.retries import degrade, in_fault, late
from tests.unit.runs import HIT, RECOVERY, judge


def test_pass(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, "goodput")
    assert (row.verdict, row.value, row.bound, row.n) == (Verdict.PASS, 1.0, 0.96, 1199)


def _gap(run: runs.Run, count: int) -> None:
    for r in run.between(HIT, RECOVERY)[:count]:
        r["chunks"][-1] += 2500.0


def _slow_end(run: runs.Run, count: int) -> None:
    for r in run.between(HIT, RECOVERY)[:count]:
        r["end"] = r["last_token"] = r["intended"] + 6.1


def _repeated(run: runs.Run, count: int) -> None:
    for r in run.between(HIT, RECOVERY)[:count]:
        r["dup"] = True


SHORT: dict[str, Callable[[runs.Run, int], None]] = {
    "late_max_gap": _gap,
    "late_e2e": _slow_end,
    "late_ttft": lambda run, count: late(in_fault(run)[:count], 1.2),
    "repeated": _repeated,
    "degraded": lambda run, count: degrade(in_fault(run)[:count]),
    "not_in_full": lambda run, count: run.fail(in_fault(run)[:count], "truncated", None),
}


@pytest.mark.parametrize("name", SHORT)
def test_fail_whatever_falls_short(tmp_path: Path, name: str) -> None:
    run = runs.healthy()
    SHORT[name](run, 80)
    row = judge(run, tmp_path, "goodput")
    assert (row.verdict, row.value, row.detail[name]) == (Verdict.FAIL, round(1119 / 1199, 6), 80)
    assert "4 % may" in row.reason


def test_inconclusive_between_and_with_too_few(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(in_fault(run)[:45])
    assert judge(run, tmp_path / "a", "goodput").verdict is Verdict.INCONCLUSIVE
    assert judge(run, tmp_path / "a", "goodput", min=0.9).verdict is Verdict.PASS
    assert judge(runs.healthy(1.0), tmp_path / "b", "goodput").verdict is Verdict.INCONCLUSIVE
    assert judge(runs.quiet(), tmp_path / "c", "goodput").verdict is Verdict.INCONCLUSIVE
    assert judge(run, tmp_path / "c", "goodput", cohort="baseline").verdict is Verdict.PASS


def test_a_bound_that_no_sample_can_show_is_refused() -> None:
    check = CHECKS["goodput"]
    whole = check.Params.model_validate({"min": "100%"}, context=FROM_FILE)
    assert "can be refuted by a sample but never shown" in check.plan_errors(whole, {})[0]
    assert check.plan_errors(check.Params(), {}) == []
