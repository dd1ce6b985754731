"""gpu-reset end to end on real processes: the order of its steps, its proof, every bad end, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drills import receipts
from drills.errors import DrillError, NotRestored, Refused
from drills.faults import for_receipt, gpu_deed
from drills.lab.gpu import shim, state
from drills.model import Restored
from drills.probes import gpu_host
from tests.contract.gpu_bench import Bench, Drilled, two_replicas

STEPS = [
    "gate.held",
    "engine.killed",
    "holders.gone",
    "reset.begin",
    "reset.end",
    "device.verified",
    "settings.restored",
]
STUBBORN = """
import signal, subprocess, sys, time
engine = subprocess.Popen([sys.executable, "-c", sys.argv[1], "engine", *sys.argv[2:]], stdout=subprocess.PIPE)
engine.stdout.readline()
print(engine.pid, flush=True)
time.sleep(120)
"""
WITH_ORPHAN = """
import subprocess, sys
engine = subprocess.Popen(
    [sys.executable, "-c",
     "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True).wait()",
     sys.argv[1], "worker", *sys.argv[2:]], stdout=subprocess.PIPE)
engine.stdout.readline()
print(engine.pid, flush=True)
engine.wait()
"""


@pytest.fixture(autouse=True)
def _short_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_deed, "QUIET_S", 0.1)


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Bench]:
    with two_replicas(tmp_path) as made:
        yield made


def drilled(on: Bench, *names: str, timeout_s: float = 20) -> Drilled:
    return Drilled(on, *(on.rows[n] for n in names or ("replica-0",)), timeout_s=timeout_s)


def uptime_s(on: Bench, index: int = 0) -> int:
    return state.uptime_s(on.gpu(index))


# ---- the good way ----------------------------------------------------------------------------------------


def test_the_steps_in_order_with_the_proof_at_the_end(on: Bench) -> None:
    drill = drilled(on)
    drill.inject()
    names = [data["step"] if event == "inject.step" else event for event, data in drill.events]
    assert names == ["gate.held", "inject.hit", *STEPS[1:]]
    uuid = on.gpus[0]["uuid"]
    assert drill.step("reset.begin")["command"][-2:] == ["-i", uuid]
    end, verified = drill.step("reset.end"), drill.step("device.verified")
    assert (end["outcome"], end["rc"], end["ok"]) == ("ok", 0, True)
    assert "successfully reset" in end["text"]
    assert (verified["ok"], verified["uuid"], verified["boot_id"]) == (True, uuid, state.boot_id())
    assert verified["uptime_s"] <= verified["elapsed_s"] + 1 < verified["uptime_before_s"]
    assert on.rows["replica-1"].engine_pid in [h["pid"] for h in gpu_host.holders(on, "local", [on.gpus[1]["uuid"]])]


def test_proof_on_then_revert_then_proof_off_and_all_twice(on: Bench) -> None:
    drill = drilled(on)
    drill.inject()
    assert drill.receipt is not None
    seen = drill.fault.observe(on, drill.receipt, drill.ctx)
    assert (seen.on, seen.bystanders_ok) == (True, True)
    assert [e["what"] for e in seen.evidence] == ["reset", "engine of the victim"]
    assert seen.evidence[0]["meaning"] == "its uptime restarted"
    since = on.gpu(0)["uptime_start_mono"]
    for _ in range(2):
        assert drill.fault.revert(on, drill.receipt, drill.ctx) is Restored.CLEAN
        assert drill.fault.observe(on, drill.receipt, drill.ctx).on is False
    assert on.gpu(0)["uptime_start_mono"] == since  # no revert ever resets
    assert list((Path(on.state_dir) / "gpu-reset").iterdir()) == []


def test_the_gate_keeps_restarts_out_until_revert(on: Bench) -> None:
    drill = drilled(on)
    drill.inject()
    gate = on.rows["replica-0"].gate
    assert gate is not None
    assert gpu_host.gate_is_free(on.control_host(), gate) is False
    assert drill.receipt is not None
    drill.fault.revert(on, drill.receipt, drill.ctx)
    assert gpu_host.gate_is_free(on.control_host(), gate) is True


def test_a_bystander_that_changed_is_told(on: Bench) -> None:
    drill = drilled(on)
    drill.inject()
    on.rows["replica-1"] = replace(on.rows["replica-1"], restarts=1)
    assert drill.receipt is not None
    assert drill.fault.observe(on, drill.receipt, drill.ctx).bystanders_ok is False


def test_two_victims_are_reset_each_by_its_own_command(on: Bench) -> None:
    drill = drilled(on, "replica-0", "replica-1")
    drill.inject()
    assert drill.steps() == ["gate.held", "engine.killed", "engine.killed", "holders.gone", *STEPS[3:], *STEPS[3:]]
    assert max(uptime_s(on, 0), uptime_s(on, 1)) < 60 < uptime_s(on, 2)


def test_settings_that_the_reset_drops_are_put_back(on: Bench) -> None:
    on.set(0, power_limit_w=500.0)
    drill = drilled(on)
    drill.inject()
    assert drill.step("settings.restored")["ok"] is True
    assert on.gpu(0)["power_limit_w"] == 500.0


def test_a_setting_that_somebody_changed_meanwhile_is_left_alone(on: Bench) -> None:
    on.set(0, power_limit_w=500.0)
    drill = drilled(on)
    drill.inject()
    on.set(0, power_limit_w=400.0)
    assert drill.receipt is not None
    assert drill.fault.revert(on, drill.receipt, drill.ctx) is Restored.CLEAN
    assert on.gpu(0)["power_limit_w"] == 400.0


def test_persistence_that_is_in_the_way_is_suspended_and_put_back(on: Bench) -> None:
    on.set_machine(persistence_socket=False)
    drill = drilled(on)
    drill.inject()
    attempt = ["reset.begin", "reset.end"]
    assert drill.steps() == [*STEPS[:3], *attempt, "persistence.off", *attempt, *STEPS[5:]]
    assert drill.step("device.verified")["ok"] is True
    assert on.gpu(0)["persistence"] is True


@pytest.mark.cc
@pytest.mark.skipif(shim.compiler() is None, reason="no C compiler, so the lab has no NVML")
@pytest.mark.parametrize(("old_driver", "proven"), [(False, True), (True, None)])
def test_with_nvml_the_uptime_is_the_drivers_and_without_it_nothing_is_claimed(
    on: Bench, old_driver: bool, proven: bool | None
) -> None:
    on.nvml_lib = shim.build_shim(on.folder / "gpu" / "lib", old_driver=old_driver)
    drill = drilled(on)
    assert drill.preflight() == []
    drill.inject()
    verified = drill.step("device.verified")
    assert (verified["source"], verified["ok"]) == ("nvml", proven)
    assert drill.receipt is not None
    seen = drill.fault.observe(on, drill.receipt, drill.ctx)
    assert seen.on is proven
    assert ("not independently proven" in seen.evidence[0]["meaning"]) is old_driver


# ---- refused before the deed -----------------------------------------------------------------------------


def untouched(on: Bench, drill: Drilled) -> bool:
    replica = on.rows["replica-0"]
    alive = on.control_host().alive(replica.engine_pid or 0, replica.engine_start or 0)
    return alive and not any(event == "inject.hit" for event, _ in drill.events) and uptime_s(on) > 80000


def test_without_the_gate_nothing_is_touched(on: Bench) -> None:
    drill = drilled(on)
    drill.aim()  # and no timer armed
    with pytest.raises(Refused, match=r"gate .* is not held by the on-target timer; nothing was touched"):
        drill.inject()
    assert untouched(on, drill)


def test_a_stranger_that_came_after_the_aim(on: Bench) -> None:
    drill = drilled(on)
    drill.arm()
    stranger = on.hold(0)
    with pytest.raises(Refused, match=f"pid {stranger.pid} .*nothing was touched"):
        drill.inject()
    assert untouched(on, drill)


def test_a_replica_that_is_another_one_by_now(on: Bench) -> None:
    drill = drilled(on)
    drill.arm()
    on.rows["replica-0"] = replace(on.rows["replica-0"], uid="another")
    with pytest.raises(Refused, match="no longer the replica"):
        drill.inject()
    assert untouched(on, drill)


def test_a_reset_that_was_begun_is_never_begun_again(on: Bench) -> None:
    drill = drilled(on)
    drill.inject()
    since = on.gpu(0)["uptime_start_mono"]
    with pytest.raises(Refused, match="never repeated"):
        drill.inject()
    assert on.gpu(0)["uptime_start_mono"] == since


# ---- after the kill --------------------------------------------------------------------------------------


def test_with_the_stop_step_removed_the_reset_is_refused(on: Bench) -> None:
    """The engine lives: whoever resets now is told that it is in use."""
    done = on.nvidia("--gpu-reset", "-i", on.gpus[0]["uuid"])
    assert (done.returncode, "In use by another client" in done.stdout) == (255, True)


def test_a_server_that_stays_keeps_the_gpu_from_being_reset(on: Bench) -> None:
    on.start_replica("stubborn", 2, server=STUBBORN)
    drill = drilled(on, "stubborn", timeout_s=1)
    with pytest.raises(DrillError, match=r"not reset: still there after the engine was killed: server of stubborn"):
        drill.inject()
    assert drill.step("holders.gone")["ok"] is False
    assert "reset.begin" not in drill.steps()


def test_an_orphan_that_keeps_the_gpu_is_named_and_not_killed(on: Bench) -> None:
    on.start_replica("orphaned", 2, server=WITH_ORPHAN)
    (worker,) = gpu_host.holders(on, "local", [on.gpus[2]["uuid"]])
    drill = drilled(on, "orphaned", timeout_s=1)
    try:
        with pytest.raises(DrillError, match=f"still there .*pid {worker['pid']} "):
            drill.inject()
        assert on.control_host().alive(worker["pid"], worker["start"])
        assert "reset.begin" not in drill.steps()
    finally:
        on.control_host().signal(worker["pid"], worker["start"], "KILL")


def test_a_holder_that_comes_in_the_last_moment_is_seen(on: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_deed, "QUIET_S", 1.0)
    drill = drilled(on)
    tell = drill.tell

    def tell_and_hold(event: str, data: dict[str, object]) -> None:
        tell(event, data)
        if data.get("step") == "holders.gone":
            on.hold(0)

    drill.ctx.tell = tell_and_hold
    with pytest.raises(DrillError, match=r"not reset: pid .* though all had let go"):
        drill.inject()
    assert uptime_s(on) > 80000


def test_a_clock_lock_of_the_sites_own_is_set_again(on: Bench) -> None:
    on.site_lock_mhz = (210, 1410)
    on.set(0, locked_clocks_mhz=[210, 1410])
    drill = drilled(on)
    assert drill.preflight() == []
    drill.inject()
    assert on.gpu(0)["locked_clocks_mhz"] == [210, 1410]  # before the replica is let in
    on.set(0, locked_clocks_mhz=None)
    assert drill.receipt is not None
    assert drill.fault.revert(on, drill.receipt, drill.ctx) is Restored.CLEAN
    assert on.gpu(0)["locked_clocks_mhz"] == [210, 1410]


# ---- every documented end of a reset ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "outcome", "begun"),
    [
        ("in_use", "in_use", 2),  # harmless, so it is tried once more
        ("in_use_old", "in_use_old", 2),
        ("unsupported_a", "unsupported_a", 1),
        ("unsupported_b", "unsupported_b", 1),
        ("blocked", "blocked", 1),
        ("no_permission", "no_permission", 1),
    ],
)
def test_a_harmless_end_is_reported_and_never_passes_for_a_reset(
    on: Bench, mode: str, outcome: str, begun: int
) -> None:
    state.script_reset(on.state_file, mode)
    drill = drilled(on)
    drill.inject()
    assert drill.steps().count("reset.begin") == begun
    assert drill.receipt is not None
    seen = drill.fault.observe(on, drill.receipt, drill.ctx)
    assert seen.on is False
    assert seen.evidence[0]["outcome"] == outcome
    assert drill.fault.revert(on, drill.receipt, drill.ctx) is Restored.CLEAN


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("lost", "ended as 'lost'"),
        ("garbled", "ended as 'unknown'"),
        ("needs_recovery", "recovery action is Reset, not None"),
        ("vanishes", "2 GPUs are there, 3 were"),
        ("no_effect", "said success, but the GPU's uptime went on"),
    ],
)
def test_an_end_that_needs_a_person_is_not_called_put_back(on: Bench, mode: str, words: str) -> None:
    state.script_reset(on.state_file, mode)
    drill = drilled(on)
    with pytest.raises(NotRestored) as caught:
        drill.inject()
    sentence = str(caught.value)
    assert words in sentence
    assert on.gpus[0]["uuid"] in sentence
    assert "drill recover" in sentence
    assert "\n" not in sentence
    assert drill.steps().count("reset.begin") == 1  # never repeated
    assert drill.receipt is not None
    assert drill.fault.revert(on, drill.receipt, drill.ctx) is Restored.DIRTY


def test_once_a_person_has_looked_recover_is_clean(on: Bench) -> None:
    state.script_reset(on.state_file, "garbled")
    drill = drilled(on)
    with pytest.raises(NotRestored) as caught:
        drill.inject()
    note = str(caught.value).split("rm ")[1].split(",")[0]
    Path(note).unlink()
    assert drill.receipt is not None
    again = for_receipt(receipts.from_json(receipts.to_json(drill.receipt)), "lab")
    assert again.revert(on, drill.receipt, drill.ctx) is Restored.CLEAN


def test_a_hang_that_ignores_term_is_a_timeout(on: Bench) -> None:
    state.script_reset(on.state_file, "hang")
    drill = drilled(on, timeout_s=1)
    with pytest.raises(NotRestored, match="ended as 'timeout'"):
        drill.inject()
    assert drill.step("reset.end")["rc"] == 137
    assert drill.receipt is not None
    assert drill.fault.revert(on, drill.receipt, drill.ctx) is Restored.DIRTY


def test_a_boot_in_between_is_no_proof(on: Bench) -> None:
    drill = drilled(on)
    receipt = drill.aim()
    drill.receipt = replace(receipt, prior={**receipt.prior, "machine": {**receipt.prior["machine"], "boot_id": "old"}})
    drill.arm()
    with pytest.raises(NotRestored, match="the machine was rebooted meanwhile"):
        drill.inject()
    assert drill.fault.observe(on, drill.receipt, drill.ctx).on is False
