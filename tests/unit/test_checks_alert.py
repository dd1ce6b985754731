from pathlib import Path
from typing import Any

import pytest

from drills.checks.alert import Alert
from drills.model import CheckResult, Verdict
from tests.unit import runs
from tests.unit.runs import END, FAULT, GPU, HIT, READY, RECOVERY, VICTIM, Run

NAME = "VllmReplicaDown"


def judge(run: Run, folder: Path, **params: Any) -> CheckResult:
    return runs.judge(run, folder, "alert", **({"name": NAME, "within": 20.0} | params))


def test_pass_with_fired_notified_and_resolved(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, resolves_within=40.0)
    assert (row.verdict, row.value, row.bound) == (Verdict.PASS, 7.0, 20.0)
    assert row.detail["notified_s"] == 7.6
    assert row.detail["resolved_s"] == pytest.approx(READY + 1 - HIT)
    assert len(row.events) == 3


def test_a_notification_between_two_looks_proves_that_it_had_fired(tmp_path: Path) -> None:
    run = runs.healthy()
    run.of("notified")[0]["at_mono"] = HIT + 6.8
    row = judge(run, tmp_path)
    assert (row.value, row.detail["notified_s"]) == (6.8, 6.8)


def test_fail_when_late_or_never(tmp_path: Path) -> None:
    assert judge(runs.healthy(), tmp_path, within=5.0).verdict is Verdict.FAIL
    run = runs.healthy()
    run.drop("alert", lambda d: d["state"] != "pending")
    row = judge(run, tmp_path)
    assert (row.verdict, row.value, row.reason) == (Verdict.FAIL, None, "did not fire within 20 s")


def test_fail_when_another_alert_fired(tmp_path: Path) -> None:
    assert judge(runs.healthy(), tmp_path, name="VllmEngineStalled").verdict is Verdict.FAIL


def test_alertmanager_alone_does_not_say_when_it_fired(tmp_path: Path) -> None:
    run = runs.healthy()
    for data in run.of("alert"):
        data["source"] = "alertmanager"
    assert judge(run, tmp_path).verdict is Verdict.FAIL


def test_labels(tmp_path: Path) -> None:
    run = runs.healthy()
    assert judge(run, tmp_path, labels={"severity": "page", "replica": "{victim}"}).verdict is Verdict.PASS
    row = judge(run, tmp_path, labels={"replica": "replica-0"})
    assert (row.verdict, "fired with other labels" in row.reason) == (Verdict.FAIL, True)
    assert judge(run, tmp_path, labels={"UUID": "{gpu}"}).verdict is Verdict.FAIL
    for data in [*run.of("alert"), *run.of("notified")]:
        data["labels"]["UUID"] = GPU
    assert judge(run, tmp_path, labels={"UUID": "{gpu}"}).verdict is Verdict.PASS


def test_notified_is_judged_when_asked_for(tmp_path: Path) -> None:
    run = runs.healthy()
    assert judge(run, tmp_path, notified_within=10.0).verdict is Verdict.PASS
    assert judge(run, tmp_path, notified_within=7.5).verdict is Verdict.FAIL
    run.drop("notified")
    assert judge(run, tmp_path, notified_within=10.0).verdict is Verdict.FAIL
    row = judge(run, tmp_path)
    assert (row.verdict, row.detail["notified_s"]) == (Verdict.PASS, None)


def test_resolving(tmp_path: Path) -> None:
    run = runs.healthy()
    assert judge(run, tmp_path, resolves_within=10.0).verdict is Verdict.FAIL
    run.drop("alert", lambda d: d["state"] == "inactive")
    assert judge(run, tmp_path, resolves_within=40.0).verdict is Verdict.FAIL
    assert judge(run, tmp_path, resolves_within=600.0).verdict is Verdict.INCONCLUSIVE


def test_resolved_means_every_series_of_it(tmp_path: Path) -> None:
    run = runs.healthy()
    run.tell(HIT + 9, "alert", alert=NAME, labels={"replica": "replica-2"}, state="firing", source="prometheus")
    assert judge(run, tmp_path, resolves_within=40.0).verdict is Verdict.FAIL


