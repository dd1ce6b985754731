"""The way back of a planned reset: what keeps its node closed, in which order things return, and what time it has."""

from __future__ import annotations

import pytest

from drills.access import nodemarks
from drills.errors import DrillError, Refused
from drills.faults import gpu_deed, gpu_reset_deed, gpu_reset_planned
from drills.faults.eviction import await_budget
from drills.model import Restored
from tests.unit.gpu_node import OTHER, put_back
from tests.unit.planned_drill import Drilled


@pytest.fixture
def drill() -> Drilled:
    return Drilled()


def test_pods_that_the_node_refused_meanwhile_are_cleaned_and_told(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.inject(receipt)
    drill.node.stayed = ["vllm-x"]
    there: list[str] = []
    drill.on_step = lambda step: there.extend(drill.node.stayed) if step == "pod.cleaned" else None
    assert drill.revert(receipt) is Restored.CLEAN
    assert (drill.node.stayed, there) == ([], ["vllm-x"])  # told, then deleted
    assert drill.events[-1][1]["pod"] == "vllm-x"


def test_a_pod_that_may_not_be_cleaned_spoils_nothing(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.inject(receipt)
    drill.node.stayed, drill.node.forbidden = ["vllm-x"], True
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.events[-1][1] | {"ok": False, "reason": "HTTP 403"} == drill.events[-1][1]


def test_a_gpu_that_nobody_can_look_at_keeps_the_node_cordoned_until_somebody_could(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.stop_at = "reset.begin"
    drill.inject(receipt)
    back = next(step for step in receipt.undo if step["do"] == "node")
    drill.node.progress(back, nodemarks.BEGUN)  # as if its driver had died before it judged
    drill.node.nodes.node["metadata"]["annotations"][nodemarks.ENDED] = "0"
    drill.node.blind = True
    assert drill.revert(receipt) is Restored.DIRTY
    assert drill.node.nodes.node["spec"]["unschedulable"] is True
    assert "nobody could look" in drill.node.state()["marks"][nodemarks.HUMAN]
    del drill.node.nodes.node["metadata"]["annotations"][nodemarks.HUMAN]
    assert drill.revert(receipt) is Restored.DIRTY  # still nobody can
    drill.node.blind = False
    del drill.node.nodes.node["metadata"]["annotations"][nodemarks.HUMAN]
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.as_before()


def test_a_reset_is_told_before_it_is_begun(drill: Drilled) -> None:
    receipt, jobs = drill.aim(), []
    drill.on_step = lambda step: jobs.append(dict(drill.node.jobs)) if step == "reset.begin" else None
    drill.inject(receipt)
    assert jobs == [{}]


def test_settings_come_back_before_pods_and_jobs_go_last(drill: Drilled) -> None:
    undone = [step["do"] for step in reversed(drill.aim().undo)]
    assert undone == ["run", "node", "job", "job"]


def test_the_timer_waits_for_every_gpu_and_every_victim(drill: Drilled) -> None:
    victims = drill.target.rows
    one = drill.aim().deadline_s
    drill.node.holders.append(drill.node.holder(11, "VLLM::EngineCore", pod="uid-1", gpu=OTHER))
    two = drill.fault.aim(drill.target, victims, run="abcd0123", receipt="abcd0123-0-gpu-reset", deadline_s=35.0)
    an_attempt = gpu_deed.RESET_TIMEOUT_S + gpu_reset_deed.RESET_SLACK_S
    assert two.deadline_s >= one + 2 * an_attempt
    assert one > gpu_reset_planned.deed_s(gpus=1) + 3.0
    assert 2 * drill.fault.deed_s > gpu_reset_planned.deed_s(gpus=8) + 3.0 + gpu_reset_planned.TIMER_SLACK_S - 300.0


def test_a_node_that_the_timer_has_put_back_is_not_worked_on_any_further(drill: Drilled) -> None:
    receipt = drill.aim()
    back = next(step for step in receipt.undo if step["do"] == "node")
    drill.on_step = lambda step: put_back(drill.node.nodes, back) if step == "holders.gone" else None
    with pytest.raises(DrillError, match="somebody has put it back"):
        drill.inject(receipt)
    assert drill.node.jobs == {}
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.as_before()


def test_fewer_gpus_than_before_are_not_clean(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.inject(receipt)
    drill.node.offers = 1
    assert drill.revert(receipt) is Restored.DIRTY
    assert "offers 1 GPUs, and offered 2" in drill.events[-1][1]["reason"]
    drill.node.nodes.node["spec"]["unschedulable"] = True  # others work on it now, and answer for it
    assert drill.revert(receipt) is Restored.CLEAN


def test_a_node_that_is_gone_has_nothing_to_put_back(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.stop_at = "reset.begin"
    drill.inject(receipt)
    drill.node.is_gone = True
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.steps()[-1] == "node.gone"
    assert drill.fault.observe(drill.target, receipt, drill.ctx).on is False


def test_all_budgets_together_are_waited_for_no_longer_than_said(drill: Drilled) -> None:
    drill.target.budget = ["no", "no", None, *["no"] * 99]
    asked = list(drill.target.budget)
    told: list[str] = []
    with pytest.raises(Refused, match="vllm-1: its eviction is refused by the disruption budget for 9 s"):
        await_budget(drill.target, drill.target.rows, drill.ctx, 9.0, lambda name, _: told.append(name))
    assert told == ["vllm-0", "vllm-1"]
    assert len(asked) - len(drill.target.budget) <= 11  # a look a second, and one for the victim that may go
