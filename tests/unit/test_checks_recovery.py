from pathlib import Path

import pytest

from drills.checks import measures
from drills.model import Verdict
from tests.unit import runs
from tests.unit.runs import END, FAULT, HIT, RECOVERY, Run, judge


def broken_until(mono: float) -> Run:
    """Every third arrival fails from the injection until then."""
    run = runs.healthy()
    run.fail([r for r in run.between(HIT, mono) if r["arrival"] % 3 == 1])
    return run


def test_pass_at_the_first_second_after_which_all_windows_are_in_band(tmp_path: Path) -> None:
    row = judge(broken_until(HIT + 12.5), tmp_path, "recovery", within=40.0)
    assert (row.verdict, row.unit) == (Verdict.PASS, "s")
    assert row.value == 13.0  # the window from 12 s still holds 3 violations among 200
    assert row.detail["counted_from"] == "injection"
    assert row.detail["split"]["in_band_s"] == 13.0


def test_a_relapse_counts(tmp_path: Path) -> None:
    run = broken_until(HIT + 2)
    run.fail(run.between(HIT + 30, HIT + 31))
    row = judge(run, tmp_path, "recovery", within=40.0)
    assert (row.verdict, row.value) == (Verdict.PASS, 31.0)


def test_fail_when_late(tmp_path: Path) -> None:
    assert judge(broken_until(HIT + 50), tmp_path, "recovery", within=40.0).verdict is Verdict.FAIL


def test_never_is_more_than_observed_and_not_a_number(tmp_path: Path) -> None:
    row = judge(broken_until(END), tmp_path, "recovery", within=40.0)
    assert (row.verdict, row.value) == (Verdict.FAIL, f"> {END - HIT:.1f}")
    assert row.detail["split"]["in_band_s"] is None
    assert judge(broken_until(END), tmp_path, "recovery", within=95.0).verdict is Verdict.INCONCLUSIVE


def test_a_slow_service_is_not_back(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.between(HIT, END):
        r["first_token"] = r["intended"] + 1.2
    assert judge(run, tmp_path, "recovery", within=40.0).verdict is Verdict.FAIL


def test_a_held_fault_counts_from_proven_off(tmp_path: Path) -> None:
    run = broken_until(RECOVERY + 3)
    run.drop("proof.off")
    run.of("proof.on")[0]["held"] = True
    assert judge(run, tmp_path, "recovery", within=10.0).verdict is Verdict.INCONCLUSIVE
    run.tell(RECOVERY, "proof.off", receipt="r1", held=True, ok=True)
    row = judge(run, tmp_path, "recovery", within=10.0)
    assert (row.verdict, row.detail["counted_from"]) == (Verdict.PASS, "proven off")
    assert row.value == pytest.approx(3.0, abs=1.0)


def test_inconclusive_without_an_injection(tmp_path: Path) -> None:
    assert judge(runs.quiet(), tmp_path, "recovery", within=40.0).verdict is Verdict.INCONCLUSIVE


def test_inconclusive_with_too_few_arrivals(tmp_path: Path) -> None:
    row = judge(runs.healthy(rate=2.0), tmp_path, "recovery", within=40.0)
    assert (row.verdict, "too few arrivals" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_when_arrivals_stopped_coming(tmp_path: Path) -> None:
    run = runs.healthy()
    run.requests = [r for r in run.requests if not HIT + 40 <= r["intended"] < HIT + 60]
    assert judge(run, tmp_path, "recovery", within=40.0).verdict is Verdict.INCONCLUSIVE


def test_inconclusive_without_a_baseline(tmp_path: Path) -> None:
    run = runs.healthy()
    run.requests = run.between(FAULT, END)
    row = judge(run, tmp_path, "recovery", within=40.0)
    assert (row.verdict, "no baseline" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_when_watched_for_less_than_a_window(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("load.stopping")
    run.tell(FAULT + 8, "load.stopping")
    run.requests = run.between(runs.START, FAULT + 8)
    assert judge(run, tmp_path, "recovery", within=40.0).verdict is Verdict.INCONCLUSIVE


def test_what_never_left_its_band_had_not_to_come_back(tmp_path: Path) -> None:
    assert measures.never_out(runs.healthy().evidence(tmp_path / "a"))
    run = runs.healthy()
    run.fail(run.between(HIT + 2, HIT + 8))
    assert not measures.never_out(run.evidence(tmp_path / "b"))
