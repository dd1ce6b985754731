"""Every reason to refuse a gpu-reset before anything is touched, against real processes and the stand-ins."""

from __future__ import annotations

import dataclasses
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drills.errors import Refused, UsageError
from drills.faults import FAULTS, gpu_preflight
from drills.faults.gpu_reset import GpuReset
from drills.lab.gpu import state
from drills.model import Json, Replica
from drills.probes import gpu_host
from tests.contract.gpu_bench import Bench, Drilled, two_replicas


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Bench]:
    with two_replicas(tmp_path) as made:
        yield made


def reasons(on: Bench, **changes: Any) -> list[str]:
    before = state.read(on.state_file)
    found = Drilled(on, dataclasses.replace(on.rows["replica-0"], **changes)).preflight()
    after = state.read(on.state_file)
    assert [_settings(g) for g in before["gpus"]] == [_settings(g) for g in after["gpus"]]  # read only
    return found


def _settings(gpu: Json) -> Json:
    return {k: v for k, v in gpu.items() if k != "seen"}


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    assert "\n" not in found[0]
    return found[0]


def test_a_healthy_gpu_held_by_its_own_replica_is_no_reason(on: Bench) -> None:
    assert reasons(on) == []


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"mig": True}, "MIG is on"),
        ({"display_active": True}, "a display is active"),
        ({"display_active": None}, "a display is not known to be off"),
        ({"recovery_action": 1}, "asks for a recovery action already (Reset)"),
        ({"recovery_action": 2}, "asks for a recovery action already (Reboot)"),
        ({"recovery_action": None}, "does not tell the recovery action"),
        ({"fabric": "not_started"}, "NVLink fabric is not_started"),
        ({"locked_clocks_mhz": [600, 600]}, "a lock seems to be active already, and none is declared"),
        (
            {"app_clock_mhz": 1410},
            "its application clocks are set to 1410 MHz (1980 by default), which a reset would drop",
        ),
        ({"lost": True}, "is lost"),
    ],
)
def test_the_state_of_the_gpu(on: Bench, gpu: Json, words: str) -> None:
    on.set(0, **gpu)
    assert words in only(reasons(on))


def test_the_state_of_another_gpu_is_no_reason(on: Bench) -> None:
    on.set(1, mig=True, recovery_action=1, fabric="not_started")
    on.set(2, lost=True)
    assert reasons(on) == []


@pytest.mark.parametrize(
    ("machine", "words"), [({"root": False}, "needs root"), ({"conf_compute": True}, "confidential computing is on")]
)
def test_the_state_of_the_machine(on: Bench, machine: Json, words: str) -> None:
    on.set_machine(**machine)
    assert words in only(reasons(on))


def test_mps_clients(on: Bench) -> None:
    on.set(0, mps_clients=[on.rows["replica-0"].engine_pid])
    server = on.hold(0, "nvidia-cuda-mps-server")
    found = reasons(on)
    assert any("is shared through MPS" in r for r in found)
    assert any(f"pid {server.pid} (nvidia-cuda-mps-server" in r for r in found)


def test_a_stranger_is_named(on: Bench) -> None:
    stranger = on.hold(0, "dcgm-exporter")
    sentence = only(reasons(on))
    assert f"pid {stranger.pid} (dcgm-exporter" in sentence
    assert on.gpus[0]["device"] in sentence


def test_a_stranger_on_another_gpu_is_no_reason(on: Bench) -> None:
    on.hold(1)
    assert reasons(on) == []


def test_a_gpu_that_its_replica_does_not_hold(on: Bench) -> None:
    """It is declared wrongly: the engine would be killed, and another GPU reset."""
    uuids = tuple(gpu["uuid"] for gpu in on.gpus)
    assert f"none of its processes holds GPU {uuids[2]} (nobody has it open)" in only(reasons(on, gpus=uuids[2:]))
    assert f"holds GPU {uuids[2]}" in only(reasons(on, gpus=(uuids[0], uuids[2])))
    stranger, mine = reasons(on, gpus=uuids[1:2])
    other = on.rows["replica-1"].engine_pid
    assert f"pid {other} " in stranger
    assert f"none of its processes holds GPU {uuids[1]} (pid {other} " in mine


def test_the_persistence_daemon_is_no_stranger(on: Bench) -> None:
    on.hold(0, "/usr/bin/nvidia-persistenced")
    assert reasons(on) == []


def test_a_worker_below_the_engine_is_the_victims_and_the_other_replica_is_not(on: Bench) -> None:
    replica = on.rows["replica-0"]
    assert reasons(on, engine_pid=replica.pid, engine_start=replica.pid_start) == []  # known by its parent alone
    other = on.start_replica("replica-2", 0)
    assert f"pid {other.engine_pid} " in only(reasons(on))


