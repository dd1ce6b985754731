"""pod-kill on a real cluster: `drill` as a user runs it, from outside; what it does to the pods and what it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kubernetes.client import CoordinationV1Api

from drills.cluster import rbac
from drills.cluster.lease import name_of
from tests.cluster.driving import begun, declare, kill_group, place, pod_killer, refused, use, words
from tests.cluster.emulator import REPLICAS, SELECTOR, Emulator
from tests.lab.drilling import Driller, events

CUT_SHORT = ("receipt", "inject.hit", "inject.end", "revert.end")


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, service: Emulator) -> Driller:
    return pod_killer(tmp_path, cluster, service)


# ---- the deaths ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["delete", "delete-now", "evict"])
def test_a_pod_dies_and_its_controller_makes_a_new_one(drill: Driller, service: Emulator, how: str) -> None:
    before = service.uids()
    ran = drill(*words(drill, f"{how}.yaml"))
    assert ran.code == 0, ran.out + ran.err
    assert ran.folder is not None
    [gone] = before - service.uids()
    [hit] = ran.events("inject.hit")
    [receipt] = ran.events("receipt")
    [victim] = receipt["data"]["receipt"]["victims"]
    assert victim["uid"] == gone
    assert hit["data"]["victims"] == [victim["name"]]
    [proof] = ran.events("proof.on")
    assert (proof["data"]["ok"], proof["data"]["bystanders_ok"]) == (True, True)
    assert ran.events("timer.armed") == []
    row = ran.row("replica_restart")
    assert (row["verdict"], row["detail"][victim["name"]]["by"]) == ("pass", "controller")
    assert row["detail"][victim["name"]]["uid"] in service.uids() - before
    assert ran.row("untouched")["verdict"] == "pass"
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    header = ran.events("header")[0]["data"]
    assert header["versions"]["kubernetes"].startswith("v1.")
    assert len(header["facts"]["pods"]) == REPLICAS


def test_a_budget_that_allows_no_eviction_refuses_the_drill(drill: Driller, service: Emulator) -> None:
    before = service.uids()
    path = drill.reports.parent / "evict.yaml"
    path.write_text(path.read_text().replace("how: evict", "how: evict, budget_timeout: 3s"))
    service.budget(REPLICAS)
    try:
        ran = drill(*words(drill, "evict.yaml"))
    finally:
        service.unbudget()
    assert "eviction is refused by the disruption budget for 3 s" in refused(ran, 3)
    assert "vllm" in refused(ran, 3)
    assert ran.events("inject.hit") == []
    assert service.uids() == before


def test_a_pod_that_is_replaced_by_other_hands_ends_the_run(drill: Driller, service: Emulator) -> None:
    with begun(drill, words(drill, "delete.yaml")) as process:
        folder = drill.until("load.started", process, None)
        other = service.namespace.pods(SELECTOR)[0].metadata
        service.namespace.core.delete_namespaced_pod(other.name, service.namespace.name)
        process.wait(timeout=180)
    assert process.returncode in (2, 3)
    assert events(folder, "inject.hit") == []


# ---- who drills ------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_and_the_first_stops_when_asked(drill: Driller, service: Emulator) -> None:
    with begun(drill, words(drill, "delete.yaml")) as process:
        drill.until("load.started", process, None)
        ran = drill(*words(drill, "delete.yaml"))
        said = refused(ran, 3)
        leases = CoordinationV1Api(service.namespace.api)
        run = leases.read_namespaced_lease(name_of(SELECTOR), service.namespace.name).spec.holder_identity
        assert f"run {run} of" in said
        assert f"run {run} of" in drill("status", *place(drill)).out
        stopped = drill("stop", run, *place(drill)[:4])
        assert stopped.code == 0, stopped.err
        assert process.wait(timeout=60) == 4
        out = process.communicate()[0]
    assert "drill stop" in out


@pytest.mark.parametrize("event", CUT_SHORT)
def test_a_driver_that_is_killed_leaves_nothing_that_recover_does_not_find(
    drill: Driller, service: Emulator, event: str
) -> None:
    with begun(drill, words(drill, "delete-now.yaml")) as process:
        folder = drill.until(event, process, None, within_s=150.0)
        kill_group(process)
    done = drill("recover", *place(drill))
    assert done.code == 0, done.out + done.err
    assert service.left() == []
    assert events(folder, "end")[0]["data"]["status"] == "crashed"
    again = drill("recover", *place(drill))
    assert (again.code, "nothing to put back" in again.out) == (0, True)


# ---- what is wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"context": "nowhere"}, 64, "has no context 'nowhere'"),
        ({"namespace": "no-such-namespace"}, 3, "no pod matches app=vllm"),
        ({"selector": '"app=nothing"'}, 3, "no pod matches app=nothing"),
        ({"selector": '"app in ("'}, 3, "HTTP 400"),
        ({"container": "absent"}, 3, "no container 'absent'"),
    ],
)
def test_a_target_that_is_declared_wrongly_is_one_sentence(
    drill: Driller, service: Emulator, changes: dict[str, str], code: int, says: str
) -> None:
    declare(drill.reports.parent, service, **changes)
    assert says in refused(drill(*words(drill, "delete.yaml")), code)


def test_what_needs_the_node_is_refused_before_anything_is_asked(drill: Driller, service: Emulator) -> None:
    path = drill.reports.parent / "delete.yaml"
    path.write_text(path.read_text().replace("how: delete", "how: kill-process"))
    ran = drill(*words(drill, "delete.yaml"))
    assert ran.code in (3, 64), ran.out + ran.err


def test_the_rendered_role_is_all_that_a_drill_needs(drill: Driller, service: Emulator, cluster: Path) -> None:
    role = rbac.role("enough", service.namespace.name, rbac.needed(["pod-kill delete"], proxy=True))
    use(drill, cluster, service.token("enough", role))
    ran = drill(*words(drill, "delete.yaml"))
    assert ran.code == 0, ran.out + ran.err


@pytest.mark.parametrize(
    ("verb", "resource"),
    [("list", "pods"), ("create", "leases"), ("create", "configmaps"), ("delete", "pods"), ("create", "pods/proxy")],
)
def test_a_right_that_is_missing_is_one_sentence(
    drill: Driller, service: Emulator, cluster: Path, verb: str, resource: str
) -> None:
    rights = {r for r in rbac.needed(["pod-kill delete"], proxy=True) if (r[0], r[2]) != (verb, resource)}
    name = f"no-{verb}-{resource.replace('/', '-')}"
    use(drill, cluster, service.token(name, rbac.role(name, service.namespace.name, rights)))
    before = service.uids()
    ran = drill(*words(drill, "delete.yaml"))
    said = refused(ran, 3)
    assert f"{verb} {resource}" in said
    assert "allowed" in said
    assert service.uids() == before


def test_a_token_that_is_not_accepted_is_one_sentence(drill: Driller, service: Emulator) -> None:
    use(drill, Path(drill.env["KUBECONFIG"]), "expired-canary-9c1e")
    said = refused(drill(*words(drill, "delete.yaml")), 3)
    assert "sign in again" in said
    assert "canary" not in said


def test_the_replicas_are_reached_directly_too(drill: Driller, service: Emulator, own_node: Path) -> None:
    declare(drill.reports.parent, service, reach="direct")
    ran = drill(*words(drill, "delete.yaml"))
    assert ran.code == 0, ran.out + ran.err
    assert ran.events("header")[0]["data"]["facts"]["reach"] == "direct"


def test_through_a_router_that_finds_its_pods_by_itself(drill: Driller, service: Emulator) -> None:
    service.route()
    more = f"    router: {{kind: vllm-router, metrics: {service.router}:29000/metrics}}\n"
    declare(drill.reports.parent, service, url=f"{service.router}/v1", more=more)
    ran = drill(*words(drill, "delete-now.yaml"))
    assert ran.code == 0, ran.out + ran.err
    assert ran.folder is not None
    samples = [json.loads(line) for line in (ran.folder / "samples.ndjson").read_text().splitlines()]
    seen = [s["values"] for s in samples if s["probe"] == "router" and s["ok"]]
    assert seen
    assert ran.row("failover")["value"] < 10
