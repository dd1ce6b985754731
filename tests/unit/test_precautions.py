"""What a plan and a postmortem say of paging, of what users feel, and of production."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills import verdict
from drills.checks.alert import Alert
from drills.live import worth_saying
from drills.model import Json, Verdict
from drills.report import run as report
from drills.target import TargetSpec, lab_target
from drills.targetfile import Limits
from tests.unit import runs
from tests.unit.runs import HIT, Run
from tests.unit.test_plan import GOOD, made

LAB = lab_target()
NAME = "VllmReplicaDown"


def steps(spec: TargetSpec) -> list[str]:
    return list(made(GOOD, spec).steps)


def test_a_plan_names_the_alerts_that_will_page_nobody() -> None:
    text = f"silence {NAME} for the victim until the drill ends: the paging path will not be proven"
    assert text in steps(replace(LAB, alerts_mode="observe"))
    assert not [step for step in steps(LAB) if step.startswith("silence ")]


def test_a_plan_names_what_users_feel_and_what_production_asks() -> None:
    always = ("Mon-Sun 00:00-24:00 UTC",)
    limits = Limits(environment="production", windows=always, stop_if=("x > bool 1",), allow_route_faults=True)
    said = steps(replace(LAB, name="prod", limits=limits))
    assert "stop and put back at once: stop_if x > bool 1, or when it is not answered" in said
    assert any(step.startswith("production: refuse without --confirm prod and --oncall NAME") for step in said)
    assert not [step for step in steps(LAB) if "production" in step or "stop_if" in step]


@pytest.mark.parametrize(
    ("kind", "labels", "check", "said"),
    [
        ("kubernetes", {}, {}, ["would silence it for everybody"]),
        ("kubernetes", {"namespace": "llm"}, {}, []),
        ("kubernetes", {}, {"labels": {"pod": "{victim}"}}, []),
        ("lab", {}, {}, []),  # its Alertmanager is its own
        ("lab", {}, {"notified_within": 30.0}, ["notified_within: alerts.mode observe silences it"]),
    ],
)
def test_what_cannot_be_silenced_or_told_then_is_refused(kind: str, labels: Json, check: Json, said: list[str]) -> None:
    params = Alert.Params.model_validate({"name": NAME, "within": 20.0} | check)
    plan = {"target": {"kind": kind, "alerts": {"mode": "observe", "labels": labels}}}
    found = Alert.plan_errors(params, plan)
    assert [want in have for want, have in zip(said, found, strict=True)] == [True] * len(said)


# ---- afterwards ------------------------------------------------------------------------------------------


def observed() -> Run:
    """A run whose alert fired and was silenced."""
    run = runs.healthy()
    run.plan["target"]["alerts"] = {"mode": "observe", "labels": {}}
    run.drop("notified")
    pinned = {"name": runs.VICTIM, "uid": "u1"}
    silence = {"id": "r0", "run": runs.RUN, "fault": "alert-silence", "victims": [pinned], "prior": {}}
    run.tell(HIT - 0.02, "receipt", receipt=silence, beside=True)
    run.tell(HIT - 0.01, "beside.proof.on", receipt="r0", fault="alert-silence", held=True, ok=True, evidence=[])
    run.tell(runs.END + 2.5, "revert.end", receipt="r0", restored="clean", manual=[], by="driver", beside=True)
    return run


def test_a_silenced_alert_that_fired_passes_without_a_word_on_paging(tmp_path: Path) -> None:
    row = runs.judge(observed(), tmp_path, "alert", name=NAME, within=20.0, resolves_within=40.0)
    assert row.verdict is Verdict.PASS
    assert row.reason == "fired in time; it was silenced for the victim, so the paging path is not proven"


def test_a_silence_is_no_fault_and_is_to_be_put_back_all_the_same(tmp_path: Path) -> None:
    run = observed()
    judged = verdict.of(run.evidence(tmp_path / "a"))
    assert (judged.verdict, judged.restored) == (Verdict.PASS, "clean")
    run.drop("revert.end", lambda data: data.get("receipt") == "r0")
    judged = verdict.of(run.evidence(tmp_path / "b"))
    assert (judged.restored, judged.exit_code) == ("unknown", 5)


def postmortem(run: Run, folder: Path) -> str:
    run.evidence(folder)
    verdict.write(folder)
    return report.write(folder).read_text()


def test_the_postmortem_says_that_paging_is_not_proven(tmp_path: Path) -> None:
    text = postmortem(observed(), tmp_path)
    assert "silenced on purpose: paging path not proven" in text
    assert "Paging path not proven: the expected alerts were silenced for the victim." in text
    assert "| receipt `r0` written, before the deed beside it |" in text
    head = text.split("## Verdict")[0]
    assert "alert-silence" not in head  # which names the fault


def test_the_announcement_is_no_alert_of_the_service(tmp_path: Path) -> None:
    run = runs.healthy()
    run.tell(runs.START - 1, "announced", what="begin", alert="DrillRunning", to="http://am", until="later")
    labels = {"severity": "info"}
    run.tell(runs.START + 1, "alert", alert="DrillRunning", labels=labels, source="alertmanager", state="firing")
    run.tell(HIT + 1, "notified", alert="DrillRunning", labels=labels, status="firing")
    text = postmortem(run, tmp_path)
    assert "begin of the drill announced by the alert `DrillRunning`" in text
    assert "DrillRunning" not in text.split("## Detection")[1].split("##")[0]


SCALED: Json = {"subject": "Deployment vllm", "what": "replicas", "was": 3, "now": 5, "by": "autoscaler"}


def test_the_postmortem_tells_what_others_and_the_autoscaler_did(tmp_path: Path) -> None:
    run = runs.healthy()
    run.tell(HIT + 5, "scaled", **SCALED)
    run.tell(runs.END + 2.5, "scaled.left", **SCALED)
    text = postmortem(run, tmp_path / "a")
    assert "scaled by autoscaler: Deployment vllm: replicas 3 → 5" in text
    assert "Autoscaled meanwhile: Deployment vllm: replicas 3 → 5; not back when the run ended." in text
    edited: dict[str, Any] = SCALED | {"what": "specification", "was": "a1", "now": "b2", "by": "others"}
    run.tell(HIT + 6, "changed_by_others", **edited)
    text = postmortem(run, tmp_path / "b")
    assert "**changed by others**: Deployment vllm: specification a1 → b2" in text
    assert "changed by others: Deployment vllm: specification a1 → b2" in text.split("## Verdict")[0]


def test_a_page_of_another_service_is_not_among_the_unexpected(tmp_path: Path) -> None:
    run = runs.healthy()
    labels = {"severity": "page", "namespace": "other"}
    run.tell(HIT + 3, "alert", alert="Elsewhere", labels=labels, source="prometheus", state="firing")
    assert "not expected: `Elsewhere`" in postmortem(run, tmp_path / "a")
    run.plan["target"]["alerts"] = {"mode": "page", "service": {"namespace": "llm"}}
    assert "not expected: `Elsewhere`" not in postmortem(run, tmp_path / "b")


def test_the_postmortem_names_the_query_that_ended_the_run(tmp_path: Path) -> None:
    run = runs.healthy()
    run.tell(HIT + 5, "guard", guard="stop_if", value=1.0, bound=0, query="x > bool 1")
    assert "**guard** stop_if `x > bool 1`: 1, bound 0" in postmortem(run, tmp_path).replace("`stop_if`", "stop_if")


@pytest.mark.parametrize(
    ("event", "data", "said"),
    [
        (
            "beside.inject.step",
            {"step": "silence.0", "matchers": 'alertname="Down"', "until": "12:00"},
            'silenced: alertname="Down", until 12:00',
        ),
        ("announced", {"what": "end", "error": "timed out"}, "end of the drill announced: FAILED: timed out"),
        ("scaled", SCALED, "Deployment vllm: scaled 3 → 5, by autoscaler"),
        ("beside.inject.begin", {"fault": "alert-silence"}, None),
    ],
)
def test_who_watches_a_run_hears_of_it(event: str, data: Json, said: str | None) -> None:
    assert worth_saying(event, data) == said
