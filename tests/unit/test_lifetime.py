"""What is made for one run outlives its deeds: the helper that carries a timer, the lock, the silence."""

from __future__ import annotations

from typing import Any, cast

from drills import lifetime
from drills.active import DEADLINE_SLACK_S
from drills.faults import gpu_reset_planned
from drills.faults.gpu_reset import GpuReset
from drills.faults.pod_kill import PodKill
from drills.model import Fault, Json

PHASES: Json = {"warmup_s": 30.0, "baseline_s": 60.0, "fault_s": 60.0, "recovery_s": 150.0}


def planned(fault: Any, params: Json) -> tuple[Json, list[Fault]]:
    made = fault(fault.Params.model_validate(params), "kubernetes")
    resolved = {"budget_timeout": 30.0, **params}
    return {"phases": PHASES, "experiment": {"faults": [{"params": resolved}]}}, [cast("Fault", made)]


def test_a_helper_outlives_the_deed_and_the_timer_of_a_planned_reset() -> None:
    plan, faults = planned(GpuReset, {"how": "planned", "victims": 1})
    begun_s = PHASES["warmup_s"] + PHASES["baseline_s"]
    left_s = lifetime.run_s(plan, faults) - begun_s
    many = gpu_reset_planned.PlannedReset("gpu-reset", {}, 30.0)._timer_s(gpus=gpu_reset_planned.GPUS, victims=4)
    assert left_s > many
    assert left_s > PHASES["fault_s"] + lifetime.deeds_s(plan, faults) + DEADLINE_SLACK_S
    assert lifetime.deeds_s(plan, faults) >= gpu_reset_planned.deed_s(gpus=8, victims=1)


def test_a_wait_for_a_budget_counts() -> None:
    plan, faults = planned(PodKill, {"how": "evict", "victims": 1})
    assert lifetime.deeds_s(plan, faults) >= 30.0


def test_a_run_without_deeds_is_as_long_as_its_phases() -> None:
    plan: Json = {"phases": PHASES, "experiment": {"faults": []}}
    assert (lifetime.deeds_s(plan, []), lifetime.run_s(plan, [])) == (0.0, 300.0 + lifetime.SLACK_S)
