from pathlib import Path
from typing import Any

import pytest

from drills.model import Verdict
from tests.unit import runs
from tests.unit.runs import END, FAULT, HIT, READY, Run, judge


def changed(run: Run, change: str) -> dict[str, Any]:
    """The data of the replica event of that kind."""
    return next(data for data in run.of("replica") if data["change"] == change)


def test_pass_when_ready_and_answering(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, "replica_restart", within=60.0)
    assert (row.verdict, row.n) == (Verdict.PASS, 1)
    assert row.value == pytest.approx(READY + 0.4 - HIT)
    detail = row.detail[runs.VICTIM]
    assert (detail["by"], detail["started_s"], detail["pid"]) == ("supervisor", 1.0, 200)
    assert len(row.events) == 3


def test_a_new_uid_is_a_new_incarnation_too(tmp_path: Path) -> None:
    run = runs.healthy()
    for change in ("started", "ready"):
        changed(run, change)["uid"] = "u2"
    run.of("completion")[0]["served_by_uid"] = "u2"
    assert judge(run, tmp_path, "replica_restart", within=60.0).verdict is Verdict.PASS


def test_fail_when_late(tmp_path: Path) -> None:
    assert judge(runs.healthy(), tmp_path, "replica_restart", within=10.0).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("started", "no new incarnation was seen"),
        ("ready", "never became ready"),
        ("completion", "no completion straight from the new incarnation"),
    ],
)
def test_fail_at_each_step_that_never_came(tmp_path: Path, missing: str, reason: str) -> None:
    run = runs.healthy()
    run.drop("completion" if missing == "completion" else "replica", lambda d: d.get("change", missing) == missing)
    row = judge(run, tmp_path, "replica_restart", within=60.0)
    assert (row.verdict, row.value) == (Verdict.FAIL, None)
    assert reason in row.reason


@pytest.mark.parametrize(
    "of_another",
    [{"ok": False}, {"served_by_uid": "u9"}, {"served_by_uid": None}, {"pid": 100}, {"replica": "replica-0"}],
)
def test_a_completion_counts_only_if_it_is_good_and_from_the_new_incarnation(
    tmp_path: Path, of_another: dict[str, Any]
) -> None:
    run = runs.healthy()
    run.of("completion")[0].update(of_another)
    assert judge(run, tmp_path, "replica_restart", within=60.0).verdict is Verdict.FAIL


def test_the_old_incarnation_does_not_count_as_a_new_one(tmp_path: Path) -> None:
    run = runs.healthy()
    for data in run.of("replica"):
        data |= {"pid": 100, "start": 5}
    run.of("completion")[0]["pid"] = 100
    assert judge(run, tmp_path, "replica_restart", within=60.0).verdict is Verdict.FAIL


def test_one_that_went_again_has_not_come_back(tmp_path: Path) -> None:
    run = runs.healthy()
    run.tell(READY + 5, "replica", **(changed(run, "gone") | {"pid": 200, "start": 9, "at_mono": READY + 5}))
    row = judge(run, tmp_path, "replica_restart", within=60.0)
    assert (row.verdict, "went again" in row.reason) == (Verdict.FAIL, True)


def test_taken_down_after_the_run_is_no_crash(tmp_path: Path) -> None:
    run = runs.healthy()
    run.tell(END + 5, "replica", **(changed(run, "gone") | {"pid": 200, "start": 9, "at_mono": END + 5}))
    assert judge(run, tmp_path, "replica_restart", within=60.0).verdict is Verdict.PASS


def test_every_victim_has_to_come_back(tmp_path: Path) -> None:
    run = runs.healthy()
    run.of("inject.hit")[0]["victims"] = [runs.VICTIM, "replica-2"]
    row = judge(run, tmp_path, "replica_restart", within=60.0)
    assert (row.verdict, row.value, row.n) == (Verdict.FAIL, None, 2)
    assert row.reason.startswith("replica-2: no new incarnation")


def test_restarted_by_the_drill_proves_nothing(tmp_path: Path) -> None:
    run = runs.healthy()
    changed(run, "started")["by"] = "drill"
    assert judge(run, tmp_path, "replica_restart", within=60.0).verdict is Verdict.INCONCLUSIVE


def test_by_whom(tmp_path: Path) -> None:
    run = runs.healthy()
    assert judge(run, tmp_path, "replica_restart", within=60.0, by="supervisor").verdict is Verdict.PASS
    assert judge(run, tmp_path, "replica_restart", within=60.0, by="controller").verdict is Verdict.FAIL
    changed(run, "started")["by"] = None
    assert judge(run, tmp_path, "replica_restart", within=60.0).verdict is Verdict.PASS
    assert judge(run, tmp_path, "replica_restart", within=60.0, by="controller").verdict is Verdict.INCONCLUSIVE


def test_inconclusive_when_not_watched(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("replica")
    run.drop("completion")
    assert judge(run, tmp_path, "replica_restart", within=60.0).verdict is Verdict.INCONCLUSIVE
    assert judge(runs.quiet(), tmp_path, "replica_restart", within=60.0).verdict is Verdict.INCONCLUSIVE


def test_inconclusive_when_the_run_ended_before_the_bound(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("completion")
    run.drop("load.stopping")
    run.tell(FAULT + 30, "load.stopping")
    row = judge(run, tmp_path, "replica_restart", within=60.0)
    assert (row.verdict, "watched for" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_a_late_one_says_how_late(tmp_path: Path) -> None:
    row = runs.judge(runs.healthy(), tmp_path, "replica_restart", within=15.0)
    assert row.reason == "replica-1: back 20.4 s after the injection, by supervisor; 15 s allowed"
