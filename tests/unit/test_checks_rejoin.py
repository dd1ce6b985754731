from pathlib import Path

import pytest

from drills.model import Verdict
from tests.unit import runs
from tests.unit.runs import END, READY, VICTIM, Run, judge


def away_until(mono: float) -> Run:
    """The victim is ready as usual, but the router sends it nothing before that time."""
    run = runs.healthy()
    for a in run.ledger:
        if a["replica"] == VICTIM and READY <= a["start"] < mono:
            a["replica"] = "replica-0"
    return run


def test_pass(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, "rejoin", within=20.0)
    assert (row.verdict, row.value) == (Verdict.PASS, 0.0)


def test_counted_from_ready_to_the_first_fair_window(tmp_path: Path) -> None:
    row = judge(away_until(READY + 12), tmp_path, "rejoin", within=20.0)
    assert row.verdict is Verdict.PASS
    assert row.value == pytest.approx(12, abs=0.2)
    assert judge(away_until(READY + 25), tmp_path, "rejoin", within=20.0).verdict is Verdict.FAIL


def test_fail_when_it_never_gets_traffic(tmp_path: Path) -> None:
    row = judge(away_until(END), tmp_path, "rejoin", within=20.0)
    assert (row.verdict, row.value) == (Verdict.FAIL, None)


def test_fail_when_it_gets_a_trickle(tmp_path: Path) -> None:
    run = runs.healthy()
    for n, a in enumerate(a for a in run.ledger if a["replica"] == VICTIM and a["start"] >= READY):
        a["replica"] = VICTIM if n % 4 == 0 else "replica-0"
    assert judge(run, tmp_path, "rejoin", within=20.0).verdict is Verdict.FAIL


def test_fail_when_it_never_became_ready(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("replica", lambda d: d["change"] == "ready")
    assert judge(run, tmp_path, "rejoin", within=20.0).verdict is Verdict.FAIL


def test_requests_that_are_not_the_runs_do_not_count(tmp_path: Path) -> None:
    run = away_until(END)
    run.ledger += [runs.attempt(n, READY + n / 50, VICTIM, id=f"probe-{n}-0") for n in range(2000)]
    assert judge(run, tmp_path, "rejoin", within=20.0).verdict is Verdict.FAIL


def test_inconclusive_without_ledger_or_injection(tmp_path: Path) -> None:
    run = runs.healthy()
    run.has_ledger = False
    assert judge(run, tmp_path / "a", "rejoin", within=20.0).verdict is Verdict.INCONCLUSIVE
    assert judge(runs.quiet(), tmp_path / "b", "rejoin", within=20.0).verdict is Verdict.INCONCLUSIVE


def test_inconclusive_when_the_run_ended_too_early(tmp_path: Path) -> None:
    row = judge(away_until(END), tmp_path, "rejoin", within=100.0)
    assert (row.verdict, "watched for" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_with_too_few_attempts_to_see_a_share(tmp_path: Path) -> None:
    row = judge(runs.healthy(rate=1.0), tmp_path, "rejoin", within=20.0)
    assert (row.verdict, "too few attempts" in row.reason) == (Verdict.INCONCLUSIVE, True)
