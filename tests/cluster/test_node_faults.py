"""Faults on the node of a pod, through helper pods: what they do, and that nothing of them stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drills.cluster.helpers import HELPER, ROLE
from tests.cluster.driving import begun, declare, driller, kill_group, node_fault, place, refused, words, written
from tests.cluster.emulator import SELECTOR, Emulator, declared_helper
from tests.lab.drilling import Driller, Ran, events

RESTART = "replica_restart: {within: 60s}"


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, service: Emulator) -> Driller:
    declare(tmp_path, service, container="vllm", helper=declared_helper())
    return driller(tmp_path, cluster)


def faulted(drill: Driller, fault: str, checks: str) -> list[str]:
    """Write the experiment; returns the words that run it."""
    return words(drill, written(drill, node_fault(fault, checks)))


def run(drill: Driller, fault: str, checks: str) -> Ran:
    return drill(*faulted(drill, fault, checks))


def restarts(service: Emulator) -> dict[str, int]:
    """Return how often the engine's container was started again, by pod."""
    return {
        str(pod.metadata.name): next(s.restart_count for s in pod.status.container_statuses if s.name == "vllm")
        for pod in service.namespace.pods(SELECTOR)
    }


def clean(ran: Ran) -> None:
    assert ran.code == 0, ran.out + ran.err
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    assert [e["data"]["ok"] for e in ran.events("proof.on") + ran.events("proof.off")] == [True, True]
    assert all(e["data"]["bystanders_ok"] for e in ran.events("proof.on"))


def test_the_control_goes_all_the_way_and_changes_nothing(drill: Driller, service: Emulator) -> None:
    before = restarts(service)
    ran = run(drill, "noop: {victims: 1}", "failover: {within: 5s}")
    clean(ran)
    [armed] = ran.events("timer.armed")
    assert armed["data"]["pid"] > 0
    assert restarts(service) == before


@pytest.mark.parametrize("fault", ["pod-kill: {victims: 1, how: kill-process}", "engine-kill: {victims: 1}"])
def test_a_process_dies_and_the_kubelet_starts_its_container_again(
    drill: Driller, service: Emulator, fault: str
) -> None:
    before, uids = restarts(service), service.uids()
    ran = run(drill, fault, RESTART)
    clean(ran)
    assert service.uids() == uids
    after = restarts(service)
    assert sorted(after[pod] - count for pod, count in before.items()) == [0, 0, 1]
    [receipt] = ran.events("receipt")
    [victim] = receipt["data"]["receipt"]["victims"]
    assert victim["pid"] > 0
    assert victim["engine_pid"] > 0


def test_an_engine_hangs_and_goes_on(drill: Driller, service: Emulator) -> None:
    before = restarts(service)
    ran = run(drill, "engine-hang: {victims: 1}", "failover: {within: 15s}")
    assert ran.events("proof.on")[0]["data"]["ok"] is True, ran.out + ran.err
    assert ran.events("proof.off")[0]["data"]["ok"] is True
    assert ran.verdict["restored"] == "clean"
    assert restarts(service) == before


# ---- between router and pod ------------------------------------------------------------------------------

REFUSED = "packet-loss: {victims: 1, mode: reject, ports: [8080]}"  # where the router reaches the pods
ELSEWHERE = "failover: {within: 10s}"


@pytest.fixture
def routed(drill: Driller, service: Emulator) -> Emulator:
    """The replicas behind a router that is the peer of the rules."""
    if not service.namespace.pods("app=router"):
        service.route()
    more = f"    router: {{kind: vllm-router, metrics: {service.router}:29000/metrics, selector: app=router}}\n"
    url, helper = f"{service.router}/v1", declared_helper()
    declare(drill.reports.parent, service, url=url, more=more, container="vllm", helper=helper)
    return service


def swallowed(folder: Path) -> int:
    """Return the most packets that the rules are known to have swallowed."""
    lines = (folder / "samples.ndjson").read_text().splitlines()
    found = [one["values"]["packets"] for one in map(json.loads, lines) if one["probe"] == "fault" and one["ok"]]
    return max(found, default=0)


def test_a_pod_refuses_the_router_and_the_router_goes_elsewhere(drill: Driller, routed: Emulator) -> None:
    before = restarts(routed)
    ran = run(drill, REFUSED, ELSEWHERE)
    clean(ran)
    assert ran.folder is not None
    assert swallowed(ran.folder) > 0
    [proof] = ran.events("proof.on")
    elsewhere = next(e for e in proof["data"]["evidence"] if e["what"] == "rules of this run elsewhere")
    assert {"node"} < set(elsewhere["looked_at"])
    assert restarts(routed) == before


def test_without_its_driver_the_fault_ends_by_the_timer_in_the_helper(drill: Driller, routed: Emulator) -> None:
    with begun(drill, faulted(drill, REFUSED, ELSEWHERE)) as process:
        folder = drill.until("proof.on", process, None, within_s=150.0)
        kill_group(process)

    def status() -> str:
        ran = drill("status", *place(drill)[:4])
        return ran.out + ran.err

    assert "packet-loss on vllm-" in status()
    routed.namespace.wait("the timer", lambda: "undone by its timer" in status(), timeout_s=90.0)
    done = drill("recover", *place(drill))
    assert done.code == 0, done.out + done.err
    assert routed.left() == []
    [off] = [e for e in events(folder, "proof.off") if e["data"]["receipt"].endswith("packet-loss")]
    assert off["data"]["ok"] is True


# ---- helpers ---------------------------------------------------------------------------------------------


def test_a_helper_that_is_deleted_undoes_first_and_the_run_ends(drill: Driller, routed: Emulator) -> None:
    with begun(drill, faulted(drill, REFUSED, ELSEWHERE)) as process:
        folder = drill.until("proof.on", process, None, within_s=150.0)
        core, name = routed.namespace.core, routed.namespace.name
        [helper] = routed.namespace.pods(f"{ROLE}={HELPER}")
        core.delete_namespaced_pod(helper.metadata.name, name)
        out = process.communicate(timeout=240)[0]
    assert process.returncode == 2, out
    assert events(folder, "revert.end")[0]["data"]["restored"] == "clean"
    assert routed.left() == []


def test_without_a_helper_it_is_refused_with_what_to_write(drill: Driller, service: Emulator) -> None:
    declare(drill.reports.parent, service)
    said = refused(run(drill, "noop: {victims: 1}", "failover: {within: 5s}"), 64)
    assert "kubernetes.helper" in said


def test_a_helper_that_cannot_start_refuses_the_drill_and_is_gone(drill: Driller, service: Emulator) -> None:
    declare(drill.reports.parent, service, helper='{image: "no.such/image:1"}')
    ran = run(drill, "noop: {victims: 1}", "failover: {within: 5s}")
    said = refused(ran, 3)
    assert "no.such/image:1" in said
    assert ran.events("inject.hit") == []
    left = f"{ROLE}={HELPER}"
    service.namespace.wait("the helper's end", lambda: not service.namespace.pods(left))
