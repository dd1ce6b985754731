"""The planned gpu-reset on a real node: what it does to replica, node and GPU, and that all of it is put back."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.access import nodemarks
from drills.clock import rng
from drills.cluster import rbac
from drills.model import Json
from tests.cluster import gpus, layout
from tests.cluster.driving import begun, declare, driller, kill_group, node_fault, place, refused, use, words, written
from tests.cluster.emulator import declared_helper, serving
from tests.cluster.gpus import GpuEmulator
from tests.lab.drilling import Driller, Ran, events
from tests.sampling import SEED

FAULT = "gpu-reset: {victims: 1, how: planned, budget_timeout: 3s}"
CHECK = "replica_restart: {within: 150s}"
STEPS = [
    "node.cordoned",
    "evicted",
    "telemetry.paused",
    "holders.gone",
    "reset.begin",
    "reset.end",
    "device.verified",
    "settings.restored",
    "telemetry.restored",
    "allocatable.back",
    "node.uncordoned",
]
#: Where the driver is killed. By default at one point before, and one after the reset has begun; FULL=1 tries all.
BEFORE = ("receipt", "timer.armed", "inject.begin", "inject.hit", *STEPS[:4])
AFTER = (*STEPS[4:], "inject.end", "proof.on", "revert.begin", "proof.off", "revert.end")


def points() -> list[str]:
    """Return the events and steps to die at."""
    drawn = rng(SEED, "points")
    return [*BEFORE, *AFTER] if os.environ.get("FULL") else [drawn.choice(BEFORE), drawn.choice(AFTER)]


@pytest.fixture(scope="module")
def shared(own_node: Path) -> Iterator[GpuEmulator]:
    """Replicas with GPUs, on a node that gets the stand-in."""
    with serving(GpuEmulator, own_node) as made:
        yield made


@pytest.fixture
def service(shared: GpuEmulator) -> Iterator[GpuEmulator]:
    """The replicas, all Ready; afterwards the node must be as it was, and no drill may have left anything."""
    gpus.renew()
    shared.until_ready()
    before = gpus.as_seen(shared)
    yield shared
    shared.namespace.wait("the node to be as before", lambda: gpus.as_seen(shared) == before)
    assert shared.left() == []


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, service: GpuEmulator) -> Driller:
    helped(tmp_path, service, gpus.ACCOUNT)
    return driller(tmp_path, cluster, timeout_s=400.0)


def helped(folder: Path, service: GpuEmulator, account: str) -> None:
    """Write the targets file, with the service account of the helpers."""
    declare(folder, service, container="vllm", helper=declared_helper(account), nvidia_smi=gpus.SMI)


def reset(drill: Driller) -> list[str]:
    """Write the experiment; returns the words that run it."""
    return words(drill, written(drill, node_fault(FAULT, CHECK)))


def steps(folder: Path) -> list[str]:
    return [event["data"]["step"] for event in events(folder, "inject.step")]


def step(ran: Ran, name: str) -> Json:
    found: Json = next(e["data"] for e in ran.events("inject.step") if e["data"]["step"] == name)
    return found


def uptimes() -> dict[str, float]:
    return {gpu["uuid"]: gpu["uptime_start_mono"] for gpu in gpus.stand_in()["gpus"]}


def until(drill: Driller, process: subprocess.Popen[str], what: str, within_s: float = 240.0) -> Path:
    """Wait for an event, or for a step of the deed; returns the run folder."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        folder = drill.latest()
        if folder is not None and (events(folder, what) or what in steps(folder)):
            return folder
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    raise AssertionError(f"no {what} within {within_s} s")


# ---- the deed --------------------------------------------------------------------------------------------


