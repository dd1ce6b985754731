"""What every fault promises, by one row for each way of doing it, on a real lab.

A fault that is added gets a row here; without one the last test fails.
"""

from __future__ import annotations

import itertools
import json
import secrets
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from drills import receipts
from drills.access import procs
from drills.access.local import LocalHost
from drills.active import ActiveFaults
from drills.clock import Clock
from drills.errors import Refused, Stopped
from drills.faults import FAULTS, for_receipt, gpu_deed
from drills.lab import target as lab_target
from drills.lab.client import Control, Lab
from drills.lab.gpu import state as gpu_state
from drills.lab.target import LabTarget
from drills.model import Context, Fault, Json, Receipt, Replica, Restored
from tests.lab import labs, traces
from tests.lab.drilling import Driller

pytestmark = pytest.mark.lab
HOST = LocalHost()
#: The closed set: nothing else can stand in a receipt.
UNDO_STEPS = {"remove", "signal", "run", "write", "unrule", "unchain"}


def marker_is_there(lab: Lab, receipt: Receipt) -> bool:
    return any(traces.state_dir(lab).glob("*.marker"))


def processes_are_gone(lab: Lab, receipt: Receipt) -> bool:
    alive = [HOST.alive(v[pid], v[s]) for v in receipt.victims for pid, s in PROCESSES]
    return not any(alive)


def gpu_was_reset(lab: Lab, receipt: Receipt) -> bool:
    [victim] = receipt.victims
    [gpu] = [g for g in traces.gpus(lab) if g["uuid"] in victim["gpus"]]
    return processes_are_gone(lab, receipt) and gpu_state.uptime_s(gpu) < 60


def engine_is_gone(lab: Lab, receipt: Receipt) -> bool:
    return not any(HOST.alive(v["engine_pid"], v["engine_start"]) for v in receipt.victims)


def engine_is_stopped(lab: Lab, receipt: Receipt) -> bool:
    stats = [procs.stat(v["engine_pid"]) for v in receipt.victims]
    return all(stat is not None and stat[0] == "T" for stat in stats)


def answers_are_late(lab: Lab, receipt: Receipt) -> bool:
    rows = {r["name"]: r for r in lab.control().status()["replicas"]}
    began = time.monotonic()
    for victim in receipt.victims:
        with urllib.request.urlopen(f"{rows[victim['name']]['proxy']}/version", timeout=10) as answer:
            answer.read()
    due_s: float = receipt.params["delay"] * len(receipt.victims)
    return time.monotonic() - began >= due_s


def link_is(how: str) -> Callable[[Lab, Receipt], bool]:
    """Seen from the router; whoever looks after the replica past the router still reaches it."""

    def look(lab: Lab, receipt: Receipt) -> bool:
        names = [v["name"] for v in receipt.victims]
        ways = {(traces.link(lab, name), traces.link(lab, name, "main")) for name in names}
        return ways == {(how, "open")}

    return look


def packets_are_lost(lab: Lab, receipt: Receipt) -> bool:
    """By the counters of the rules that drop, asked for in the words of the program."""
    [victim] = receipt.victims
    argv = [*traces.namespaces(lab)[victim["name"]], "iptables", "-nvxL"]
    rows = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    return sum(int(row.split()[0]) for row in rows if " DROP " in row and receipt.run in row) > 0


def gpu_is_capped(lab: Lab, receipt: Receipt) -> bool:
    """Below half its clock, and for no reason of heat."""
    uuids = [gpu for v in receipt.victims for gpu in v["gpus"]]
    mine = [g for g in traces.gpus(lab) if g["uuid"] in uuids]
    slow = [gpu_state.sm_clock_mhz(g) <= 0.5 * g["sm_clock_max_mhz"] for g in mine]
    return bool(slow) and all(slow) and not any(g["event_reasons"] & ~1 for g in mine)


PROCESSES = (("pid", "pid_start"), ("engine_pid", "engine_start"))


