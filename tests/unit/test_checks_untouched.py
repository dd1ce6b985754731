from pathlib import Path

import pytest

from drills.model import Verdict
from tests.unit import runs
from tests.unit.runs import END, FAULT, HIT, judge


def test_pass(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, "untouched")
    assert (row.verdict, row.value, row.n) == (Verdict.PASS, 0, 2)
    assert row.detail["bystanders"] == ["replica-0", "replica-2"]


@pytest.mark.parametrize("change", ["gone", "started"])
def test_fail_when_a_bystander_restarts(tmp_path: Path, change: str) -> None:
    run = runs.healthy()
    run.tell(HIT + 9, "replica", replica="replica-2", change=change, uid="x", pid=1, start=1)
    row = judge(run, tmp_path, "untouched")
    assert (row.verdict, row.value, row.reason) == (Verdict.FAIL, 1, "replica-2 was restarted or changed; none may be")


def test_fail_when_the_proof_saw_another_process(tmp_path: Path) -> None:
    run = runs.healthy()
    run.of("proof.off")[0]["bystanders_ok"] = False
    assert judge(run, tmp_path, "untouched").verdict is Verdict.FAIL


def test_not_ready_for_a_while_is_said_and_no_restart(tmp_path: Path) -> None:
    run = runs.healthy()
    run.tell(HIT + 9, "replica", replica="replica-2", change="notready", uid="x", pid=1, start=1)
    row = judge(run, tmp_path, "untouched")
    assert (row.verdict, row.detail["not_ready_for_a_while"]) == (Verdict.PASS, ["replica-2"])


@pytest.mark.parametrize("mono", [FAULT - 9, END + 9])
def test_what_happened_before_or_after_the_run_is_not_the_faults(tmp_path: Path, mono: float) -> None:
    run = runs.healthy()
    run.tell(mono, "replica", replica="replica-2", change="gone", uid="x", pid=1, start=1)
    assert judge(run, tmp_path, "untouched").verdict is Verdict.PASS


def test_inconclusive_when_nobody_looked(tmp_path: Path) -> None:
    run = runs.healthy()
    for data in [*run.of("proof.on"), *run.of("proof.off")]:
        data["bystanders_ok"] = None
    assert judge(run, tmp_path, "untouched").verdict is Verdict.INCONCLUSIVE


def test_inconclusive_when_there_is_nobody_else(tmp_path: Path) -> None:
    run = runs.healthy()
    run.of("inject.hit")[0]["victims"] = ["replica-0", runs.VICTIM, "replica-2"]
    assert judge(run, tmp_path, "untouched").verdict is Verdict.INCONCLUSIVE


def test_inconclusive_without_an_injection(tmp_path: Path) -> None:
    assert judge(runs.quiet(), tmp_path, "untouched").verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("scaled", "verdict"), [(True, Verdict.PASS), (False, Verdict.FAIL)])
def test_a_replica_that_an_autoscaler_added_was_not_restarted(tmp_path: Path, scaled: bool, verdict: Verdict) -> None:
    run = runs.healthy()
    if scaled:
        run.tell(HIT + 4, "scaled", subject="Deployment vllm", what="replicas", was=3, now=4, by="autoscaler")
    run.tell(HIT + 5, "replica", replica="replica-3", change="started", uid="x", pid=1, start=1)
    row = judge(run, tmp_path / "new", "untouched")
    assert (row.verdict, row.detail["came_by_scaling"]) == (verdict, ["replica-3"] if scaled else [])
    run.tell(HIT + 6, "replica", replica="replica-2", change="gone", uid="y", pid=1, start=1)
    assert judge(run, tmp_path / "old", "untouched").verdict is Verdict.FAIL  # of whom it was there before
