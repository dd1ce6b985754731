"""What `auto` stands for in an alert check, by what the target says of its monitoring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills import experiment, plan, target, yamlfile
from drills.alerttimes import AlertTimes
from drills.errors import FileProblem

LAB = target.lab_target()
SLOW = AlertTimes(15.0, 0.0, 15.0, 60.0, 30.0)  # as many clusters have it
TEXT = """\
drill: 1
name: tried
title: A replica dies
hypothesis: It is noticed.
load:
  arrivals: {kind: poisson, rate: 20/s}
phases: {baseline: 60s, fault: 60s}
faults:
  - FAULT
checks:
  - alert: {name: VllmReplicaDown, within: auto, resolves_within: auto, notified_within: auto}
  - replica_restart: {within: 45s}
"""
ONE_SHOT, HELD = "pod-kill: {victims: 1, how: delete}", "noop: {victims: 1}"


def made(text: str = TEXT, fault: str = ONE_SHOT, times: AlertTimes | None = SLOW, **changes: Any) -> plan.Plan:
    read = experiment.from_document(yamlfile.parse(Path("x.yaml"), text.replace("FAULT", fault)))
    return plan.make_plan(read, replace(LAB, alert_times=times, **changes), run="0123abcd", seed=7)


def bounds(planned: plan.Plan) -> tuple[float | None, ...]:
    params = planned.to_json()["experiment"]["checks"][0]["params"]
    return tuple(params[key] for key in ("within", "resolves_within", "notified_within"))


def test_the_lab_is_as_strict_as_it_was() -> None:
    assert bounds(made(times=LAB.alert_times)) == (20.0, 58.0, 25.0)


def test_a_slow_monitoring_gets_its_time() -> None:
    # 90 s as it is declared, 30 s for one scrape and one evaluation more, 10 s; then until it is gone; then group_wait
    assert bounds(made()) == (130.0, 170.0, 165.0)


def test_the_plan_watches_long_enough_for_it() -> None:
    assert made().phases.recovery_s == 170.0 + plan.WATCH_S


def test_a_held_fault_has_had_its_alert_when_it_is_off() -> None:
    assert bounds(made(TEXT.replace("fault: 60s", "fault: 90s"), HELD))[1] == 85.0


def test_the_plan_shows_the_number_and_its_terms() -> None:
    [step] = [line for line in made().steps if line.startswith("judge: alert")]
    assert "within 130s (auto: scrape 15s + ramp 0s + evaluation 15s + for 60s, one scrape and one evaluation" in step
    assert "notified_within 165s (auto: within + group_wait 30s + 5s)" in step


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"times": replace(SLOW, group_wait_s=None)}, "names no alertmanager"),
        ({"alerts_mode": "observe"}, "alerts.mode observe silences it"),
    ],
)
def test_a_notification_that_nobody_could_see_is_left_out_and_said(changes: dict[str, Any], why: str) -> None:
    planned = made(**changes)
    assert bounds(planned)[2] is None
    assert any(why in note for note in planned.notes)


def test_without_prometheus_it_can_be_planned_and_the_plan_says_that_it_is_not_decided() -> None:
    assert made(times=None).notes == ("alert: the target 'lab' names no prometheus: this check will not be decided",)


def test_a_number_beside_it_stays_what_it_is() -> None:
    assert bounds(made(TEXT.replace("within: auto, r", "within: 2m, r"))) == (120.0, 160.0, 155.0)


def test_a_number_that_is_too_small_is_refused_still() -> None:
    with pytest.raises(FileProblem, match=r"checks.0..alert.within: 20s is too short: an alert takes 90s"):
        made(TEXT.replace("within: auto, r", "within: 20s, r"))


def test_two_plans_of_two_monitorings_are_not_comparable() -> None:
    assert made().hash != made(times=LAB.alert_times).hash
