"""The planned reset against a node in memory: its order, why not, and how every way out leaves the node."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from drills import victims
from drills.access import nodemarks
from drills.errors import DrillError, NotRestored, Refused, Stopped, UsageError
from drills.faults import gpu_deed, gpu_reset_deed, gpu_reset_planned
from drills.faults.eviction import await_budget
from drills.faults.gpu_reset import GpuReset
from drills.model import Context, Json, Receipt, Replica, Restored
from tests.unit.gpu_node import OTHER, PLUGIN, UUID, Node, a_replica, put_back

IN_USE = (255, "The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: In use by another client\n")


class Custody:
    """Undoes what the API can undo."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        whys: list[str] = []
        for step in reversed(receipt.undo):
            if step["do"] == "job" and not whys:  # they tell how a reset ended
                self.node.jobs.pop(step["name"], None)
            if step["do"] == "node":
                whys += [why for why in [put_back(self.node.nodes, step)] if why]
        return (Restored.DIRTY if whys else Restored.CLEAN), whys


class Target:
    """A target with one node."""

    name, kind = "prod", "kubernetes"

    def __init__(self) -> None:
        self.node, self.rows = Node(), [a_replica(), a_replica("vllm-1", "uid-1")]
        self.custody = Custody(self.node)
        self.budget: list[str | None] = []  # what dry evictions are answered with; then they are allowed
        self.evicted: list[str] = []

    def replicas(self) -> list[Replica]:
        return self.rows

    def gpu_node(self, name: str, run: str | None = None) -> Node:
        assert name == "n1"
        return self.node

    def evict_replica(self, replica: Replica, *, grace_s: float | None, dry: bool = False) -> str | None:
        if dry:
            return self.budget.pop(0) if self.budget else None
        self.evicted.append(replica.uid)
        self.node.holders = [h for h in self.node.holders if h["pod"] != replica.uid]
        self.node.host.living.discard(10)
        self.rows = [row for row in self.rows if row.uid != replica.uid]
        return None


class Drilled:
    """One planned reset, with its journal as a list."""

    def __init__(self) -> None:
        self.target: Any = Target()
        self.node: Node = self.target.node
        self.fault = GpuReset(GpuReset.Params(how="planned", budget_timeout=3.0), "kubernetes")
        self.events: list[tuple[str, Json]] = []
        self.stop_at: str | None = None
        self.on_step: Callable[[str], object] = lambda _: None
        clock = itertools.count()
        self.ctx = Context(self.tell, lambda _: None, lambda: float(next(clock)), self.stopping, 30.0)
        self.before = copy.deepcopy(self.node.nodes.node)

    def tell(self, event: str, data: Json) -> None:
        self.events.append((event, data))
        if event == "inject.step":
            self.on_step(data["step"])

    def stopping(self) -> bool:
        return self.stop_at is not None and self.stop_at in self.steps()

    def steps(self) -> list[str]:
        return [data["step"] for event, data in self.events if event == "inject.step"]

    def aim(self) -> Receipt:
        victims = [self.target.rows[0]]
        return self.fault.aim(self.target, victims, run="abcd0123", receipt="abcd0123-0-gpu-reset", deadline_s=35.0)

    def inject(self, receipt: Receipt) -> None:
        self.fault.inject(self.target, receipt, self.ctx)

    def revert(self, receipt: Receipt) -> Restored:
        return self.fault.revert(self.target, receipt, self.ctx)

    def as_before(self) -> bool:
        node = self.node.nodes.node
        same = node["spec"] == self.before["spec"] and node["metadata"]["labels"] == self.before["metadata"]["labels"]
        return same and not node["metadata"].get("annotations") and self.node.jobs == {}


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


def test_a_success_without_effect_is_not_proven(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.node.after = {}
    drill.inject(receipt)
    assert drill.fault.observe(drill.target, receipt, drill.ctx).on is False


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
