"""Emulated engines as a Deployment behind a Service, in a namespace of their own; made and removed through the API."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from drills.access.kubernetes import Api
from drills.access.kubetypes import PODS, ClusterError, Resource
from tests.cluster import images

Json = dict[str, Any]
NAMESPACES = Resource("", "v1", "namespaces")
SERVICES = Resource("", "v1", "services")
ACCOUNTS = Resource("", "v1", "serviceaccounts")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings")
LABELS = {"app": "vllm"}
PORT = 8000
READY_TIMEOUT_S, GONE_TIMEOUT_S = 240.0, 120.0


class Service:
    """Three engines in a namespace that nobody else uses."""

    def __init__(self, api: Api, replicas: int = 3) -> None:
        self.api, self.replicas = api, replicas
        self.namespace = f"drill-test-{secrets.token_hex(3)}"

    def create(self) -> None:
        """Create everything and wait until all engines are ready."""
        self.api.create(NAMESPACES, "", {"metadata": {"name": self.namespace}})
        until("the default ServiceAccount", lambda: self.api.find(ACCOUNTS, self.namespace, "default"), 60.0)
        self.api.create(DEPLOYMENTS, self.namespace, deployment(self.replicas))
        spec = {"selector": LABELS, "ports": [{"port": PORT}]}
        self.api.create(SERVICES, self.namespace, {"metadata": {"name": "vllm"}, "spec": spec})
        self.until_ready()

    def remove(self) -> None:
        """Remove the namespace with everything in it, and wait until it is gone."""
        self.api.delete(NAMESPACES, "", self.namespace, {"gracePeriodSeconds": 0})
        until("the namespace is gone", lambda: self.api.find(NAMESPACES, None, self.namespace) is None, GONE_TIMEOUT_S)

    @property
    def url(self) -> str:
        """Where users send requests."""
        address = self.api.get(SERVICES, self.namespace, "vllm")["spec"]["clusterIP"]
        return f"http://{address}:{PORT}/v1"

    def pods(self) -> list[Json]:
        """Return its pods."""
        found, _ = self.api.list_all(PODS, self.namespace, labels="app=vllm", keep=lambda pod: pod)
        return found

    def uids(self) -> set[str]:
        """Return the UIDs of its pods that are not ending."""
        return {p["metadata"]["uid"] for p in self.pods() if "deletionTimestamp" not in p["metadata"]}

    def until_ready(self) -> None:
        """Wait until all engines are ready, and nobody is leaving."""
        until(
            "all engines are ready", lambda: [ready(p) for p in self.pods()] == [True] * self.replicas, READY_TIMEOUT_S
        )

    def budget(self, minimum: int) -> None:
        """Create a disruption budget, and wait until the controller has counted for it."""
        spec = {"minAvailable": minimum, "selector": {"matchLabels": LABELS}}
        self.api.create(BUDGETS, self.namespace, {"metadata": {"name": "vllm"}, "spec": spec})

        def counted() -> bool:
            status = self.api.get(BUDGETS, self.namespace, "vllm").get("status") or {}
            return int(status.get("currentHealthy") or 0) == self.replicas

        until("the budget is counted", counted, 60.0)

    def unbudget(self) -> None:
        """Remove the disruption budget."""
        self.api.delete(BUDGETS, self.namespace, "vllm")

    def left(self) -> list[str]:
        """Return what a drill may leave nowhere: Leases, ConfigMaps of its own."""
        found = []
        for plural, group, version in (("leases", "coordination.k8s.io", "v1"), ("configmaps", "", "v1")):
            names, _ = self.api.list_all(
                Resource(group, version, plural), self.namespace, keep=lambda item: str(item["metadata"]["name"])
            )
            found += [f"{plural}/{name}" for name in names if name.startswith("drill")]
        return found


def deployment(replicas: int) -> Json:
    """Return the Deployment. An engine that dies is replaced as a real one would be; its start takes a moment."""
    command = ["python3", "-m", "drills.lab.engine.server", "--host=0.0.0.0", f"--port={PORT}", "--model=lab-chat"]
    health = {
        "httpGet": {"path": "/health", "port": PORT},
        "periodSeconds": 1,
        "failureThreshold": 3,
        "timeoutSeconds": 5,
    }
    container = {
        "name": "engine",
        "image": images.DRILLS,
        "imagePullPolicy": "Never",
        "command": [*command, "--name=engine", "--startup-s=3"],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": health,
    }
    pod = {"metadata": {"labels": LABELS}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 10}}
    spec = {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": pod}
    return {"metadata": {"name": "vllm"}, "spec": spec}


def ready(pod: Json) -> bool:
    """Whether a pod is ready and not ending."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    good = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return good and "deletionTimestamp" not in pod["metadata"]


def until(what: str, holds: Callable[[], object], within_s: float) -> None:
    """Wait until something holds; an API server that is away for a moment is asked again."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            if holds():
                return
            why = "it never held"
        except ClusterError as error:
            why = str(error)
        assert time.monotonic() < deadline, f"waited in vain until {what}: {why}"
        time.sleep(0.2)