def test_a_gpu_is_reset_and_its_replica_comes_back(drill: Driller, service: GpuEmulator) -> None:
    before, held, started = gpus.as_seen(service), service.holders(), uptimes()
    ran = drill(*reset(drill))
    assert ran.code == 0, ran.out + ran.err
    assert ran.folder is not None
    assert steps(ran.folder) == STEPS
    assert all(e["data"]["ok"] is not False for e in ran.events("inject.step"))
    [victim] = ran.events("receipt")[0]["data"]["receipt"]["victims"]
    [uuid] = victim["gpus"]
    assert held[uuid] == victim["uid"]
    assert {u for u, began in uptimes().items() if began != started[u]} == {uuid}
    assert step(ran, "telemetry.paused")["labels"] == {
        key: value for key, value in gpus.LABELS.items() if key.endswith(("device-plugin", "dcgm-exporter"))
    }
    [proof] = ran.events("proof.on")
    assert (proof["data"]["ok"], proof["data"]["bystanders_ok"]) == (True, True)
    row = ran.row("replica_restart")
    assert (row["verdict"], row["detail"][victim["name"]]["by"]) == ("pass", "controller")
    assert ran.row("untouched")["verdict"] == "pass"
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    assert gpus.as_seen(service) == before
    assert service.holders()[uuid] != victim["uid"]


@pytest.mark.parametrize("where", points())
def test_a_driver_that_is_killed_leaves_nothing_that_recover_does_not_put_back(
    drill: Driller, service: GpuEmulator, where: str
) -> None:
    print(f"seed {SEED}")
    before = gpus.as_seen(service)
    with begun(drill, reset(drill)) as process:
        until(drill, process, where)
        kill_group(process)
    done = drill("recover", *place(drill))
    assert done.code == 0, done.out + done.err
    service.namespace.wait("the node to be as before", lambda: gpus.as_seen(service) == before)
    assert service.left() == []
    again = drill("recover", *place(drill))
    assert (again.code, "nothing to put back" in again.out) == (0, True)


def test_the_timer_on_the_node_uncordons_it_without_a_driver(drill: Driller, service: GpuEmulator) -> None:
    """Its helper is told to end, which has every timer undo at once what it would undo at its deadline."""
    before = gpus.as_seen(service)
    with begun(drill, reset(drill)) as process:
        until(drill, process, "telemetry.paused")
        kill_group(process)
    assert gpus.as_seen(service)["unschedulable"]
    [helper] = service.namespace.pods("drills/role=helper")
    service.namespace.core.delete_namespaced_pod(helper.metadata.name, service.namespace.name)
    service.namespace.wait("the node to be as before", lambda: gpus.as_seen(service) == before)
    done = drill("recover", *place(drill))
    assert done.code == 0, done.out + done.err


# ---- what goes wrong with it -----------------------------------------------------------------------------


def test_a_reset_that_is_refused_leaves_everything_as_it_was(drill: Driller, service: GpuEmulator) -> None:
    started = uptimes()
    gpus.change({"script": {"reset": {"*": "unsupported_a"}, "delay_s": 0}})
    ran = drill(*reset(drill))
    assert ran.code == 2, ran.out + ran.err
    assert step(ran, "reset.end")["outcome"] == "unsupported_a"
    assert ran.verdict["restored"] == "clean"
    assert uptimes() == started


@pytest.mark.parametrize(("mode", "words"), [("needs_recovery", "recovery action"), ("no_effect", "nothing happened")])
def test_a_gpu_that_is_not_well_afterwards_stays_cordoned_until_a_person_has_looked(
    drill: Driller, service: GpuEmulator, mode: str, words: str
) -> None:
    gpus.change({"script": {"reset": {"*": mode}, "delay_s": 0}})
    ran = drill(*reset(drill))
    assert ran.code == 5, ran.out + ran.err
    seen = gpus.as_seen(service)
    assert seen["unschedulable"]
    assert words in seen["annotations"][nodemarks.HUMAN]
    assert {key: seen["labels"][key] for key in gpus.LABELS} == gpus.LABELS
    assert drill("recover", *place(drill)).code == 5
    service.namespace.core.patch_node(layout.NODE, {"metadata": {"annotations": {nodemarks.HUMAN: None}}})
    done = drill("recover", *place(drill))
    assert done.code == 0, done.out + done.err


