"""The hands of others on a service in a cluster, as its API shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drills import opening
from drills.cluster.others import NODES_MAX, workload
from drills.cluster.target import KubernetesTarget
from drills.errors import Refused
from drills.model import Json, Receipt
from drills.options import Options
from drills.target import load_target
from tests.contract.kube_api import Store, deployment, pod, serving
from tests.contract.kube_talk import kubeconfig
from tests.contract.test_kubernetes_target import DECLARED

Edit = Callable[[Store], object]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving() as (store, url):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
        deployment(store)
        yield store


@pytest.fixture
def target(store: Store, tmp_path: Path) -> Iterator[KubernetesTarget]:
    (tmp_path / "drill.yaml").write_text(DECLARED)
    with opening.open_target(load_target("prod", tmp_path / "drill.yaml"), Options(), lambda _: None) as target:
        assert isinstance(target, KubernetesTarget)
        yield target


def edited(plural: str, name: str, namespace: str = "llm", **parts: Json) -> Edit:
    """Return what lays these parts over an object's own."""

    def change(item: Json) -> None:
        for key, value in parts.items():
            item.setdefault(key, {}).update(value)

    return lambda store: store.edit(plural, name, change, namespace)


def scaler(desired: int, current: int = 3, *, active: str = "True", name: str = "vllm", least: int = 3) -> Json:
    aim = {"kind": "Deployment", "name": name}
    conditions = [{"type": "ScalingActive", "status": active}]
    return {
        "metadata": {"name": "by-load"},
        "spec": {"scaleTargetRef": aim, "minReplicas": least, "maxReplicas": 9},
        "status": {"desiredReplicas": desired, "currentReplicas": current, "conditions": conditions},
    }


def autoscaled(desired: int, **more: Any) -> Edit:
    return lambda store: store.put("horizontalpodautoscalers", scaler(desired, **more))


def evicted(reason: str) -> Edit:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return lambda store: store.edit("pods", "vllm-5d8f-a", lambda pod: pod["status"]["conditions"].append(condition))


CORDON = edited("nodes", "node-1", "", spec={"unschedulable": True})


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (edited("deployments", "vllm", status={"updatedReplicas": 1}), "1 of 3 replicas are of the new version"),
        (edited("deployments", "vllm", status={"replicas": 4}), "1 replicas of an older version are still there"),
        (edited("deployments", "vllm", metadata={"generation": 2}), "has not taken in its last change yet"),
        (edited("deployments", "vllm", spec={"replicas": 2}), "it is being scaled: 3 replicas of 2"),
        (autoscaled(5), "autoscaler by-load: wants 5 replicas of Deployment vllm, there are 3"),
        (CORDON, "node node-1: is cordoned"),
        (
            edited("nodes", "node-1", "", spec={"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}),
            "node node-1: is about to be removed",
        ),
        (evicted("EvictionByEvictionAPI"), "pod vllm-5d8f-a: is being evicted"),
    ],
)
def test_what_others_are_at_refuses(store: Store, target: KubernetesTarget, edit: Edit, says: str) -> None:
    assert target.others_at_work() == []
    edit(store)
    [found] = target.others_at_work()
    assert found.startswith("others are at work: ")
    assert says in found


@pytest.mark.parametrize(
    "edit",
    [
        autoscaled(3),
        autoscaled(0, active="False"),  # it has no metrics, and desires nothing
        autoscaled(5, name="another"),
        evicted("TerminationByKubelet"),  # the node's own word, under load
        edited("nodes", "node-1", "", spec={"taints": [{"key": "nvidia.com/gpu"}]}),
    ],
)
def test_what_concerns_nobody_here_does_not(store: Store, target: KubernetesTarget, edit: Edit) -> None:
    edit(store)
    assert target.others_at_work() == []


def receipt(fault: str, uid: str = "another", host: str = "node-9") -> Receipt:
    victims = ({"name": "vllm-0", "uid": uid, "host": host},)
    return Receipt("r-0", "r", fault, "t", host, victims, {}, (), (), 60.0)


def change(subject: str, what: str, by: str = "others") -> tuple[str, str, str]:
    return subject, what, by


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            edited("deployments", "vllm", spec={"template": {"metadata": {"annotations": {"restartedAt": "now"}}}}),
            change("Deployment vllm", "specification"),
        ),
        (edited("deployments", "vllm", spec={"replicas": 5}), change("Deployment vllm", "replicas")),
        (CORDON, change("node node-1", "scheduling")),
        (evicted("EvictionByEvictionAPI"), change("pod vllm-5d8f-a", "state")),
        (autoscaled(3), change("autoscaler by-load", "specification")),
        (lambda store: store.drop("deployments", "vllm"), change("Deployment vllm", "object")),
    ],
)
def test_what_others_change_meanwhile_is_told(
    store: Store, target: KubernetesTarget, edit: Edit, expected: tuple[str, str, str]
) -> None:
    target.others_at_work()
    assert target.changes_by_others([receipt("pod-kill")]) == []
    edit(store)
    [found] = target.changes_by_others([receipt("pod-kill")])
    assert (found["subject"], found["what"], found["by"]) == expected
    assert found["was"] != found["now"]


def test_what_the_drill_did_itself_is_no_change(store: Store, target: KubernetesTarget) -> None:
    target.others_at_work()
    CORDON(store)
    evicted("EvictionByEvictionAPI")(store)
    uid = store.objects["pods", "llm", "vllm-5d8f-a"]["metadata"]["uid"]
    assert len(target.changes_by_others([receipt("pod-kill", uid=uid)])) == 1  # which cordons nothing
    assert target.changes_by_others([receipt("gpu-reset", uid=uid, host="node-1")]) == []