@dataclass(frozen=True)
class Row:
    """One way of doing a fault: `bites` sees its effect without the fault's own word for it."""

    fault: str
    params: Json
    bites: Callable[[Lab, Receipt], bool]
    deadline_s: float = 2.0  # of the test of the timer: longer than the deed takes

    def make(self) -> Fault:
        made: Any = FAULTS[self.fault]
        fault: Fault = made(made.Params.model_validate(self.params), "lab")
        return fault

    def __str__(self) -> str:
        return "-".join([self.fault, *map(str, self.params.values())])


ROWS = [
    Row("noop", {}, marker_is_there),
    Row("pod-kill", {"how": "delete"}, processes_are_gone),
    Row("pod-kill", {"how": "delete-now"}, processes_are_gone),
    Row("pod-kill", {"how": "kill-process"}, processes_are_gone),
    Row("gpu-reset", {"how": "crash"}, gpu_was_reset, deadline_s=15.0),
    Row("engine-kill", {}, engine_is_gone),
    Row("engine-hang", {}, engine_is_stopped),
    Row("thermal-throttle", {"how": "clocks", "to": 0.5}, gpu_is_capped, deadline_s=15.0),
    Row("thermal-throttle", {"how": "power", "to": 0.4}, gpu_is_capped, deadline_s=15.0),
    Row("upstream-delay", {"mode": "first_byte", "delay": 1.0}, answers_are_late, deadline_s=4.0),
    Row("packet-loss", {"mode": "reject", "iptables": "nft"}, link_is("refused")),
    Row("packet-loss", {"mode": "reject", "iptables": "legacy"}, link_is("refused")),
    Row("packet-loss", {"mode": "blackhole", "iptables": "nft"}, link_is("silent"), deadline_s=3.0),
    Row("packet-loss", {"mode": "blackhole", "iptables": "legacy"}, link_is("silent"), deadline_s=3.0),
    Row("packet-loss", {"mode": "loss", "loss": 0.5}, packets_are_lost, deadline_s=6.0),
]
NEEDS_ROOT = (pytest.mark.root,)
each_row = pytest.mark.parametrize(
    "row", [pytest.param(r, marks=NEEDS_ROOT if r.fault == "packet-loss" else ()) for r in ROWS], ids=str
)


class Died(BaseException):
    """The driver goes no further."""


class Deed:
    """One fault on the shared lab, from aim to undo, as a driver that may die goes through it."""

    def __init__(self, row: Row, lab: Lab, target: LabTarget, *victims: str) -> None:
        self.row, self.lab, self.target, self.fault = row, lab, target, row.make()
        self.run = secrets.token_hex(4)
        self.victims = [self.replica(name) for name in victims]
        self.events: list[str] = []
        self.stop = False

    def replica(self, name: str) -> Replica:
        return next(r for r in self.target.replicas() if r.name == name)

    @property
    def context(self) -> Context:
        return Context(self.tell, time.sleep, time.monotonic, lambda: self.stop, 30.0)

    def tell(self, event: str, data: Json) -> None:
        self.events.append(event)

    def aim(self, deadline_s: float = 60.0) -> Receipt:
        name = f"{self.run}-0-{self.row.fault}"
        return self.fault.aim(self.target, self.victims, run=self.run, receipt=name, deadline_s=deadline_s)

    def arm(self, receipt: Receipt) -> None:
        self.target.custody.arm(receipt)

    def inject(self, receipt: Receipt) -> None:
        self.fault.inject(self.target, receipt, self.context)

    def revert(self, receipt: Receipt) -> Restored:
        """Revert as somebody does who knows the receipt only."""
        return for_receipt(receipt, "lab").revert(self.target, receipt, self.context)

    def disarm(self, receipt: Receipt) -> bool:
        return self.target.custody.disarm(receipt)

    def others(self) -> dict[str, tuple[object, ...]]:
        names = [v.name for v in self.victims]
        return {n: i for n, i in traces.identities(self.lab).items() if n not in names}

    def other_resets(self) -> dict[str, float]:
        theirs = [gpu for v in self.victims for gpu in v.gpus]
        return {uuid: at for uuid, at in traces.resets(self.lab).items() if uuid not in theirs}


