"""What the doctor makes of a unit: whether it has to come back, and its engine to be known, goes by the drill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drills.doctor import hosts
from drills.doctor.finding import Finding, State
from drills.faults.engine_kill import EngineKill
from drills.faults.gpu_reset import GpuReset
from drills.faults.noop import Noop
from drills.faults.pod_kill import PodKill
from drills.hosts.machines import Machine
from drills.hosts.units import Seen

RUNS = Seen("vllm.service", "loaded", "active", "running", "aa11", 0, "always", None, (32, 700), (33, 710))
CONTAINER = replace(RUNS, engine=None)
KILL: Any = PodKill(PodKill.Params(how="kill-process"), "hosts")
CRASH: Any = GpuReset(GpuReset.Params(how="crash"), "hosts")
PLANNED: Any = GpuReset(GpuReset.Params(how="planned"), "hosts")
ENGINE: Any = EngineKill(EngineKill.Params(), "hosts")
NOTHING: Any = Noop(Noop.Params(), "hosts")


def found(seen: Seen, *faults: Any) -> list[Finding]:
    nobody: Any = None
    machine = Machine("g1", ("g1",), (), host=nobody)
    return list(hosts._unit(machine, "g1", seen, faults))


@pytest.mark.parametrize("fault", [KILL, CRASH, PLANNED, ENGINE, NOTHING])
def test_a_unit_that_is_as_it_should_be_serves_any_drill(fault: Any) -> None:
    [one] = found(RUNS, fault)
    assert (one.state, one.text) == (State.OK, "runs, and systemd starts it again (Restart=always)")


@pytest.mark.parametrize(
    ("policy", "fault", "refuses", "why"),
    [
        ("no", KILL, True, "a server that is killed ends by a signal"),
        ("on-success", KILL, True, "a server that is killed ends by a signal"),
        ("on-failure", KILL, False, "a server whose engine dies ends with status 0"),
        ("on-failure", CRASH, True, "a server whose engine dies ends with status 0"),
        ("on-success", CRASH, True, "a start that waits at a gate may run out of time"),
        ("no", PLANNED, False, "a server whose engine dies ends with status 0"),
        ("no", ENGINE, False, "a server whose engine dies ends with status 0"),  # what that drill is to show
        ("no", NOTHING, False, "a server whose engine dies ends with status 0"),
    ],
)
def test_whether_a_policy_is_in_the_way_goes_by_the_drill(policy: str, fault: Any, refuses: bool, why: str) -> None:
    [one] = found(replace(RUNS, policy=policy), fault)
    assert (one.state, one.refuses) == (State.MISSING, refuses)
    assert one.text == f"has Restart={policy}: {why}, and stays down"
    assert one.fix[0] == "on g1: systemctl edit vllm.service"


@pytest.mark.parametrize(
    ("fault", "refuses"), [(KILL, True), (ENGINE, True), (CRASH, True), (PLANNED, True), (NOTHING, False)]
)
def test_a_unit_that_only_starts_a_container_has_no_engine_to_do_anything_to(fault: Any, refuses: bool) -> None:
    one = found(CONTAINER, fault)[-1]
    assert "no process VLLM::EngineCore is below its main process" in one.text
    assert one.refuses is refuses


@pytest.mark.parametrize(("fault", "refuses"), [(KILL, False), (ENGINE, True), (CRASH, True)])
def test_of_several_engines_all_can_be_killed_and_no_single_one(fault: Any, refuses: bool) -> None:
    one = found(replace(CONTAINER, several=True), fault)[-1]
    assert "several processes VLLM::EngineCore" in one.text
    assert one.refuses is refuses


def test_a_unit_that_does_not_run_is_all_that_is_said_of_it() -> None:
    [one] = found(replace(CONTAINER, main=None, active="failed", sub="failed", policy="no"), KILL)
    assert (one.text, one.refuses) == ("is failed (failed)", True)
