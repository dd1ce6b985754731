"""thermal-throttle on real processes and the GPU stand-ins: what it sets, proves, refuses, and puts back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills import receipts
from drills.errors import DrillError, Refused, Stopped, UsageError
from drills.faults import for_receipt, thermal_throttle
from drills.faults.thermal_throttle import ThermalThrottle
from drills.lab.gpu import shim, state
from drills.model import Context, Json, Observation, Receipt, Restored
from tests.contract.gpu_bench import Bench, two_replicas, until

DEADLINE_S = 15.0  # longer than the deed takes on a busy machine
RECEIPT = "abcd0123-0-thermal-throttle"


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Bench]:
    with two_replicas(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thermal_throttle, "PROOF_TIMEOUT_S", 0.0)


class Throttled:
    """One thermal-throttle on a bench, with its journal as a list."""

    def __init__(self, on: Bench, *names: str, how: str = "clocks", to: float = 0.5) -> None:
        self.bench, self.victims = on, [on.rows[name] for name in names or ("replica-0",)]
        self.fault = ThermalThrottle(ThermalThrottle.Params.model_validate({"how": how, "to": to}), "lab")
        self.events: list[tuple[str, Json]] = []
        self.stop = False
        self.ctx = Context(self.tell, time.sleep, time.monotonic, lambda: self.stop)
        self.receipt: Receipt | None = None

    def tell(self, event: str, data: Json) -> None:
        self.events.append((event, data))

    def preflight(self) -> list[str]:
        return self.fault.preflight(self.bench, self.victims)

    def aim(self, deadline_s: float = 60.0) -> Receipt:
        self.receipt = self.fault.aim(self.bench, self.victims, run="abcd0123", receipt=RECEIPT, deadline_s=deadline_s)
        return self.receipt

    def inject(self, deadline_s: float = 60.0) -> Receipt:
        receipt = self.receipt or self.aim(deadline_s)
        self.bench.custody.arm(receipt)
        self.fault.inject(self.bench, receipt, self.ctx)
        return receipt

    def observe(self) -> Observation:
        assert self.receipt is not None
        return self.fault.observe(self.bench, self.receipt, self.ctx)

    def revert(self) -> Restored:
        """Revert as somebody does who has nothing but the receipt's text."""
        assert self.receipt is not None
        receipt = receipts.from_json(receipts.to_json(self.receipt))
        return for_receipt(receipt, "lab").revert(self.bench, receipt, self.ctx)


def settings(on: Bench) -> list[Any]:
    return [(g["locked_clocks_mhz"], g["power_limit_w"], g["persistence"]) for g in state.read(on.state_file)["gpus"]]


def notes(on: Bench) -> list[str]:
    return [path.name for path in Path(on.state_dir).rglob("*.set")]


# ---- on, and off again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("nvml", [False, pytest.param(True, marks=[pytest.mark.cc])])
@pytest.mark.parametrize(("how", "clock_mhz", "reason"), [("clocks", 990, 0x0), ("power", 990, 0x4)])
def test_it_is_proven_by_the_gpu_itself_and_all_of_it_goes_again(
    on: Bench, how: str, clock_mhz: int, reason: int, nvml: bool
) -> None:
    if nvml and (shim.compiler() is None or shim.build_shim(on.folder / "gpu" / "lib") is None):
        pytest.skip("no C compiler, so the lab has no NVML")
    on.nvml_lib = on.folder / "gpu" / "lib" / shim.SONAME if nvml else None
    before = settings(on)
    drill = Throttled(on, how=how)
    assert drill.preflight() == []
    drill.inject()
    seen = drill.observe()
    assert (seen.on, seen.bystanders_ok) == (True, True)
    gpu = seen.evidence[0]
    assert (gpu["gpu"], gpu["sm_clock_mhz"], gpu["event_reasons"]) == (on.gpus[0]["uuid"], clock_mhz, reason)
    assert "none of heat" in gpu["meaning"]
    assert "the chip is not hot" in seen.evidence[-1]["meaning"]
    assert settings(on)[1:] == before[1:]
    for _ in range(2):
        assert drill.revert() is Restored.CLEAN
        assert drill.observe().on is False
    assert settings(on) == before
    assert notes(on) == []