@pytest.fixture(autouse=True)
def _settings_worth_restoring(lab: Lab, control: Control, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Power limits that a reset would drop; nothing of a drill before the test, nothing after it."""
    monkeypatch.setattr(gpu_deed, "QUIET_S", 0.1)
    _limit(lab, 500.0)
    before = traces.settings(lab)
    assert traces.left_behind(lab) == []
    yield
    labs.eventually(lambda: labs.all_ready(control), 30)
    after, left = traces.settings(lab), traces.left_behind(lab)
    custody = lab_target.custody(lab.dir)
    for one in custody.outstanding():  # of a test that failed
        custody.undo(one.receipt)
        custody.disarm(one.receipt)
    shutil.rmtree(traces.state_dir(lab), ignore_errors=True)
    _limit(lab, 700.0)
    assert (after, left) == (before, [])


def _limit(lab: Lab, watts: float) -> None:
    for gpu in traces.gpus(lab):
        gpu_state.change_gpu(lab.dir / "gpu" / "state.json", gpu["uuid"], power_limit_w=watts)


# ---- before anything is done ---------------------------------------------------------------------------


@each_row
def test_aim_changes_nothing_and_its_receipt_is_plain_data(
    row: Row, lab: Lab, target: LabTarget, control: Control
) -> None:
    deed = Deed(row, lab, target, "replica-0")

    def now() -> Any:
        drill = traces.files(traces.state_dir(lab))
        return drill, traces.identities(lab), traces.settings(lab), traces.resets(lab), labs.last_event(control)

    before = now()
    assert deed.fault.preflight(target, deed.victims) == []
    receipt = deed.aim()
    assert now() == before
    text = json.dumps(receipts.to_json(receipt), allow_nan=False)
    assert receipts.from_json(json.loads(text)) == receipt
    for step in receipt.undo:
        assert step["do"] in UNDO_STEPS
        assert "-c" not in step.get("argv", []), "a program in a receipt"
    assert [v["uid"] for v in receipt.victims] == [v.uid for v in deed.victims]
    assert receipt.run == deed.run
    remade = for_receipt(receipt, "lab")
    assert (remade.name, remade.held, remade.effect) == (deed.fault.name, deed.fault.held, deed.fault.effect)


@each_row
@pytest.mark.parametrize("armed", [False, True], ids=["never-armed", "armed"])
def test_a_revert_without_a_deed_is_clean_and_changes_nothing(
    row: Row, armed: bool, lab: Lab, target: LabTarget
) -> None:
    deed = Deed(row, lab, target, "replica-0")
    before = traces.identities(lab), traces.resets(lab), traces.settings(lab)
    receipt = deed.aim()
    if armed:
        deed.arm(receipt)
    assert [deed.revert(receipt), deed.revert(receipt)] == [Restored.CLEAN] * 2
    assert deed.disarm(receipt)
    assert (traces.identities(lab), traces.resets(lab), traces.settings(lab)) == before
    jumping = itertools.count(step=10)  # so that nobody waits for what will not come
    impatient = replace(deed.context, sleep=lambda _: None, mono=lambda: float(next(jumping)))
    assert deed.fault.observe(target, receipt, impatient).on is False


@each_row
def test_a_stop_that_comes_right_before_the_deed_is_a_stop(row: Row, lab: Lab, target: LabTarget) -> None:
    deed = Deed(row, lab, target, "replica-0")
    before = traces.identities(lab), traces.resets(lab)
    active = ActiveFaults(deed.run, target, Clock(), tell=deed.tell, note=deed.tell, context=deed.context)
    deed.stop = True
    with pytest.raises(Stopped):
        active.put_on(0, deed.fault, deed.victims, fault_s=30.0)
    active.revert_all()
    deed.stop = False
    assert "inject.begin" not in deed.events
    assert active.restored is Restored.CLEAN
    assert (traces.identities(lab), traces.resets(lab)) == before


@each_row
def test_when_one_of_two_victims_was_replaced_neither_it_nor_anybody_else_is_hit(
    row: Row, lab: Lab, target: LabTarget, control: Control
) -> None:
    deed = Deed(row, lab, target, "replica-0", "replica-1")
    receipt = deed.aim()
    aimed_at = deed.victims[1].uid
    control.delete("replica-1", aimed_at, 0.0)
    labs.eventually(lambda: deed.replica("replica-1").uid != aimed_at and labs.all_ready(control), 30)
    before = traces.identities(lab), traces.resets(lab)
    deed.arm(receipt)
    with pytest.raises(Refused, match="replica-1: is no longer the replica that was aimed at"):
        deed.inject(receipt)
    assert "inject.hit" not in deed.events
    assert deed.revert(receipt) is Restored.CLEAN
    assert deed.disarm(receipt)
    assert (traces.identities(lab), traces.resets(lab)) == before


# ---- the deed, and the way back ------------------------------------------------------------------------


@each_row
def test_a_deed_bites_only_where_aimed_and_another_process_puts_it_back(
    row: Row, lab: Lab, target: LabTarget, control: Control, tmp_path: Path
) -> None:
    deed = Deed(row, lab, target, "replica-2")
    others, other_resets, since = deed.others(), deed.other_resets(), labs.last_event(control)
    on_disk: list[Receipt] = []

    def tell(event: str, data: Json) -> None:
        if event == "inject.hit":
            on_disk.extend(o.receipt for o in target.custody.outstanding() if o.timer_state == "armed")
        if event == "inject.end":
            raise Died

    active = ActiveFaults(deed.run, target, Clock(), tell=tell, note=tell, context=deed.context)
    with traces.decoy("VLLM::EngineCore") as decoy:
        with pytest.raises(Died):
            active.put_on(0, deed.fault, deed.victims, fault_s=45.0)
        assert decoy.poll() is None
    [receipt] = on_disk  # with its timer armed, before the deed
    seen = deed.fault.observe(target, receipt, deed.context)
    assert (seen.on, seen.bystanders_ok) == (True, True), seen.evidence
    assert row.bites(lab, receipt)
    assert (deed.others(), deed.other_resets()) == (others, other_resets)

    recovered = Driller(lab.dir, tmp_path, 1)("recover", "--reports", str(tmp_path))
    assert recovered.code == 0, recovered.out + recovered.err
    assert "replica-2: put back" in recovered.out
    assert traces.left_behind(lab) == []
    assert traces.settings(lab)[(receipt.victims[0]["gpus"])[0]]["power_limit_w"] == 500.0
    assert [deed.revert(receipt), deed.revert(receipt)] == [Restored.CLEAN] * 2
    assert deed.disarm(receipt)
    if deed.fault.held:
        assert deed.fault.observe(target, receipt, deed.context).on is False
    labs.eventually(lambda: labs.all_ready(control), 30)
    assert deed.others() == others
    assert {e["replica"] for e in control.events(since)} <= {"replica-2"}


@each_row
def test_the_timer_alone_leaves_nothing_held(row: Row, lab: Lab, target: LabTarget, control: Control) -> None:
    deed = Deed(row, lab, target, "replica-0")
    receipt = deed.aim(row.deadline_s)
    deed.arm(receipt)
    deed.inject(receipt)
    labs.eventually(lambda: row.bites(lab, receipt), row.deadline_s)
    assert all(traces.held(Path(gate)) for gate in receipt.holds)

    def states() -> list[str]:
        return [o.timer_state for o in target.custody.outstanding()]

    assert states() == ["armed"]
    labs.eventually(lambda: states() == ["undone"], row.deadline_s + 10)
    assert not marker_is_there(lab, receipt)
    assert not (deed.fault.held and row.bites(lab, receipt))
    assert not any(traces.held(gate) for gate in (lab.dir / "gates").glob("*.lock"))
    labs.eventually(lambda: labs.all_ready(control), 30)
    assert deed.revert(receipt) is Restored.CLEAN
    assert deed.disarm(receipt)


def test_every_fault_has_a_row() -> None:
    assert {row.fault for row in ROWS} == set(FAULTS)