# ---- why not ---------------------------------------------------------------------------------------------


def test_without_an_account_for_its_helpers_it_is_refused(drill: Driller, service: GpuEmulator) -> None:
    declare(drill.reports.parent, service, container="vllm", helper=declared_helper())
    ran = drill(*reset(drill))
    assert ran.code in (3, 64)
    assert "service account" in ran.out + ran.err


@pytest.mark.parametrize(("account", "says"), [("nobody", "nobody"), ("default", "bind it to the ClusterRole")])
def test_an_account_that_is_not_there_or_may_not_is_refused(
    drill: Driller, service: GpuEmulator, account: str, says: str
) -> None:
    helped(drill.reports.parent, service, account)
    ran = drill(*reset(drill))
    assert says in refused(ran, 3)
    assert ran.events("inject.hit") == []


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}, "somebody else is at work"),
        ({"nvidia.com/gpu-driver-upgrade-state": "drain-required"}, "driver is being upgraded"),
        ({"nvidia.com/mig.config.state": "pending"}, "MIG manager is at work"),
        ({"dgxc.nvidia.com/nvsentinel-state": "draining"}, "NVSentinel is at work"),
    ],
)
def test_while_others_work_on_the_node_it_is_refused(
    drill: Driller, service: GpuEmulator, labels: Json, says: str
) -> None:
    gpus.label(labels, service)
    try:
        ran = drill(*reset(drill))
    finally:
        gpus.label(dict.fromkeys(labels), service)
    assert says in refused(ran, 3)
    assert ran.events("inject.hit") == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mig": True}, "MIG is on"),
        ({"virtualization": "VGPU"}, "shared out by a hypervisor"),
        ({"recovery_action": 1}, "asks for a recovery action already"),
    ],
)
def test_a_gpu_that_must_not_be_reset_is_refused(drill: Driller, service: GpuEmulator, values: Json, says: str) -> None:
    gpus.change(**{uuid.replace("-", "_"): values for uuid in uptimes()})
    ran = drill(*reset(drill))
    assert says in refused(ran, 3)
    assert ran.events("inject.hit") == []


def test_somebody_else_who_holds_the_gpu_is_named(drill: Driller, service: GpuEmulator) -> None:
    stranger = gpus.hold(service, "someones-agent")
    try:
        ran = drill(*reset(drill))
    finally:
        gpus.let_go(service, stranger)
    said = refused(ran, 3)
    assert "someones-agent" in said
    assert ran.events("inject.hit") == []


def test_a_budget_that_allows_no_eviction_refuses_the_drill(drill: Driller, service: GpuEmulator) -> None:
    service.budget(3)
    try:
        ran = drill(*reset(drill))
    finally:
        service.unbudget()
    assert "eviction is refused by the disruption budget for 3 s" in refused(ran, 3)
    assert ran.events("inject.hit") == []


# ---- rights ----------------------------------------------------------------------------------------------


def test_the_rendered_role_and_cluster_role_are_all_that_it_needs(
    drill: Driller, service: GpuEmulator, cluster: Path
) -> None:
    needed = rbac.needed(["gpu-reset planned"], proxy=True)
    token = service.token("enough", rbac.role("enough", service.namespace.name, needed))
    service.bind("enough")
    use(drill, cluster, token)
    ran = drill(*reset(drill))
    assert ran.code == 0, ran.out + ran.err
    assert ran.folder is not None
    assert steps(ran.folder) == STEPS


def test_without_the_cluster_role_it_is_refused_by_name(drill: Driller, service: GpuEmulator, cluster: Path) -> None:
    needed = rbac.needed(["gpu-reset planned"], proxy=True)
    use(drill, cluster, service.token("role-alone", rbac.role("role-alone", service.namespace.name, needed)))
    before = service.uids()
    said = refused(drill(*reset(drill)), 3)
    assert "get nodes, patch nodes" in said
    assert service.uids() == before
