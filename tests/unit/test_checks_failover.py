from pathlib import Path
from typing import Any

import pytest

from drills.model import Verdict
from tests.unit import runs
from tests.unit.runs import END, FAULT, HIT, Run, attempt, judge


def on_victim(run: Run, begin: float, end: float) -> list[dict[str, Any]]:
    """Arrivals of that time that have an attempt on the victim."""
    hit = {a["id"] for a in run.ledger if a["replica"] == runs.VICTIM}
    return [r for r in run.between(begin, end) if f"{runs.RUN}-{r['arrival']}-0" in hit]


def without_attempt(run: Run, records: list[dict[str, Any]]) -> None:
    gone = {f"{runs.RUN}-{r['arrival']}-0" for r in records}
    run.ledger = [a for a in run.ledger if a["id"] not in gone]


def test_zero_when_nobody_was_hurt(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, "failover", within=5.0)
    assert (row.verdict, row.value, row.n) == (Verdict.PASS, 0.0, 1999)
    assert row.detail["split"] == {
        "detect_s": 1.27, "reroute_s": 0.0, "reschedule_s": 1.0, "ready_s": 19.97, "first_completion_s": 20.37,
        "in_band_s": 0.0,
    }  # fmt: skip


def test_counts_to_the_last_arrival_hurt_by_the_victim(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(hurt := on_victim(run, HIT, HIT + 5))
    row = judge(run, tmp_path, "failover", within=5.0)
    assert row.verdict is Verdict.PASS
    assert row.value == pytest.approx(hurt[-1]["intended"] - HIT)
    assert row.detail["last_arrival"] == hurt[-1]["arrival"]
    assert judge(run, tmp_path, "failover", within=0.5).verdict is Verdict.FAIL


def test_fail_when_arrivals_never_reach_a_replica(tmp_path: Path) -> None:
    run = runs.healthy()
    lost = run.between(HIT + 6, HIT + 7)
    run.fail(lost)
    without_attempt(run, lost)
    row = judge(run, tmp_path, "failover", within=5.0)
    assert (row.verdict, row.detail["affected"]) == (Verdict.FAIL, 20)


def test_fail_when_the_first_attempt_comes_later_than_the_sla(tmp_path: Path) -> None:
    run = runs.healthy()
    slow = run.between(HIT + 6, HIT + 7)
    without_attempt(run, slow)
    for r in slow:
        r["first_token"] = r["intended"] + 1.5
        run.ledger.append(attempt(r["arrival"], r["intended"] + 1.2, "replica-0"))
    assert judge(run, tmp_path, "failover", within=5.0).verdict is Verdict.FAIL


def test_a_degraded_answer_did_not_fail_over(tmp_path: Path) -> None:
    """Good enough for availability, yet the traffic did not move to another replica."""
    run = runs.healthy()
    hurt = on_victim(run, HIT, HIT + 5)
    for r in hurt:
        r["outcome"] = "degraded"
    row = judge(run, tmp_path, "failover", within=0.1)
    assert (row.verdict, row.detail["affected"]) == (Verdict.FAIL, len(hurt))
    assert row.value == pytest.approx(hurt[-1]["intended"] - HIT)
    assert judge(run, tmp_path, "availability").verdict is Verdict.PASS


def test_an_attempt_that_only_the_smaller_model_saw_was_lost_on_its_way_to_a_primary(tmp_path: Path) -> None:
    """A cut link lies in front of the victim's ledger; the fallback's attempt must not hide that."""
    run = runs.healthy()
    hurt = run.between(HIT + 2, HIT + 3)
    without_attempt(run, hurt)
    for r in hurt:
        r["outcome"] = "degraded"
        run.ledger.append({**attempt(r["arrival"], r["intended"] + 0.4, "small-0"), "role": "fallback"})
    row = judge(run, tmp_path, "failover", within=2.5)
    assert (row.verdict, row.detail["affected"]) == (Verdict.FAIL, len(hurt))


def test_violations_elsewhere_are_another_story(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail([r for r in run.between(HIT + 6, HIT + 30) if r not in on_victim(run, HIT, END)])
    row = judge(run, tmp_path, "failover", within=5.0)
    assert (row.verdict, row.value) == (Verdict.PASS, 0.0)


def test_without_a_ledger_every_violation_counts_and_that_is_said(tmp_path: Path) -> None:
    run = runs.healthy()
    run.has_ledger = False
    run.drop("collected")
    run.fail(run.between(HIT + 6, HIT + 7))
    row = judge(run, tmp_path, "failover", within=5.0)
    assert (row.verdict, row.detail["ledger"]) == (Verdict.FAIL, "none: every violation counts")


def test_inconclusive_without_an_injection(tmp_path: Path) -> None:
    assert judge(runs.quiet(), tmp_path, "failover", within=5.0).verdict is Verdict.INCONCLUSIVE


def test_inconclusive_when_the_victim_was_idle(tmp_path: Path) -> None:
    run = runs.healthy()
    run.ledger = [a for a in run.ledger if a["replica"] != runs.VICTIM]
    row = judge(run, tmp_path, "failover", within=5.0)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "no traffic had to move" in row.reason


def test_inconclusive_when_the_run_ended_before_the_bound(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("load.stopping")
    run.tell(FAULT + 2, "load.stopping")
    run.requests = run.between(runs.START, FAULT + 2)
    assert judge(run, tmp_path, "failover", within=5.0).verdict is Verdict.INCONCLUSIVE


def test_inconclusive_without_later_arrivals(tmp_path: Path) -> None:
    run = runs.healthy()
    run.requests = run.between(runs.START, FAULT)
    assert judge(run, tmp_path, "failover", within=5.0).verdict is Verdict.INCONCLUSIVE
