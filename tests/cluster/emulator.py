"""Emulated replicas in a namespace of their own, as the tests of drills use them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from kubernetes.client import CoordinationV1Api, PolicyV1Api, RbacAuthorizationV1Api
from ruamel.yaml import YAML

from drills.model import Json
from tests.cluster.kube import MANIFESTS, REQUEST_TIMEOUT_S, Namespace

SELECTOR = "app=vllm"
REPLICAS = 3
READY_TIMEOUT_S = 240.0
OURS = "drill"  # begins the name of every object of a drill


class Emulator:
    """Three replicas behind a Service."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def create(self) -> None:
        """Create them and wait until they are Ready."""
        self.namespace.create(MANIFESTS / "emulator.yaml")
        self.until_ready()
        self.namespace.until_reached("vllm")

    def destroy(self) -> None:
        """Delete the namespace, and wait until it is gone."""
        self.namespace.delete()

    def until_ready(self) -> None:
        """Wait until all of them are Ready and nobody is on the way out."""
        self.namespace.wait("three Ready replicas", self._all_ready, READY_TIMEOUT_S)

    def _all_ready(self) -> bool:
        return len(self.namespace.ready_pods(SELECTOR)) == len(self.namespace.pods(SELECTOR)) == REPLICAS

    def renewed(self) -> None:
        """Have another pod for each whose container was restarted: the kubelet waits longer before every next time."""
        for pod in self.namespace.pods(SELECTOR):
            if any(status.restart_count for status in pod.status.container_statuses or ()):
                self.namespace.core.delete_namespaced_pod(pod.metadata.name, self.namespace.name)
        self.until_ready()

    @property
    def url(self) -> str:
        """Where users send requests."""
        service = self.namespace.core.read_namespaced_service("vllm", self.namespace.name)
        return f"http://{service.spec.cluster_ip}/v1"

    def route(self) -> None:
        """Put the router in front, and wait until it can be asked."""
        self.namespace.create(MANIFESTS / "router.yaml")
        self.namespace.wait("a Ready router", lambda: self.namespace.ready_pods("app=router"), READY_TIMEOUT_S)
        self.namespace.until_reached("router")

    @property
    def router(self) -> str:
        """The router's address, without port: users on 80, metrics on 29000."""
        service = self.namespace.core.read_namespaced_service("router", self.namespace.name)
        return f"http://{service.spec.cluster_ip}"

    def uids(self) -> set[str]:
        """Return the UIDs of those that stay."""
        found = self.namespace.pods(SELECTOR)
        return {str(pod.metadata.uid) for pod in found if pod.metadata.deletion_timestamp is None}

    def budget(self, minimum: int) -> None:
        """Create a disruption budget, and wait until the controller has counted for it."""
        body: Json = {"metadata": {"name": "vllm"}}
        body["spec"] = {"minAvailable": minimum, "selector": {"matchLabels": {"app": "vllm"}}}
        self._policy.create_namespaced_pod_disruption_budget(self.namespace.name, body)
        self.namespace.wait("the budget to be counted", self._counted)

    def _counted(self) -> bool:
        found = self._policy.read_namespaced_pod_disruption_budget("vllm", self.namespace.name)
        return found.status is not None and found.status.current_healthy == REPLICAS

    def unbudget(self) -> None:
        """Remove the disruption budget."""
        self._policy.delete_namespaced_pod_disruption_budget("vllm", self.namespace.name)

    def left(self) -> list[str]:
        """Return what drills have left in the namespace."""
        core, name = self.namespace.core, self.namespace.name
        found = {
            "lease": CoordinationV1Api(self.namespace.api).list_namespaced_lease(name),
            "configmap": core.list_namespaced_config_map(name),
            "pod": core.list_namespaced_pod(name),
        }
        named = [(kind, str(one.metadata.name)) for kind, all_ in found.items() for one in all_.items]
        return [f"{kind} {one}" for kind, one in named if one.startswith(OURS)]

    def token(self, account: str, role: Json | None) -> str:
        """Return a token of a new service account that has that role."""
        core, name = self.namespace.core, self.namespace.name
        core.create_namespaced_service_account(name, {"metadata": {"name": account}})
        if role is not None:
            rbac = RbacAuthorizationV1Api(self.namespace.api)
            rbac.create_namespaced_role(name, role)
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role["metadata"]["name"]}
            subject = {"kind": "ServiceAccount", "name": account, "namespace": name}
            body = {"metadata": {"name": account}, "roleRef": reference, "subjects": [subject]}
            rbac.create_namespaced_role_binding(name, body)
        asked = {"spec": {"expirationSeconds": 3600}}
        made = core.create_namespaced_service_account_token(account, name, asked, _request_timeout=REQUEST_TIMEOUT_S)
        return str(made.status.token)

    @property
    def _policy(self) -> Any:
        return PolicyV1Api(self.namespace.api)


Service = TypeVar("Service", bound=Emulator)


@contextlib.contextmanager
def serving(make: Callable[[Namespace], Service], kubeconfig: Path) -> Iterator[Service]:
    """Have a service in a namespace of its own, which is gone afterwards, whatever happens."""
    service = make(Namespace.make(kubeconfig))
    try:
        service.create()
        yield service
    finally:
        service.destroy()


def declared_helper(account: str | None = None) -> str:
    """Return what a targets file says of helpers: the tests' image, and their service account."""
    more = "" if account is None else f", service_account: {account}"
    return f'{{image: "drills.test/drills:dev"{more}}}'


def with_token(kubeconfig: Path, token: str) -> Json:
    """Return that kubeconfig with a token in place of all credentials."""
    content: Json = YAML(typ="safe").load(kubeconfig.read_text())
    for user in content["users"]:
        user["user"] = {"token": token}
    return content
