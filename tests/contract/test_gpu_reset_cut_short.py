"""gpu-reset cut short: a stop, a driver that dies at any step, a deadline; and what recover makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills import receipts
from drills.errors import Stopped
from drills.faults import for_receipt, gpu_deed, gpu_notes
from drills.lab.gpu import state
from drills.model import Context, Receipt, Restored
from drills.probes import gpu_host
from tests.contract.gpu_bench import Bench, Drilled, two_replicas, until


@pytest.fixture(autouse=True)
def _short_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_deed, "QUIET_S", 0.1)


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Bench]:
    with two_replicas(tmp_path) as made:
        yield made


def drilled(on: Bench) -> Drilled:
    return Drilled(on, on.rows["replica-0"])


def uptime_s(on: Bench) -> int:
    return state.uptime_s(on.gpu(0))


def test_a_stop_before_the_reset_is_heeded(on: Bench) -> None:
    drill = drilled(on)
    tell = drill.tell

    def tell_and_stop(event: str, data: dict[str, object]) -> None:
        tell(event, data)
        drill.stop = drill.stop or data.get("step") == "engine.killed"

    drill.ctx.tell = tell_and_stop
    with pytest.raises(Stopped, match="the GPU was not reset"):
        drill.inject()
    assert uptime_s(on) > 80000
    assert drill.receipt is not None
    assert drill.fault.revert(on, drill.receipt, drill.ctx) is Restored.CLEAN


def test_a_stop_during_the_reset_waits_for_its_end(on: Bench) -> None:
    on.set_machine(reset_duration_s=1.5)
    drill = drilled(on)
    tell = drill.tell

    def tell_and_stop(event: str, data: dict[str, object]) -> None:
        tell(event, data)
        drill.stop = drill.stop or data.get("step") == "reset.begin"

    drill.ctx.tell = tell_and_stop
    drill.inject()
    assert drill.step("reset.end")["outcome"] == "ok"
    assert drill.step("device.verified")["ok"] is True


DRIVER = """
import json, os, sys, time
from pathlib import Path
from drills.faults import gpu_deed, gpu_notes, gpu_reset
from drills.lab.gpu import state
from drills.model import Context, Replica
from drills import receipts
from tests.contract.gpu_bench import Bench
folder, rows, receipt, die_at = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
state_file = folder / "gpu" / "state.json"
on = Bench(folder, folder / "bin" / "nvidia-smi", state_file, state.read(state_file)["gpus"])
on.rows = {n: Replica(**{**r, "gpus": tuple(r["gpus"])}) for n, r in rows.items()}
gpu_deed.QUIET_S = 0.1
def tell(event, data):
    if data.get("step", event) == die_at:
        if die_at == "reset.begin":
            gpu_notes.begin(on.host("local"), data["output"][:-4], data["command"], receipt["id"])
        os.kill(os.getpid(), 9)
ctx = Context(tell, time.sleep, time.monotonic, lambda: False, 20)
fault = gpu_reset.GpuReset(gpu_reset.GpuReset.Params(how="crash"), "lab")
fault.inject(on, receipts.from_json(receipt), ctx)
"""


def die(on: Bench, receipt: Receipt, at: str) -> None:
    """Run the injection in a driver of its own that is killed when it tells of that step."""
    rows = json.dumps({n: {**r.__dict__, "labels": {}} for n, r in on.rows.items()})
    argv = [sys.executable, "-c", DRIVER, str(on.folder), rows, json.dumps(receipts.to_json(receipt)), at]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(argv, env=environment, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def recover(on: Bench, receipt: Receipt) -> Restored:
    """Revert from a process that knows the receipt only."""
    ctx = Context(lambda _e, _d: None, time.sleep, time.monotonic, lambda: False)
    return for_receipt(receipt, "lab").revert(on, receipt, ctx)


@pytest.mark.parametrize(
    "at", ["gate.held", "inject.hit", "engine.killed", "holders.gone", "reset.end", "device.verified"]
)
def test_a_driver_that_dies_at_any_step_leaves_what_recover_puts_back(on: Bench, at: str) -> None:
    on.set(0, power_limit_w=500.0)
    receipt = drilled(on).arm()
    die(on, receipt, at)
    assert recover(on, receipt) is Restored.CLEAN
    assert recover(on, receipt) is Restored.CLEAN
    assert (on.gpu(0)["power_limit_w"], on.gpu(0)["persistence"]) == (500.0, True)
    assert (uptime_s(on) < 60) is (at in ("reset.end", "device.verified"))
    assert list((Path(on.state_dir) / "gpu-reset").glob("*")) == []
    gate = on.rows["replica-0"].gate
    assert gate is not None
    assert gpu_host.gate_is_free(on.control_host(), gate) is True


def test_recover_waits_for_a_reset_under_way_and_does_not_repeat_it(on: Bench) -> None:
    on.set_machine(reset_duration_s=2)
    on.set(0, power_limit_w=500.0)
    receipt = drilled(on).arm()
    die(on, receipt, "reset.begin")
    assert uptime_s(on) > 80000  # not ended yet
    assert recover(on, receipt) is Restored.CLEAN
    since = on.gpu(0)["uptime_start_mono"]
    assert (uptime_s(on) < 60, on.gpu(0)["power_limit_w"]) == (True, 500.0)
    assert recover(on, receipt) is Restored.CLEAN
    assert on.gpu(0)["uptime_start_mono"] == since


def test_a_reset_that_was_noted_and_never_started_is_nothing_to_look_at(
    on: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver died between the note and the process."""
    monkeypatch.setattr(gpu_notes, "START_S", 0.1)
    receipt = drilled(on).arm()
    [base] = receipt.prior["bases"].values()
    on.host("local").write(f"{base}.begun", receipt.id)
    assert recover(on, receipt) is Restored.CLEAN
    assert uptime_s(on) > 80000
    assert list((Path(on.state_dir) / "gpu-reset").glob("*")) == []


def test_a_reset_that_comes_up_after_the_undo_does_not_begin(on: Bench) -> None:
    base = on.folder / "late"
    subprocess.run(["/bin/sh", "-c", gpu_notes.RUN_RESET, str(base), "touch", f"{base}.ran"], check=True)
    assert list(on.folder.glob("late*")) == []


def test_a_bad_end_that_no_driver_saw_is_not_called_put_back(on: Bench) -> None:
    state.script_reset(on.state_file, "garbled")
    receipt = drilled(on).arm()
    die(on, receipt, "reset.begin")
    assert recover(on, receipt) is Restored.DIRTY
    assert list((Path(on.state_dir) / "gpu-reset").glob("*.human"))


def test_a_refusal_that_no_driver_saw_is_put_back(on: Bench) -> None:
    state.script_reset(on.state_file, "unsupported_b")
    receipt = drilled(on).arm()
    die(on, receipt, "reset.begin")
    assert recover(on, receipt) is Restored.CLEAN


def test_the_timer_alone_puts_settings_back_and_opens_the_gate(on: Bench) -> None:
    on.set(0, power_limit_w=500.0)
    drill = drilled(on)
    drill.deadline_s = 8.0
    receipt = drill.arm()
    die(on, receipt, "reset.end")
    assert on.gpu(0)["power_limit_w"] == 700.0  # dropped by the reset, and nobody is there
    until(lambda: on.gpu(0)["power_limit_w"] == 500.0, "the timer restores the limit", 30)
    gate = on.rows["replica-0"].gate
    assert gate is not None
    until(lambda: gpu_host.gate_is_free(on.control_host(), gate) is True, "the timer opens the gate")