def test_a_holder_that_cannot_be_killed(on: Bench) -> None:
    replica = on.rows["replica-0"]
    holder = gpu_host.holders(on, "local", [on.gpus[0]["uuid"]])[0]
    assert list(gpu_preflight.of_holders([holder], [replica])) == []
    assert "stuck in the kernel (state D): it cannot be killed" in only(
        list(gpu_preflight.of_holders([{**holder, "state": "D"}], [replica]))
    )


def test_a_gate_that_somebody_else_holds(on: Bench) -> None:
    gate = on.rows["replica-0"].gate
    assert gate is not None
    with Path(gate).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is locked by somebody else" in only(reasons(on))
    assert reasons(on) == []


def test_real_trouble_in_the_kernel_log(on: Bench) -> None:
    uuid = on.gpus[0]["uuid"]
    state.inject_xid(on.state_file, uuid, 13)
    state.inject_xid(on.state_file, uuid, 45)
    assert reasons(on) == []  # software's faults, and what drills leave behind
    state.inject_xid(on.state_file, uuid, 48)
    assert "holds Xid 48" in only(reasons(on))


def test_trouble_from_before_the_last_reset_is_over(on: Bench) -> None:
    state.inject_xid(on.state_file, on.gpus[0]["uuid"], 48)
    on.set(0, uptime_start_mono=time.monotonic() + 5)
    assert reasons(on) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": ()}, "holds no GPU"),
        ({"gpus": ("0",)}, "its GPU is named '0', not by UUID"),
        ({"gpus": ("MIG-1234",)}, "a MIG instance"),
        ({"engine_pid": None}, "its server and engine processes are not known"),
        ({"gate": None}, "its restart waits for no gate"),
    ],
)
def test_the_victim_as_the_target_describes_it(on: Bench, changes: Json, words: str) -> None:
    assert words in only(reasons(on, **changes))


def test_victims_on_several_hosts(on: Bench) -> None:
    away = dataclasses.replace(on.rows["replica-1"], host="gpu-2")
    assert "on several hosts" in only(Drilled(on, on.rows["replica-0"], away).preflight())


def test_a_gpu_that_was_never_there(on: Bench) -> None:
    found = reasons(on, gpus=("GPU-00000000-0000-0000-0000-000000000000",))
    assert any("was never in this machine" in r for r in found)


def test_no_nvidia_smi_at_all(on: Bench) -> None:
    on.smi.unlink()
    assert any("neither NVML nor nvidia-smi answers" in r for r in reasons(on))


def test_several_reasons_are_all_said(on: Bench) -> None:
    on.set(0, mig=True, display_active=True)
    on.set_machine(root=False)
    on.hold(0)
    assert len(reasons(on)) == 4


def test_aim_looks_again_and_changes_nothing(on: Bench) -> None:
    drill = Drilled(on, on.rows["replica-0"])
    on.set(0, recovery_action=1)
    with pytest.raises(Refused, match=r"recovery action already .*nothing was touched"):
        drill.aim()
    on.set(0, recovery_action=0, power_limit_w=500.0)
    receipt = drill.aim()
    prior = receipt.prior["machine"]["gpus"][on.gpus[0]["uuid"]]
    assert (prior["power_limit_w"], prior["persistence"], receipt.prior["machine"]["boot_id"]) == (
        500.0,
        True,
        state.boot_id(),
    )
    assert prior["uptime_s"] > 80000
    assert receipt.holds == (on.rows["replica-0"].gate,)
    assert list(Path(on.state_dir).iterdir()) == []


# ---- at plan time ----------------------------------------------------------------------------------------


def params(how: object) -> GpuReset.Params:
    return GpuReset.Params.model_validate({"how": how})


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("planned", "lab", "how: planned is not for a target of kind 'lab'; use crash"),
        ("crash", "kubernetes", "how: crash is not for a target of kind 'kubernetes'; use planned"),
        ({"hosts": "crash"}, "lab", "nothing said for a target of kind 'lab'"),
    ],
)
def test_a_way_that_is_not_for_the_target_is_said_at_plan_time(how: object, kind: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        GpuReset(params(how), kind)


def test_a_map_serves_the_lab(on: Bench) -> None:
    make: Callable[..., GpuReset] = FAULTS["gpu-reset"]
    fault = make(params({"lab": "crash", "kubernetes": "planned"}), "lab")
    assert (fault.how, fault.needs(), fault.held) == ("crash", frozenset({"HasGpus"}), False)
    victims: list[Replica] = [on.rows["replica-0"]]
    receipt = fault.aim(on, victims, run="r", receipt="r-0", deadline_s=60)
    assert GpuReset(GpuReset.Params.model_validate(receipt.params), "lab").how == "crash"
