"""The lab's own network: who lives where, what of it is left when it ends, and what happens without one."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.access.local import LocalHost
from drills.faults.packet_loss import PacketLoss
from drills.lab import keeper, manage, network
from drills.lab.client import Control, Lab
from drills.lab.config import LabConfig
from drills.lab.target import LabTarget
from drills.model import Context, HasNetwork, Json, Restored
from tests.lab import labs, traces
from tests.lab.drilling import DRILL, Driller

pytestmark = pytest.mark.lab
root = pytest.mark.root
needs_root = pytest.mark.root
HOST = LocalHost()
#: Root without the right to make namespaces, as in many containers.
BOUND = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]


@pytest.fixture
def small() -> LabConfig:
    return LabConfig(port_base=labs.free_port_base(), replicas=1, gpus=2, startup_s=0.1, monitoring=False)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "lab"
    yield folder
    manage.down(folder)
    assert labs.processes_of(folder) == []


def interfaces() -> set[str]:
    """The lab interfaces in the main namespace."""
    return {path.name for path in Path("/sys/class/net").glob("drill-*")}


def rules() -> str:
    """Everything that iptables says of the main namespace, without times and counters."""
    lines = []
    for kind in ("nft", "legacy"):
        saved = subprocess.run([f"iptables-{kind}-save"], capture_output=True, text=True, check=True)
        lines += [line for line in saved.stdout.splitlines() if not line.startswith(("#", ":"))]
    return "\n".join(lines)


def inode(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


# ---- with one ------------------------------------------------------------------------------------------


@root
@needs_root
def test_each_primary_and_the_router_live_apart_and_everything_else_does_not(lab: Lab, control: Control) -> None:
    status = control.status()
    own = {r["name"]: inode(r["pid"]) for r in status["replicas"]}
    parts = {p["name"]: inode(p["pid"]) for p in status["processes"]}
    main = inode(os.getpid())
    apart = [own["replica-0"], own["replica-1"], own["replica-2"], parts["router"], parts["sandbox-hub"]]
    assert len({main, *apart}) == 6
    for name in ("replica-0", "replica-1", "replica-2", "small-0"):
        assert parts[f"proxy-{name}"] == own[name]
    assert inode(labs.replica(control, "replica-0")["engine_pid"]) == own["replica-0"]
    assert {own["small-0"], parts["edge"], parts["gpu-exporter"], parts["prometheus"], inode(lab.pid)} == {main}


@root
@needs_root
def test_two_labs_at_once_have_a_network_each_and_take_it_with_them(lab: Lab, folder: Path, small: LabConfig) -> None:
    tables = rules()
    second = manage.up(small, folder=folder)
    ours = {one.data["network"]["interface"] for one in (lab, second)}
    assert second.data["network"]["subnet"] != lab.data["network"]["subnet"]
    assert len(ours) == 2
    assert ours <= interfaces()
    assert traces.link(second, "replica-0") == traces.link(lab, "replica-0") == "open"
    assert rules() == tables
    manage.down(folder)  # labs of other tests come and go meanwhile
    labs.eventually(lambda: ours & interfaces() == {lab.data["network"]["interface"]}, 5)


@root
@needs_root
def test_a_kill_of_keeper_and_supervisor_leaves_no_interface_and_no_namespace(folder: Path, small: LabConfig) -> None:
    lab = manage.up(small, folder=folder)
    ours = lab.data["network"]["interface"]
    assert ours in interfaces()
    holders = [p for p in lab.control().status()["processes"] if p["name"].startswith("sandbox-")]
    assert len(holders) == 3
    held = keeper.holder(folder)
    assert held is not None
    os.kill(held[0], signal.SIGSTOP)  # cannot adopt, cannot clean up
    os.kill(lab.pid, signal.SIGKILL)
    os.kill(held[0], signal.SIGKILL)
    labs.eventually(lambda: ours not in interfaces(), 10)
    assert not any(HOST.alive(p["pid"], p["start"]) for p in holders)


@root
@needs_root
def test_rules_outlive_the_replica_and_the_timer_takes_them_away(folder: Path, small: LabConfig) -> None:
    lab = manage.up(small, folder=folder)
    control, target = lab.control(), LabTarget(lab)
    fault = PacketLoss(PacketLoss.Params(mode="blackhole"), "lab")
    run = secrets.token_hex(4)
    victims = [r for r in target.replicas() if r.name == "replica-0"]
    receipt = fault.aim(target, victims, run=run, receipt=f"{run}-0-packet-loss", deadline_s=6.0)
    context = Context(lambda *_: None, time.sleep, time.monotonic, lambda: False)
    target.custody.arm(receipt)
    fault.inject(target, receipt, context)
    since = labs.last_event(control)
    os.kill(victims[0].pid or 0, signal.SIGKILL)
    labs.eventually(lambda: "ready" in [e["change"] for e in labs.changes(control, since, "replica-0")], 20)
    assert traces.link(lab, "replica-0") == "silent"
    labs.eventually(lambda: traces.link(lab, "replica-0") == "open", 15)
    assert traces.rules(lab) == []
    assert fault.revert(target, receipt, context) is Restored.CLEAN
    assert target.custody.disarm(receipt)


@root
@needs_root
def test_rules_that_somebody_else_changed_meanwhile_are_not_called_clean(target: LabTarget, lab: Lab) -> None:
    fault, run, told = PacketLoss(PacketLoss.Params(mode="reject"), "lab"), secrets.token_hex(4), list[Json]()
    victims = [r for r in target.replicas() if r.name == "replica-1"]
    receipt = fault.aim(target, victims, run=run, receipt=f"{run}-0-packet-loss", deadline_s=60.0)
    context = Context(lambda _, data: told.append(data), time.sleep, time.monotonic, lambda: False)
    foreign = ["INPUT", "-s", "192.0.2.7/32", "-j", "ACCEPT"]
    enter = traces.namespaces(lab)["replica-1"]
    subprocess.run([*enter, "iptables", "-w", "5", "-A", *foreign], check=True)
    try:
        assert fault.revert(target, receipt, context) is Restored.DIRTY
    finally:
        subprocess.run([*enter, "iptables", "-w", "5", "-D", *foreign], check=True)
    assert "192.0.2.7" in str(told[-1]["manual"])
    assert fault.revert(target, receipt, context) is Restored.CLEAN
    shutil.rmtree(traces.state_dir(lab), ignore_errors=True)


# ---- without one ---------------------------------------------------------------------------------------


def test_a_lab_without_a_network_serves_and_has_none_to_shape(folder: Path, small: LabConfig) -> None:
    lab = manage.up(dataclasses.replace(small, network=False), folder=folder)
    target = LabTarget(lab)
    victims = [r for r in target.replicas() if r.role == "primary"]
    assert isinstance(target, HasNetwork)
    assert target.network(victims[0]) is None
    [said] = PacketLoss(PacketLoss.Params(mode="reject"), "lab").preflight(target, victims)
    assert said.startswith("replica-0: lab has no network that can be shaped; ")
    assert "root" in said
    assert victims[0].url.startswith("http://127.0.0.1:")
    assert lab.data["network"] is None


@root
@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) takes the right away")
def test_packet_loss_is_refused_before_a_lab_is_started_that_could_not_do_it(tmp_path: Path) -> None:
    drill = Driller(tmp_path / "lab", tmp_path / "reports", labs.free_port_base())
    argv = [*BOUND, *DRILL, "run", *drill.here("packet-loss")]
    done = subprocess.run(argv, env=drill.env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("drill: packet-loss: the lab has no network of its own to shape: ")
    assert not (tmp_path / "lab").exists()


def test_why_a_user_without_root_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert network.why_not() == "it needs root"