def test_an_autoscaler_that_was_there_scales_and_nobody_else_is_to_blame(
    store: Store, target: KubernetesTarget
) -> None:
    autoscaled(3)(store)
    target.others_at_work()
    edited("deployments", "vllm", spec={"replicas": 5})(store)
    assert target.changes_by_others([])[0]["by"] == "others"  # it wants three
    autoscaled(5)(store)
    [found] = target.changes_by_others([])
    assert (found["what"], found["was"], found["now"], found["by"]) == ("replicas", 3, 5, "autoscaler")
    edited("deployments", "vllm", spec={"replicas": 3})(store)
    autoscaled(3)(store)
    assert target.changes_by_others([]) == []


def test_an_autoscaler_that_was_changed_is_somebodys_doing(store: Store, target: KubernetesTarget) -> None:
    autoscaled(3)(store)
    target.others_at_work()
    autoscaled(5, least=5)(store)
    edited("deployments", "vllm", spec={"replicas": 5})(store)
    assert {found["by"] for found in target.changes_by_others([])} == {"others"}


def test_an_eviction_that_was_over_between_two_looks_is_still_known(store: Store, target: KubernetesTarget) -> None:
    """The watch of the pods has seen it."""
    target.others_at_work()
    target.replica_events(0)
    evicted("EvictionByEvictionAPI")(store)
    with store.lock:
        store.lock.wait_for(lambda: bool(target._changes.disrupted()), timeout=10)
    store.drop("pods", "vllm-5d8f-a")
    [found] = target.changes_by_others([])
    assert (found["subject"], found["now"]) == ("pod vllm-5d8f-a", "evicted")


def test_an_eviction_that_is_over_refuses_no_drill_that_follows(store: Store, target: KubernetesTarget) -> None:
    """Nor is it somebody's change of that drill; while the pod is still there it is at work."""
    target.others_at_work()
    target.replica_events(0)
    evicted("EvictionByEvictionAPI")(store)
    with store.lock:
        store.lock.wait_for(lambda: bool(target._changes.disrupted()), timeout=10)
    assert "pod vllm-5d8f-a: is being evicted" in target.others_at_work()[0]
    store.drop("pods", "vllm-5d8f-a")
    assert target.others_at_work() == []
    assert target.changes_by_others([]) == []


def test_an_eviction_that_came_to_nothing_refuses_nothing(store: Store, target: KubernetesTarget) -> None:
    """The cluster takes its word back from a pod that stays."""
    target.replica_events(0)
    evicted("EvictionByEvictionAPI")(store)
    with store.lock:
        store.lock.wait_for(lambda: bool(target._changes.disrupted()), timeout=10)
    store.edit("pods", "vllm-5d8f-a", lambda pod: pod["status"]["conditions"][-1].update(status="False"))
    assert target.others_at_work() == []


def test_under_a_controller_of_another_kind_the_replicaset_is_watched(store: Store, target: KubernetesTarget) -> None:
    above = [{"kind": "Rollout", "name": "vllm", "controller": True}]
    store.edit("replicasets", "vllm-5d8f", lambda item: item["metadata"].update(ownerReferences=above))
    store.edit("replicasets", "vllm-5d8f", lambda item: item.update(status={"replicas": 3}))
    assert target.others_at_work() == []
    edited("replicasets", "vllm-5d8f", spec={"replicas": 2})(store)
    [found] = target.changes_by_others([])
    assert (found["subject"], found["what"]) == ("ReplicaSet vllm-5d8f", "replicas")


def test_of_very_many_nodes_the_victims_are_looked_at(store: Store, target: KubernetesTarget) -> None:
    for number in range(NODES_MAX + 5):
        name = f"other-{number:02}"
        store.put("nodes", {"metadata": {"name": name, "namespace": ""}, "spec": {}})
        put = pod(f"vllm-5d8f-{number}")
        put["spec"]["nodeName"] = name
        store.put("pods", put)
    last = f"other-{NODES_MAX + 4:02}"
    store.asked.clear()
    target.others_at_work()
    assert len([path for _, path in store.asked if "/nodes/" in path]) == NODES_MAX
    edited("nodes", last, "", spec={"unschedulable": True})(store)
    assert target.changes_by_others([receipt("pod-kill", host="node-1")]) == []
    [found] = target.changes_by_others([receipt("pod-kill", host=last)])
    assert found["subject"] == f"node {last}"


def test_a_server_that_cannot_be_asked_is_no_change(store: Store, target: KubernetesTarget) -> None:
    target.others_at_work()
    store.forbidden = {("GET", "deployments")}
    with pytest.raises(Refused, match="get deployments vllm in llm: is not allowed"):
        target.changes_by_others([])


@pytest.mark.parametrize(
    ("spec", "status", "rolling"),
    [
        ({}, {"currentRevision": "a", "updateRevision": "a", "replicas": 3}, False),
        ({}, {"currentRevision": "a", "updateRevision": "b", "replicas": 3, "updatedReplicas": 2}, True),
        (
            {"updateStrategy": {"rollingUpdate": {"partition": 1}}},
            {"currentRevision": "a", "updateRevision": "b", "replicas": 3, "updatedReplicas": 2},
            False,
        ),
        (
            {"updateStrategy": {"type": "OnDelete"}},
            {"currentRevision": "a", "updateRevision": "b", "replicas": 3, "updatedReplicas": 0},
            False,
        ),
        ({}, {"currentRevision": "a", "updateRevision": "a", "replicas": 2}, True),
    ],
)
def test_a_statefulset_rolls_out_in_its_own_ways(spec: Json, status: Json, rolling: bool) -> None:
    item = {"metadata": {"name": "v"}, "spec": {"replicas": 3, **spec}, "status": status}
    assert bool(workload("StatefulSet", item).rollout) is rolling
