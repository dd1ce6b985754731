"""A namespace of a test's own, and what the tests do in it."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kubernetes import client, config, utils
from kubernetes.client import ApiException
from ruamel.yaml import YAML

from drills.model import Json

MANIFESTS = Path(__file__).parent / "manifests"
REQUEST_TIMEOUT_S, WAIT_TIMEOUT_S, POLL_S = 10.0, 60.0, 0.1
CONNECT_TIMEOUT_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True)
class Namespace:
    """A namespace; everything in it goes with it."""

    name: str
    kubeconfig: Path
    api: Any  # kubernetes.client.ApiClient

    @classmethod
    def make(cls, kubeconfig: Path) -> Namespace:
        """Make one in which pods can be created at once."""
        made = cls(f"drills-test-{uuid.uuid4().hex[:8]}", kubeconfig, config.new_client_from_config(str(kubeconfig)))
        body = {"metadata": {"name": made.name}}
        made.core.create_namespace(body, _request_timeout=REQUEST_TIMEOUT_S)
        made.wait("its ServiceAccount", lambda: made.find(made.core.read_namespaced_service_account, "default"))
        return made

    def delete(self) -> None:
        """Delete it and wait until it is gone."""
        try:
            with contextlib.suppress(ApiException):
                self.core.delete_namespace(self.name, _request_timeout=REQUEST_TIMEOUT_S)
            self.wait("its end", lambda: self.name not in self._namespaces())
        finally:
            self.api.close()

    @property
    def core(self) -> Any:
        """The core API: pods, services, events."""
        return client.CoreV1Api(self.api)

    @property
    def apps(self) -> Any:
        """The apps API: deployments."""
        return client.AppsV1Api(self.api)

    def create(self, manifest: Path) -> None:
        """Create the objects of a YAML file here."""
        self.create_text(manifest.read_text())

    def create_text(self, manifests: str) -> None:
        """Create the objects of some YAML here."""
        for document in YAML(typ="safe").load_all(manifests):
            utils.create_from_dict(self.api, document, namespace=self.name)

    def pods(self, selector: str = "") -> list[Any]:
        """Return the pods that a selector chooses."""
        listed = self.core.list_namespaced_pod(self.name, label_selector=selector, _request_timeout=REQUEST_TIMEOUT_S)
        return list(listed.items)

    def ready_pods(self, selector: str = "") -> list[Any]:
        """Return those that are Ready and not on their way out."""
        return [pod for pod in self.pods(selector) if is_ready(pod) and pod.metadata.deletion_timestamp is None]

    def find(self, read: Callable[..., T], name: str) -> T | None:
        """Return what `read` finds by that name here, None when there is none."""
        try:
            return read(name, self.name, _request_timeout=REQUEST_TIMEOUT_S)
        except ApiException as e:
            if e.status == 404:
                return None
            raise

    def wait(self, what: str, ask: Callable[[], T], timeout_s: float = WAIT_TIMEOUT_S) -> T:
        """Return the first answer that is true (AssertionError with the pods' state when none comes)."""
        deadline = time.monotonic() + timeout_s
        while not (answer := ask()):
            assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s in vain for {what}: {self.state()}"
            time.sleep(POLL_S)
        return answer

    def until_reached(self, service: str) -> None:
        """Wait until a Service takes connections: kube-proxy learns of its pods a moment after they are Ready."""
        found = self.core.read_namespaced_service(service, self.name).spec
        where = (str(found.cluster_ip), int(found.ports[0].port))
        self.wait(f"the Service {service} to take connections", lambda: _connects(where))

    def state(self) -> Json:
        """Return what the pods look like, for a failing test's message."""
        return {
            pod.metadata.name: [pod.status.phase, *(_waiting(status) for status in pod.status.container_statuses or ())]
            for pod in self.pods()
        }

    def _namespaces(self) -> set[str]:
        listed = self.core.list_namespace(_request_timeout=REQUEST_TIMEOUT_S)
        return {found.metadata.name for found in listed.items}


def is_ready(pod: Any) -> bool:
    """Whether the kubelet says that the pod is Ready."""
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())


def _waiting(status: Any) -> str:
    waiting, ended = status.state.waiting, status.state.terminated
    return f"{status.name}: {waiting.reason if waiting else f'ended {ended.exit_code}' if ended else 'running'}"


def _connects(where: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(where, CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