def test_the_journal_has_the_hit_before_the_change_and_the_command_by_uuid(on: Bench) -> None:
    drill = Throttled(on, "replica-0", "replica-1")
    drill.inject()
    assert [event for event, _ in drill.events] == ["inject.hit", "inject.step", "inject.step"]
    first, second = (data for event, data in drill.events if event == "inject.step")
    assert first["command"][-4:] == ["-lgc", "990,990", "-i", on.gpus[0]["uuid"]]
    assert (second["step"], second["ok"], second["gpu"]) == ("clocks.locked", True, on.gpus[1]["uuid"])


def test_a_limit_of_the_site_is_restored_exactly_not_the_default(on: Bench) -> None:
    on.set(0, power_limit_w=512.5)
    drill = Throttled(on, how="power", to=0.4)
    receipt = drill.inject()
    assert on.gpu(0)["power_limit_w"] == 280.0
    assert receipt.prior["caps"][0]["prior"]["power_limit_w"] == 512.5
    assert drill.revert() is Restored.CLEAN
    assert on.gpu(0)["power_limit_w"] == 512.5


def test_a_reset_that_dropped_the_sites_limit_meanwhile_is_made_good(on: Bench) -> None:
    on.set(0, power_limit_w=500.0)
    drill = Throttled(on, how="power", to=0.4)
    drill.inject()
    on.set(0, power_limit_w=700.0)
    assert drill.revert() is Restored.CLEAN
    assert on.gpu(0)["power_limit_w"] == 500.0


def test_a_limit_that_somebody_else_set_meanwhile_is_theirs(on: Bench) -> None:
    drill = Throttled(on, how="power")
    drill.inject()
    on.set(0, power_limit_w=444.0)
    assert drill.revert() is Restored.CLEAN
    assert on.gpu(0)["power_limit_w"] == 444.0


def test_a_lock_of_the_sites_own_is_set_again(on: Bench) -> None:
    on.site_lock_mhz = (210, 1410)
    on.set(0, locked_clocks_mhz=[210, 1410])
    before = settings(on)
    drill = Throttled(on)
    drill.inject()
    assert on.gpu(0)["locked_clocks_mhz"] == [990, 990]
    assert drill.observe().on is True
    for _ in range(2):
        assert drill.revert() is Restored.CLEAN
        assert settings(on) == before


def test_where_nobody_said_whether_clocks_are_locked_only_power_is_capped(on: Bench) -> None:
    on.site_lock_mhz = None
    assert "write `clocks: none` beside it" in only(Throttled(on).preflight())
    assert Throttled(on, how="power").preflight() == []


def test_without_a_deed_nothing_is_undone_not_even_a_lock_that_came_meanwhile(on: Bench) -> None:
    drill = Throttled(on)
    drill.aim()
    on.set(0, locked_clocks_mhz=[300, 600])
    assert drill.revert() is Restored.CLEAN
    assert on.gpu(0)["locked_clocks_mhz"] == [300, 600]


@pytest.mark.parametrize(("how", "lock"), [("clocks", ()), ("clocks", (1410, 1410)), ("power", ())])
def test_the_timer_alone_puts_it_back(on: Bench, how: str, lock: tuple[int, ...]) -> None:
    on.site_lock_mhz = lock
    on.set(0, locked_clocks_mhz=list(lock) or None)
    before = settings(on)
    drill = Throttled(on, how=how)
    drill.inject(deadline_s=DEADLINE_S)
    assert settings(on) != before
    until(lambda: [o.timer_state for o in on.custody.outstanding()] == ["undone"], "the timer has undone it", 60)
    assert settings(on) == before
    assert drill.observe().on is False


def test_a_gpu_that_is_lost_by_then_is_not_called_put_back(on: Bench) -> None:
    drill = Throttled(on)
    drill.inject()
    on.set(0, lost=True)
    assert drill.revert() is Restored.DIRTY
    assert notes(on) != []
    on.set(0, lost=False)
    assert drill.revert() is Restored.CLEAN
    assert notes(on) == []


