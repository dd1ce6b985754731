"""The planned reset against a node in memory: its order, why not, and how every way out leaves the node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drills import victims
from drills.access import nodemarks
from drills.errors import DrillError, NotRestored, Refused, Stopped, UsageError
from drills.faults.gpu_reset import GpuReset
from drills.model import Json, Restored
from tests.unit.gpu_node import OTHER, PLUGIN, UUID, a_replica
from tests.unit.planned_drill import Drilled

IN_USE = (255, "The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: In use by another client\n")


@pytest.fixture
def drill() -> Drilled:
    return Drilled()


STEPS = [
    "node.cordoned", "evicted", "telemetry.paused", "holders.gone", "reset.begin", "reset.end", "device.verified",
    "settings.restored", "telemetry.restored", "allocatable.back", "node.uncordoned",
]  # fmt: skip


def test_it_goes_all_the_way_in_order_and_is_proven(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.inject(receipt)
    assert drill.steps() == STEPS
    assert [event for event, _ in drill.events].index("inject.hit") == 0
    seen = drill.fault.observe(drill.target, receipt, drill.ctx)
    assert (seen.on, seen.bystanders_ok) == (True, True)
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.as_before()
    off = drill.fault.observe(drill.target, receipt, drill.ctx)
    assert off.on is False
    assert off.evidence[-1]["as_before"] is True


def test_the_receipt_tells_what_was_and_what_is_put_back(drill: Drilled) -> None:
    receipt = drill.aim()
    [node] = [step for step in receipt.undo if step["do"] == "node"]
    assert node == {
        "do": "node",
        "node": "n1",
        "run": "abcd0123",
        "cordon": True,
        "labels": {PLUGIN: "true"},
        "offers": 2,
    }
    assert receipt.victims[0]["gpus"] == [UUID]
    assert list(receipt.prior["machine"]["gpus"]) == [UUID]
    assert receipt.deadline_s >= 600  # not while the reset may be under way
    assert drill.node.nodes.patches == 0


def test_what_the_receipt_says_can_be_read_again(drill: Drilled) -> None:
    from drills import receipts

    receipt = drill.aim()
    assert receipts.from_json(receipts.to_json(receipt)) == receipt
    commands = [receipts.manual(step) for step in receipt.undo]
    assert any("kubectl uncordon n1" in command for command in commands)


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_stop_is_heard_until_the_reset_begins(drill: Drilled, step: str) -> None:
    receipt = drill.aim()
    drill.stop_at = step
    with pytest.raises(Stopped):
        drill.inject(receipt)
    assert "reset.begin" not in drill.steps()
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.as_before()


def test_a_stop_after_that_waits_for_its_end(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.stop_at = "reset.begin"
    drill.inject(receipt)
    assert drill.steps() == STEPS[:7]
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.as_before()


# ---- how a reset may end ---------------------------------------------------------------------------------


def test_a_refused_reset_is_tried_once_more_after_another_look(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.node.outcomes = [IN_USE]
    drill.inject(receipt)
    assert drill.steps().count("reset.begin") == 2
    assert drill.steps()[-1] == "node.uncordoned"


def test_twice_refused_is_refused_and_everything_is_put_back(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.node.outcome = IN_USE
    with pytest.raises(DrillError, match="was not reset"):
        drill.inject(receipt)
    assert drill.steps().count("reset.begin") == 2
    seen = drill.fault.observe(drill.target, receipt, drill.ctx)
    assert seen.on is False
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.as_before()


@pytest.mark.parametrize("outcome", [None, (255, "free(): invalid pointer"), (15, "GPU is lost")])
def test_an_end_that_nobody_can_explain_keeps_the_node_cordoned(
    drill: Drilled, outcome: tuple[int, str] | None
) -> None:
    receipt = drill.aim()
    drill.node.outcome = outcome
    with pytest.raises(NotRestored, match="stays cordoned"):
        drill.inject(receipt)
    assert drill.revert(receipt) is Restored.DIRTY
    assert drill.node.nodes.node["spec"]["unschedulable"] is True
    assert drill.node.nodes.node["metadata"]["labels"][PLUGIN] == "true"
    del drill.node.nodes.node["metadata"]["annotations"][nodemarks.HUMAN]
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.as_before()


@pytest.mark.parametrize(
    "after", [{"recovery_action": "Reset"}, {"mig": True}, {"xids": [{"at_s": 1.0, "xid": 79, "text": "x"}]}]
)
def test_a_gpu_that_is_not_as_it_was_keeps_the_node_cordoned(drill: Drilled, after: Json) -> None:
    receipt = drill.aim()
    drill.node.after = {"uptime_s": 1, **after}
    with pytest.raises(NotRestored, match="after its reset"):
        drill.inject(receipt)
    assert drill.revert(receipt) is Restored.DIRTY


def test_a_success_without_effect_is_not_proven_and_for_a_person(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.node.after = {}
    with pytest.raises(NotRestored, match="nothing happened"):
        drill.inject(receipt)
    assert drill.fault.observe(drill.target, receipt, drill.ctx).on is False
    assert drill.revert(receipt) is Restored.DIRTY


def test_a_driver_that_tells_no_uptime_proves_nothing_either_way(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.node.after = {"uptime_s": None}
    drill.inject(receipt)
    assert drill.fault.observe(drill.target, receipt, drill.ctx).on is None


@pytest.mark.parametrize(("rc", "restored"), [(0, Restored.CLEAN), (124, Restored.DIRTY)])
def test_a_reset_whose_driver_died_is_judged_before_the_node_is_put_back(
    drill: Drilled, rc: int, restored: Restored
) -> None:
    receipt = drill.aim()
    text = (0, "GPU 00000000:1A:00.0 was successfully reset.\n") if rc == 0 else (rc, "")
    drill.node.outcome = text

    def die(step: str) -> None:
        if step == "reset.end":
            raise KeyboardInterrupt

    drill.on_step = die
    with pytest.raises(KeyboardInterrupt):
        drill.inject(receipt)
    assert drill.revert(receipt) is restored


def test_a_reset_is_never_begun_twice(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.inject(receipt)
    drill.target.rows = [a_replica(), a_replica("vllm-1", "uid-1")]
    drill.node.holders = [drill.node.holder(10, "VLLM::EngineCore", pod="uid-0")]
    with pytest.raises(Refused, match="begun before"):
        drill.inject(receipt)


# ---- why not ---------------------------------------------------------------------------------------------


def refusals(drill: Drilled) -> str:
    return "; ".join(drill.fault.preflight(drill.target, [drill.target.rows[0]]))


def test_there_is_no_reason_against_a_node_at_rest(drill: Drilled) -> None:
    assert refusals(drill) == ""


@pytest.mark.parametrize(
    ("holder", "says"),
    [
        ({"pid": 30, "title": "datadog-agent run"}, "datadog-agent"),
        ({"pid": 30, "title": "VLLM::EngineCore", "pod": "uid-1"}, "of pod uid-1"),
        ({"pid": 30, "title": "dcgm-exporter"}, "dcgm-exporter"),  # no label would pause it
        ({"pid": 30, "title": "VLLM::EngineCore", "pod": "uid-0", "state": "D"}, "cannot be ended"),
    ],
)
def test_whoever_would_not_let_go_is_named(drill: Drilled, holder: Json, says: str) -> None:
    drill.node.holders.append(drill.node.holder(**holder))
    assert says in refusals(drill)


@pytest.mark.parametrize(
    "holder",
    [{"pid": 30, "title": "/usr/bin/nvidia-persistenced --x"}, {"pid": 30, "title": "somebody", "gpu": OTHER}],
)
def test_the_persistence_daemon_and_who_holds_another_gpu_do_not_matter(drill: Drilled, holder: Json) -> None:
    drill.node.holders.append(drill.node.holder(**holder))
    assert refusals(drill) == ""


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        ({"architecture": "Hopper", "virtualization": "VGPU"}, "shared out by a hypervisor"),
        ({"architecture": "Volta", "virtualization": "None"}, "NVLink peers must be reset together"),
        ({"architecture": None, "virtualization": "None"}, "does not tell its architecture"),
    ],
)
def test_a_kind_of_gpu_that_is_not_reset_alone_is_refused(drill: Drilled, kinds: Json, says: str) -> None:
    drill.node.kinds = kinds
    assert says in refusals(drill)


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ({"mig": True}, "MIG is on"),
        ({"fabric": "in_progress"}, "NVLink fabric"),
        ({"display_active": True}, "a display is active"),
        ({"recovery_action": "Reboot"}, "an incident, not a drill"),
        ({"processes": [{"pid": 5, "memory_mib": 1, "mps": True}]}, "shared through MPS"),
    ],
)
def test_a_gpu_in_that_state_is_refused(drill: Drilled, gpu: Json, says: str) -> None:
    drill.node.gpus[UUID].update(gpu)
    assert says in refusals(drill)


def test_a_replica_that_holds_no_gpu_is_refused(drill: Drilled) -> None:
    drill.node.holders = []
    assert "holds a GPU of node n1" in refusals(drill)


def test_what_the_node_says_is_a_reason_at_the_last_moment_too(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.node.reasons = ["node n1: somebody else is at work"]
    with pytest.raises(Refused, match="nothing was touched"):
        drill.inject(receipt)
    assert drill.node.nodes.patches == 0


def test_a_budget_that_says_no_refuses_it_before_anything_is_touched(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.target.budget = ["no"] * 99
    with pytest.raises(Refused, match="refused by the disruption budget for 3 s: no"):
        drill.inject(receipt)
    assert (drill.node.nodes.patches, drill.target.evicted) == (0, [])


def test_a_budget_that_lets_it_go_in_time_is_waited_for(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.target.budget = ["no"]
    drill.inject(receipt)
    assert drill.steps()[0] == "evict.refused"
    assert drill.target.evicted == ["uid-0"]


def test_somebody_who_takes_the_gpu_meanwhile_keeps_it_from_the_reset(drill: Drilled) -> None:
    receipt = drill.aim()
    stranger = drill.node.holder(40, "nvidia-smi")

    def come(step: str) -> None:
        if step == "holders.gone":
            drill.node.holders.append(stranger)

    drill.on_step = come
    with pytest.raises(DrillError, match="nvidia-smi"):
        drill.inject(receipt)
    assert "reset.begin" not in drill.steps()
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.as_before()


@pytest.mark.parametrize(("how", "kind"), [("planned", "lab"), ("crash", "kubernetes")])
def test_each_way_is_for_its_own_kind_of_target(how: Any, kind: str) -> None:
    with pytest.raises(UsageError, match=r"use (crash|planned)"):
        GpuReset(GpuReset.Params(how=how), kind)


def test_the_node_of_the_drill_itself_is_spared_and_counted_out(drill: Drilled) -> None:
    rows = [replace(a_replica("vllm-0", "u0"), host="n1"), replace(a_replica("vllm-1", "u1"), host="n2")]
    drill.target.own_node = "n1"
    near, far = victims.off_own_node(drill.fault, drill.target, rows)
    assert ("that very node" in near.spared, far.spared) == (True, "")
    drill.target.own_node = None
    assert victims.off_own_node(drill.fault, drill.target, rows) == rows
