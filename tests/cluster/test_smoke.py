"""What the drills rely on: replicas become Ready, a Service reaches them, a deleted one is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.cluster import node
from tests.cluster.kube import MANIFESTS, Namespace

REPLICAS = 3
READY_TIMEOUT_S = 120.0


def is_gone(namespace: Namespace, uid: str) -> bool:
    return uid not in {pod.metadata.uid for pod in namespace.pods()}


@pytest.fixture
def replicas(namespace: Namespace) -> list[Any]:
    """Return the three pods of the Deployment, all Ready."""
    namespace.create(MANIFESTS / "emulator.yaml")
    return namespace.wait("three Ready replicas", lambda: all_ready(namespace), READY_TIMEOUT_S)


def all_ready(namespace: Namespace) -> list[Any]:
    ready = namespace.ready_pods("app=vllm")
    return ready if len(ready) == REPLICAS else []


def complete(base_url: str) -> tuple[int, str] | None:
    """Ask for a completion; return status and text, None where nobody can be reached."""
    body = {"model": "lab-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    with urllib3.PoolManager(timeout=10.0, retries=False) as http:
        try:
            answer = http.request("POST", f"{base_url}/v1/chat/completions", json=body)
        except urllib3.exceptions.NewConnectionError:
            return None
    return answer.status, str(answer.json()["choices"][0]["message"]["content"])


def test_a_completion_comes_through_the_service(namespace: Namespace, own_node: Path, replicas: list[Any]) -> None:
    service = namespace.core.read_namespaced_service("vllm", namespace.name)
    url = f"http://{service.spec.cluster_ip}"
    # kube-proxy learns of the replicas a moment after they are Ready.
    answer = namespace.wait("an answer from the Service", lambda: complete(url))
    assert answer is not None
    status, text = answer
    assert status == 200
    assert text


def test_a_deleted_replica_is_replaced(namespace: Namespace, replicas: list[Any]) -> None:
    victim = replicas[0].metadata
    namespace.core.delete_namespaced_pod(victim.name, namespace.name)
    namespace.wait("its end", lambda: is_gone(namespace, victim.uid))
    after = namespace.wait("three Ready replicas again", lambda: all_ready(namespace), READY_TIMEOUT_S)
    before = {pod.metadata.uid for pod in replicas}
    assert len({pod.metadata.uid for pod in after} - before) == 1
    assert {pod.metadata.uid for pod in after} >= before - {victim.uid}


def test_a_component_is_stopped_until_it_is_started(own_node: Path) -> None:
    before = node.pids("kube-scheduler")
    node.stop("kube-scheduler")
    try:
        assert node.pids("kube-scheduler") == []
    finally:
        node.start("kube-scheduler")
    assert len(node.pids("kube-scheduler")) == len(before) == 1
    assert node.pids("kube-scheduler") != before
