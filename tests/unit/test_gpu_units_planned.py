"""The planned reset on a host in memory: its order, why not, and how every way out leaves units and GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drills import receipts
from drills.errors import DrillError, NotRestored, Refused, Stopped
from drills.faults import gpu_notes
from drills.model import Json, Restored
from tests.unit.unit_host import FOREIGN, GPU, IN_USE, OTHER_GPU, UNIT, WATCHER, Drilled, holder


@pytest.fixture
def drill() -> Drilled:
    return Drilled()


STEPS = [
    "unit.stopped", "units.paused", "holders.gone", "persistence.off", "reset.begin", "reset.end", "device.verified",
    "settings.restored", "units.restored", "unit.started",
]  # fmt: skip
HUMAN = "/var/lib/drill/gpu-reset/abcd0123-0-gpu-reset-0.human"


def test_it_goes_all_the_way_in_order_and_is_proven(drill: Drilled) -> None:
    receipt = drill.aim()
    assert drill.kept() == drill.before
    drill.inject(receipt)
    assert drill.steps() == STEPS
    assert [event for event, _ in drill.events].index("inject.hit") == 0
    seen = drill.fault.observe(drill.target, receipt, drill.ctx)
    assert (seen.on, seen.bystanders_ok) == (True, True)
    assert [e["what"] for e in seen.evidence] == ["reset", "engine of the victim", "units"]
    for _ in range(2):
        assert drill.revert(receipt) is Restored.CLEAN
        off = drill.fault.observe(drill.target, receipt, drill.ctx)
        assert (off.on, off.evidence[-1]["all_up"]) == (False, True)
    assert drill.kept() == drill.before
    assert drill.machine.resets == 1
    assert drill.node.expected == ["h1"]  # once: no supervisor is praised for what the drill started


def test_the_receipt_can_be_read_again_and_done_by_hand(drill: Drilled) -> None:
    receipt = drill.aim()
    assert receipts.from_json(receipts.to_json(receipt)) == receipt
    assert [step["argv"][2] for step in receipt.undo] == [
        "drills.access.gpu_units", "drills.access.gpu_units", "drills.access.gpu_restore",
    ]  # fmt: skip
    assert receipt.deadline_s > drill.fault.deed_s / 4
    assert all(command.startswith("# on h1: ") for command in receipts.by_hand(receipt))
    assert receipt.holds == ()


def test_a_unit_that_does_not_hold_the_gpu_is_not_paused(drill: Drilled) -> None:
    drill.machine.holders = [holder(10, UNIT)]
    receipt = drill.aim()
    assert receipt.prior["paused"] == {}
    drill.inject(receipt)
    assert drill.machine.uids[WATCHER] == "run-2"


@pytest.mark.parametrize("step", STEPS[:4])
def test_a_stop_is_heard_until_the_reset_begins(drill: Drilled, step: str) -> None:
    receipt = drill.aim()
    drill.stop_at = step
    with pytest.raises(Stopped):
        drill.inject(receipt)
    assert drill.machine.resets == 0
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.kept() == drill.before


def test_a_stop_after_that_waits_for_its_end(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.stop_at = "reset.begin"
    drill.inject(receipt)
    assert drill.steps() == STEPS[:7]
    assert drill.machine.states[UNIT] == "inactive"
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.kept() == drill.before
    assert drill.node.expected == ["h1"]


# ---- how a reset may end ---------------------------------------------------------------------------------


def test_a_refused_reset_is_tried_once_more_after_another_look(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.machine.outcomes = [IN_USE]
    drill.inject(receipt)
    assert (drill.machine.resets, drill.steps()[-1]) == (2, "unit.started")


def test_twice_refused_is_refused_and_everything_is_put_back(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.machine.outcomes = [IN_USE, IN_USE]
    with pytest.raises(DrillError, match="was not reset"):
        drill.inject(receipt)
    assert (drill.machine.resets, drill.steps()[-1]) == (2, "unit.started")
    assert drill.fault.observe(drill.target, receipt, drill.ctx).on is False
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.kept() == drill.before


@pytest.mark.parametrize("outcome", [None, (255, "free(): invalid pointer"), (15, "GPU is lost")])
def test_an_end_that_nobody_can_explain_keeps_the_unit_stopped(drill: Drilled, outcome: tuple[int, str] | None) -> None:
    receipt = drill.aim()
    drill.machine.outcomes = [outcome]
    with pytest.raises(NotRestored, match="Its unit stays stopped"):
        drill.inject(receipt)
    assert drill.revert(receipt) is Restored.DIRTY
    assert (drill.machine.states[UNIT], drill.machine.states[WATCHER]) == ("inactive", "active")
    assert drill.machine.gpus[GPU]["persistence"] is True
    del drill.machine.files[HUMAN]
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.kept() == drill.before
    assert drill.machine.resets == 1


@pytest.mark.parametrize(
    "after", [{"recovery_action": "Reset"}, {"mig": True}, {"xids": [{"at_s": 1.0, "xid": 79, "text": "x"}]}]
)
def test_a_gpu_that_is_not_as_it_was_keeps_the_unit_stopped(drill: Drilled, after: Json) -> None:
    receipt = drill.aim()
    drill.machine.after = {"uptime_s": 1, **after}
    with pytest.raises(NotRestored, match="after its reset"):
        drill.inject(receipt)
    assert drill.revert(receipt) is Restored.DIRTY
    assert drill.machine.states[UNIT] == "inactive"


def test_a_success_without_effect_is_for_a_person_and_only_then_clean(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.machine.after = {}
    with pytest.raises(NotRestored, match="nothing happened"):
        drill.inject(receipt)
    assert drill.machine.resets == 1
    assert drill.revert(receipt) is Restored.DIRTY
    assert drill.machine.states[UNIT] == "inactive"
    del drill.machine.files[HUMAN]
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.kept() == drill.before


def test_a_reset_that_no_driver_judged_is_judged_by_the_gpu_itself(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.machine.after = {"uptime_s": 1, "recovery_action": "Reset"}
    drill.stop_at = "reset.begin"
    with pytest.raises(NotRestored):
        drill.inject(receipt)
    for note in ("human", "seen"):  # as if the driver had died before it looked
        del drill.machine.files[HUMAN.replace("human", note)]
    assert drill.revert(receipt) is Restored.DIRTY
    assert "recovery action is Reset" in drill.machine.files[HUMAN]


# ---- a link that breaks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["stop", "spawn"])
def test_a_lost_answer_is_looked_up_and_nothing_is_done_twice(drill: Drilled, lost: str) -> None:
    receipt = drill.aim()
    drill.machine.lose = lost
    drill.inject(receipt)
    assert "link.lost" in drill.steps()
    assert [step for step in drill.steps() if step != "link.lost"] == STEPS
    assert drill.machine.resets == 1


@pytest.mark.parametrize(
    ("lost", "words"),
    [("never stopped", "told to stop, and vllm.service is active"), ("never spawned", "never came up")],
)
def test_what_never_got_there_is_not_repeated(drill: Drilled, lost: str, words: str) -> None:
    receipt = drill.aim()
    drill.machine.lose = lost
    with pytest.raises(DrillError, match=words):
        drill.inject(receipt)
    assert drill.machine.resets == 0
    drill.machine.lose = ""
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.kept() == drill.before


@pytest.mark.parametrize("step", ["unit.stopping", "reset.begin"])
def test_a_link_that_is_down_for_a_while_is_waited_for(drill: Drilled, step: str) -> None:
    receipt = drill.aim()

    def cut(told: str) -> None:
        if told == step:
            drill.machine.lose, drill.on_step = ("stop" if step == "unit.stopping" else "spawn"), lambda _: None
        if told == "link.lost":
            drill.machine.deaf = 5

    drill.on_step = cut
    drill.inject(receipt)
    assert drill.steps()[-1] == "unit.started"


def test_a_link_that_stays_down_is_told_and_nothing_is_called_ended(drill: Drilled) -> None:
    receipt = drill.aim()

    def cut(step: str) -> None:
        if step == "reset.begin":
            drill.machine.lose = "spawn"
        if step == "link.lost":
            drill.machine.deaf = 10_000

    drill.on_step = cut
    with pytest.raises(Refused, match="no answer"):
        drill.inject(receipt)
    assert "reset.end" not in drill.steps()
    drill.machine.deaf = 0
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.kept() == drill.before


@pytest.mark.parametrize(("after", "restored"), [({}, Restored.CLEAN), ({"mig": True}, Restored.DIRTY)])
def test_a_machine_that_was_booted_anew_in_the_middle_is_judged_by_its_gpu(
    drill: Drilled, after: Json, restored: Restored
) -> None:
    receipt = drill.aim()
    drill.machine.outcomes = [None]

    def boot(step: str) -> None:
        if step == "reset.begin":
            drill.machine.lose = "spawn"
        if step == "link.lost":
            drill.machine.deaf, drill.machine.boot_id = 3, "another"
            drill.machine.gpus[GPU].update({"uptime_s": 5, **after})

    drill.on_step = boot
    with pytest.raises(DrillError, match="booted anew"):
        drill.inject(receipt)
    assert drill.revert(receipt) is restored
    assert (drill.machine.states[UNIT] == "active") is (restored is Restored.CLEAN)
    assert drill.machine.resets == 1


# ---- why not ---------------------------------------------------------------------------------------------


def test_a_holder_of_no_unit_is_named(drill: Drilled) -> None:
    drill.machine.holders.append(holder(99, "", title="/usr/bin/python3 notebook.py"))
    [reason] = drill.preflight()
    assert "pid 99 (/usr/bin/python3 notebook.py)" in reason
    assert "of no unit, and would not let go" in reason


def test_a_holder_of_a_unit_that_may_not_be_paused_is_named(drill: Drilled) -> None:
    drill.machine.states[FOREIGN] = "active"
    drill.machine.holders.append(holder(99, FOREIGN, title="jupyter"))
    assert ["of unit jupyter.service" in reason for reason in drill.preflight()] == [True]
    with pytest.raises(Refused, match="nothing was touched"):
        drill.aim()


@pytest.mark.parametrize(
    ("held", "who"),
    [([], "nobody has it open"), ([holder(20, WATCHER, title="dcgm-exporter")], "pid 20 (dcgm-exporter)")],
)
def test_a_gpu_that_its_replica_does_not_hold_is_not_reset(drill: Drilled, held: list[Json], who: str) -> None:
    """Declared wrongly: the unit would be stopped, and the GPU of nobody, or of somebody else, reset."""
    drill.machine.holders = [holder(10, UNIT, gpu=OTHER_GPU), *held]
    [reason] = drill.preflight()
    assert reason.startswith(f"h1: none of its processes holds GPU {GPU} ({who}")
    with pytest.raises(Refused, match="nothing was touched"):
        drill.aim()


def test_a_replica_that_let_go_since_the_aim_is_not_stopped(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.machine.holders = [holder(20, WATCHER)]
    with pytest.raises(Refused, match="none of its processes holds"):
        drill.inject(receipt)
    assert drill.kept() == drill.before


def test_a_holder_that_is_stuck_in_the_kernel_is_named(drill: Drilled) -> None:
    drill.machine.holders[0]["state"] = "D"
    assert ["cannot be ended" in reason for reason in drill.preflight()] == [True]


def test_what_the_unit_says_is_a_reason(drill: Drilled) -> None:
    drill.node.reasons = ["unit vllm.service is masked"]
    assert drill.preflight() == ["unit vllm.service is masked"]


def test_no_gate_is_needed(drill: Drilled) -> None:
    assert drill.victims()[0].gate is None
    assert drill.preflight() == []


def test_a_replica_that_is_another_one_by_now_is_not_stopped(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.machine.uids[UNIT] = "run-9"
    with pytest.raises(Refused, match="is no longer the replica"):
        drill.inject(receipt)
    assert drill.kept() == drill.before
    assert drill.events == []


def test_somebody_who_took_the_gpu_since_the_aim_is_refused(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.machine.holders.append(holder(99, ""))
    with pytest.raises(Refused, match="nothing was touched"):
        drill.inject(receipt)
    assert drill.kept() == drill.before


def test_a_reset_that_was_begun_is_never_begun_again(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.inject(receipt)
    drill.machine.uids[UNIT] = "run-1"
    with pytest.raises(Refused, match="never repeated"):
        drill.inject(receipt)
    assert drill.machine.resets == 1


def test_a_unit_that_does_not_stop_ends_the_drill(drill: Drilled) -> None:
    receipt = drill.aim()
    drill.node.stuck = {UNIT}
    with pytest.raises(DrillError, match=f"told to stop, and {UNIT}"):
        drill.inject(receipt)
    assert drill.revert(receipt) is Restored.CLEAN
    assert drill.kept() == drill.before


def test_a_unit_is_given_the_time_that_it_may_take_to_stop(drill: Drilled, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt, units, looks = drill.aim(), drill.node.units, iter(range(1000))

    def slowly(names: Sequence[str]) -> dict[str, Json]:
        busy = {"state": "deactivating", "job": True} if next(looks) < 2 * drill.ctx.timeout_s else {}
        return {name: said | busy for name, said in units(names).items()}

    monkeypatch.setattr(drill.node, "units", slowly)
    drill.inject(receipt)
    assert drill.steps() == STEPS


def test_a_unit_whose_start_waits_for_the_end_of_its_stop_counts_as_up(
    drill: Drilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = drill.aim()
    slow: Json = {"uid": "run-1", "state": "deactivating", "sub": "stop-sigterm", "job": True}
    monkeypatch.setattr(drill.node, "units", lambda names: dict.fromkeys(names, slow))
    assert drill.fault.observe(drill.target, receipt, drill.ctx).evidence[-1]["all_up"] is True
    slow["job"] = False  # nobody will start it
    assert drill.fault.observe(drill.target, receipt, drill.ctx).evidence[-1]["all_up"] is False


def test_the_notes_are_where_the_reset_looks_for_them(drill: Drilled) -> None:
    receipt = drill.aim()
    [base] = receipt.prior["bases"].values()
    assert f"{base}.human" == HUMAN
    assert gpu_notes.read(drill.target.there, base) is None