def test_a_lock_that_does_not_go_is_not_called_put_back(on: Bench) -> None:
    drill = Throttled(on)
    drill.inject()
    deaf = on.smi.read_text().replace("exec ", 'case "$*" in *-rgc*) echo "All done."; exit 0;; esac\nexec ')
    good = on.smi.read_text()
    on.smi.write_text(deaf)
    assert drill.revert() is Restored.DIRTY
    (event, told) = drill.events[-1]
    assert event == "undo.failed"
    assert "drills.access.gpu_clocks" in told["manual"][0]
    on.smi.write_text(good)
    assert drill.revert() is Restored.CLEAN


def test_an_old_nvidia_smi_has_another_name_for_the_reasons(on: Bench) -> None:
    old = on.folder / "old-smi"
    old.write_text(
        '#!/bin/bash\ncase "$*" in *clocks_event_reasons.active*)\n'
        '  echo "Field \\"clocks_event_reasons.active\\" is not a valid field to query."; exit 2;; esac\n'
        f'exec {on.smi} "${{@//clocks_throttle_reasons/clocks_event_reasons}}"\n'
    )
    old.chmod(0o755)
    on.smi = old
    drill = Throttled(on)
    drill.inject()
    assert drill.observe().on is True
    assert drill.revert() is Restored.CLEAN
    assert on.gpu(0)["locked_clocks_mhz"] is None


# ---- what is no proof ------------------------------------------------------------------------------------


def test_a_lock_that_vanished_is_off(on: Bench) -> None:
    drill = Throttled(on)
    drill.inject()
    on.set(0, locked_clocks_mhz=None)
    assert drill.observe().on is False


def test_a_limit_that_is_never_met_proves_nothing(on: Bench) -> None:
    drill = Throttled(on, how="power")
    drill.inject()
    on.set(0, power_default_w=350.0)  # so that the stand-in does not set SwPowerCap
    assert drill.observe().on is None


def test_a_clock_that_is_not_told_proves_nothing(on: Bench) -> None:
    drill = Throttled(on)
    drill.inject()
    on.set(0, event_reasons=None)
    seen = drill.observe()
    assert (seen.on, seen.evidence[0]["capped"]) == (None, None)


def test_another_gpu_that_changed_is_told(on: Bench) -> None:
    drill = Throttled(on)
    drill.inject()
    on.set(1, power_limit_w=300.0)
    assert drill.observe().bystanders_ok is False


def test_one_of_two_is_neither_on_nor_off(on: Bench) -> None:
    drill = Throttled(on, "replica-0", "replica-1")
    drill.inject()
    on.set(1, locked_clocks_mhz=None)
    assert drill.observe().on is None


# ---- refused ---------------------------------------------------------------------------------------------


def only(found: list[str]) -> str:
    assert len(found) == 1, found
    assert "\n" not in found[0]
    return found[0]


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"locked_clocks_mhz": [600, 600]}, "a lock seems to be active already"),
        ({"locked_clocks_mhz": [600, 600], "power_limit_w": 500.0}, "a lock seems to be active already"),
        ({"event_reasons": 0x2}, "application clocks are set, which hold it down already"),
        ({"clock_control": False}, "does not support locked clocks; try `how: power`"),
        ({"event_reasons": 0x20}, "is throttled already (SW thermal): that is an incident, not a drill"),
        ({"event_reasons": 0x48}, "is throttled already (HW slowdown, HW thermal)"),
        ({"event_reasons": None}, "does not tell its clock"),
        ({"mig": True}, "MIG is on: all its instances would be slowed"),
        ({"lost": True}, "is lost"),
        ({"sm_clock_mhz": 900, "event_reasons": 0x4}, "its clock is at 900 MHz already"),
    ],
)
def test_clocks_that_cannot_be_capped_now(on: Bench, gpu: Json, words: str) -> None:
    on.set(0, **gpu)
    before = settings(on)
    drill = Throttled(on)
    assert words in only(drill.preflight())
    with pytest.raises(Refused, match="nothing was touched"):
        drill.aim()
    assert settings(on) == before


