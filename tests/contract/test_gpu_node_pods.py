"""A node as the API tells of it: which pods it refused are the target's own, and whether it is still there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.access import nodemarks
from drills.access.kubernetes import Limits, connect
from drills.cluster import cordon
from drills.cluster.gpunode import REFUSED, ClusterGpuNode
from drills.model import Json
from drills.targetfile import Kubernetes
from tests.contract.kube_api import Store, pod, serving
from tests.contract.kube_talk import kubeconfig

BORN, BEFORE = "2026-06-01T00:00:10Z", "2026-06-01T00:00:00Z"
SINCE_WALL = 1780272005.0  # between the two
STEP: Json = {"do": "node", "node": "node-1", "run": "r", "cordon": True, "labels": {}, "offers": 1}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving() as (store, url):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
        yield store


@pytest.fixture
def node(store: Store) -> ClusterGpuNode:
    store.put("nodes", {"metadata": {"name": "node-1", "namespace": ""}, "spec": {}})
    where = Kubernetes(namespace="llm", selector="app=vllm", fallback_selector="app=small")
    return ClusterGpuNode(
        connect(limits=Limits(deadline_s=5.0)), where, "node-1", lambda _: pytest.fail("a helper"), {}
    )


def refused(store: Store, name: str, workload: str = "vllm", born: str = BORN, reason: str = REFUSED) -> Json:
    body = pod(name, workload=workload, reason=reason)
    body["metadata"] |= {"creationTimestamp": born}
    return store.put("pods", body)


def test_only_the_targets_own_pods_that_were_refused_since_then_are_cleaned(store: Store, node: ClusterGpuNode) -> None:
    refused(store, "ours")
    refused(store, "fallback", workload="small")
    refused(store, "of-others", workload="training")
    refused(store, "from-before", born=BEFORE)
    refused(store, "evicted", reason="Evicted")
    found = node.refused(SINCE_WALL)
    assert [name for name, _ in found] == ["fallback", "ours"]
    for name, uid in found:
        node.delete(name, uid)
    pods = {key[2]: body for key, body in store.objects.items() if key[0] == "pods"}
    kept = {name for name, body in pods.items() if "deletionTimestamp" not in body["metadata"]}
    assert kept == {"of-others", "from-before", "evicted"}


def test_one_that_is_another_by_now_stays(store: Store, node: ClusterGpuNode) -> None:
    refused(store, "ours")
    node.delete("ours", "another-uid")
    assert [name for name, _ in node.refused(SINCE_WALL)] == ["ours"]


def test_a_node_that_is_gone_is_told_and_done(store: Store, node: ClusterGpuNode) -> None:
    api = connect(limits=Limits(deadline_s=5.0))
    assert not node.gone()
    store.drop("nodes", "node-1", "")
    assert node.gone()
    assert cordon.carry_out(api, STEP) is None
    clock = nodemarks.Clock(lambda _: None, lambda: 0.0)
    assert nodemarks.undo(cordon.NodeObjects(api), STEP, wait_s=0.0, clock=clock) == ""