def test_of_a_held_fault_the_end_counts_from_proven_off(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("proof.off")
    run.drop("alert", lambda d: d["state"] == "inactive")
    run.tell(
        RECOVERY + 9, "alert", alert=NAME, labels=run.of("alert")[0]["labels"], state="inactive", source="prometheus"
    )
    run.of("proof.on")[0]["held"] = True
    assert judge(run, tmp_path, resolves_within=20.0).verdict is Verdict.INCONCLUSIVE
    run.tell(RECOVERY, "proof.off", receipt="r1", held=True, ok=True)
    row = judge(run, tmp_path, resolves_within=20.0)
    assert (row.verdict, row.detail["resolved_s"]) == (Verdict.PASS, 9.0)


@pytest.mark.parametrize("state", ["pending", "firing"])
def test_inconclusive_when_it_was_there_before(tmp_path: Path, state: str) -> None:
    run = runs.healthy()
    labels = run.of("alert")[0]["labels"]
    run.tell(FAULT - 5, "alert", alert=NAME, labels=labels, state=state, source="prometheus")
    row = judge(run, tmp_path)
    assert (row.verdict, row.reason) == (Verdict.INCONCLUSIVE, f"{NAME} was {state} before the injection")
    run.tell(FAULT - 4, "alert", alert=NAME, labels=labels, state="inactive", source="prometheus")
    assert judge(run, tmp_path).verdict is Verdict.PASS


def test_inconclusive_without_prometheus_says_what_to_install(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("alert")
    run.samples = [s for s in run.samples if s["probe"] != "alerts"]
    row = judge(run, tmp_path)
    assert (row.verdict, "Debian: prometheus" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_when_prometheus_went_silent(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("alert")
    for s in run.samples:
        if s["probe"] == "alerts" and HIT + 5 < s["mono"] < HIT + 15:
            s |= {"ok": False, "error": "timed out"}
    row = judge(run, tmp_path)
    assert (row.verdict, "without a gap for 4." in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_when_the_run_ended_before_the_bound_or_nothing_was_injected(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("alert")
    assert judge(run, tmp_path / "a", within=END).verdict is Verdict.INCONCLUSIVE
    assert judge(runs.quiet(), tmp_path / "b").verdict is Verdict.INCONCLUSIVE
    assert VICTIM in run.of("inject.hit")[0]["victims"]


def unwatched(run: Run, begin: float, end: float, **change: Any) -> Run:
    """Let nobody look at Prometheus in that time."""
    dark = [s for s in run.samples if s["probe"] == "alerts" and begin < s["mono"] < end]
    for sample in dark:
        sample |= change
    if not change:
        run.samples = [s for s in run.samples if s not in dark]
    return run


@pytest.mark.parametrize("change", [{}, {"ok": False, "error": "timed out"}, {"mono": float("nan")}])
@pytest.mark.parametrize(
    ("begin", "end", "resolves"),
    [(0, HIT, None), (HIT - 5, HIT, None), (HIT, HIT + 7, None), (HIT + 7, END, 40.0), (HIT + 8, HIT + 14, 40.0)],
)
def test_inconclusive_when_nobody_looked_before_the_decision(
    tmp_path: Path, begin: float, end: float, resolves: float | None, change: dict[str, Any]
) -> None:
    run = unwatched(runs.healthy(), begin, end, **change)
    row = judge(run, tmp_path, **({"resolves_within": resolves} if resolves else {}))
    assert (row.verdict, "Prometheus was" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_what_happens_after_the_decision_need_not_be_watched(tmp_path: Path) -> None:
    assert judge(unwatched(runs.healthy(), HIT + 7.5, END), tmp_path).verdict is Verdict.PASS


def test_a_gap_that_is_allowed_is_no_gap(tmp_path: Path) -> None:
    run = unwatched(unwatched(runs.healthy(), HIT - 4, HIT - 0.1), HIT + 1, HIT + 5)
    assert judge(run, tmp_path, resolves_within=40.0).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("kind", "within", "errors"), [("lab", 30.0, 0), ("kubernetes", None, 0), ("kubernetes", 30.0, 1)]
)
def test_a_notification_is_waited_for_only_where_somebody_takes_it_in(
    kind: str, within: float | None, errors: int
) -> None:
    params = Alert.Params(name=NAME, within=20.0, notified_within=within)
    assert len(Alert.plan_errors(params, {"target": {"kind": kind}})) == errors