@pytest.mark.parametrize(
    ("gpu", "to", "words"),
    [
        ({"power_limit_w": None}, 0.5, "does not support power limits; try `how: clocks`"),
        ({}, 0.2, "below the lowest limit it takes, 200 W"),
        ({"power_limit_w": 300.0}, 0.5, "its limit is 300 W already"),
        ({"locked_clocks_mhz": [600, 600]}, 0.5, "a lock seems to be active already"),
    ],
)
def test_power_that_cannot_be_capped_now(on: Bench, gpu: Json, to: float, words: str) -> None:
    on.set(0, **gpu)
    assert words in only(Throttled(on, how="power", to=to).preflight())


def test_a_clock_below_the_lowest(on: Bench) -> None:
    assert "is below the lowest it has, 210 MHz" in only(Throttled(on, to=0.05).preflight())


def test_not_root(on: Bench) -> None:
    on.set_machine(root=False)
    assert "needs root, and nvidia-smi would run as not root" in only(Throttled(on).preflight())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": ()}, "holds no GPU"),
        ({"gpus": ("0",)}, "is named '0', not by UUID"),
        ({"gpus": ("MIG-1234",)}, "a MIG instance"),
    ],
)
def test_the_victim_as_the_target_describes_it(on: Bench, changes: Any, words: str) -> None:
    on.rows["replica-0"] = replace(on.rows["replica-0"], **changes)
    assert words in only(Throttled(on).preflight())


def test_a_gpu_that_the_victim_does_not_hold(on: Bench) -> None:
    on.rows["replica-0"] = replace(on.rows["replica-0"], gpus=(on.gpus[2]["uuid"],))
    assert "none of its processes holds GPU" in only(Throttled(on).preflight())


def test_a_gpu_that_another_replica_computes_on_too(on: Bench) -> None:
    on.rows["replica-1"] = replace(on.rows["replica-1"], gpus=on.rows["replica-0"].gpus)
    assert "shares GPU" in only(Throttled(on).preflight())


def test_what_changed_since_the_aim(on: Bench) -> None:
    drill = Throttled(on, how="power")
    drill.aim()
    on.set(0, power_limit_w=600.0)
    with pytest.raises(Refused, match=r"its power limit is 600.0 W by now, and was 700.0 W; nothing was touched"):
        drill.inject()
    assert drill.events == []
    assert drill.revert() is Restored.CLEAN
    assert on.gpu(0)["power_limit_w"] == 600.0


def test_a_replica_that_is_another_one_by_now(on: Bench) -> None:
    drill = Throttled(on)
    drill.aim()
    on.rows["replica-0"] = replace(on.rows["replica-0"], uid="another")
    with pytest.raises(Refused, match="no longer the replica"):
        drill.inject()


def test_a_card_that_calls_its_refusal_a_success(on: Bench) -> None:
    drill = Throttled(on)
    drill.aim()
    on.set(0, clock_control=False)
    with pytest.raises(DrillError, match="is not supported"):
        drill.inject()
    assert drill.revert() is Restored.CLEAN


def test_a_stop_between_two_gpus_leaves_the_second_alone(on: Bench) -> None:
    drill = Throttled(on, "replica-0", "replica-1")
    drill.aim()
    drill.stop = True
    with pytest.raises(Stopped, match="after 1 of 2 GPUs"):
        drill.inject()
    assert on.gpu(1)["locked_clocks_mhz"] is None
    assert drill.revert() is Restored.CLEAN
    assert on.gpu(0)["locked_clocks_mhz"] is None


# ---- at plan time ----------------------------------------------------------------------------------------


def test_a_way_must_be_said_for_the_kind_of_target() -> None:
    made = ThermalThrottle.Params.model_validate({"how": {"lab": "clocks", "hosts": "power"}})
    assert (ThermalThrottle(made, "lab").how, ThermalThrottle(made, "hosts").how) == ("clocks", "power")
    with pytest.raises(UsageError, match="nothing said for a target of kind 'kubernetes'"):
        ThermalThrottle(made, "kubernetes")


@pytest.mark.parametrize("to", [0.0, 1.0])
def test_a_share_that_caps_nothing_or_all(to: float) -> None:
    with pytest.raises(ValueError, match="above 0% and below 100%"):
        ThermalThrottle.Params.model_validate({"how": "clocks", "to": to})
