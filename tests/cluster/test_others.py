"""Others change the service while it is drilled, or are at it already: refused, or reverted and inconclusive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes.client import AutoscalingV2Api

from drills.model import Json
from tests.cluster.driving import begun, declare, pod_killer, refused, words
from tests.cluster.emulator import REPLICAS, SELECTOR, Emulator, serving
from tests.cluster.kube import REQUEST_TIMEOUT_S
from tests.lab.drilling import Driller, Ran, events

ROLLOUT_TIMEOUT_S = 240.0
NOWHERE = {"drills.test/nowhere": "true"}


class Operated(Emulator):
    """The replicas, and what people do to them."""

    def patch(self, spec: Json) -> None:
        """Change the Deployment."""
        body = {"spec": spec}
        self.namespace.apps.patch_namespaced_deployment("vllm", self.namespace.name, body)

    def rollout(self) -> None:
        """As `kubectl rollout restart`."""
        self.patch({"template": {"metadata": {"annotations": {"restarted": str(time.time())}}}})

    def stick(self) -> None:
        """Begin a rollout that cannot go on: its pod finds no node."""
        self.patch({"template": {"spec": {"nodeSelector": NOWHERE}}})
        self.namespace.wait("the pod of the new version", lambda: len(self.namespace.pods(SELECTOR)) > REPLICAS)

    def unstick(self) -> None:
        """Take it back."""
        self.patch({"template": {"spec": {"nodeSelector": None}}})

    def scale(self, replicas: int) -> None:
        """As `kubectl scale`."""
        self.patch({"replicas": replicas})

    def evict_another(self, victim: str) -> None:
        """Evict a pod that is not the victim, by its UID."""
        other = next(p.metadata.name for p in self.namespace.ready_pods(SELECTOR) if p.metadata.uid != victim)
        body = {"metadata": {"name": other}}
        self.namespace.core.create_namespaced_pod_eviction(other, self.namespace.name, body)

    def autoscale(self, least: int) -> None:
        """Have an autoscaler that keeps at least that many; there are no metrics for more."""
        spec = {"minReplicas": least, "maxReplicas": 5, "metrics": [CPU]}
        aim = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"}
        body = {"metadata": {"name": "vllm"}, "spec": {**spec, "scaleTargetRef": aim}}
        scaling = AutoscalingV2Api(self.namespace.api)
        if scaling.list_namespaced_horizontal_pod_autoscaler(self.namespace.name).items:
            scaling.patch_namespaced_horizontal_pod_autoscaler("vllm", self.namespace.name, body)
        else:
            scaling.create_namespaced_horizontal_pod_autoscaler(self.namespace.name, body)

    def at_rest(self) -> None:
        """Take everything back and wait until the service is as it was."""
        AutoscalingV2Api(self.namespace.api).delete_collection_namespaced_horizontal_pod_autoscaler(self.namespace.name)
        self.scale(REPLICAS)
        self.unstick()
        self.namespace.wait("the end of the rollout", self._rolled_out, ROLLOUT_TIMEOUT_S)
        self.until_ready()

    def _rolled_out(self) -> bool:
        found = self.namespace.apps.read_namespaced_deployment("vllm", self.namespace.name)
        seen = found.status.observed_generation == found.metadata.generation
        return bool(seen and found.status.updated_replicas == found.status.replicas == REPLICAS)


CPU = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 90}},
}


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Operated]:
    with serving(Operated, cluster) as made:
        yield made


@pytest.fixture
def service(shared: Operated) -> Iterator[Operated]:
    """The replicas, all Ready; afterwards no drill may have left anything."""
    shared.at_rest()
    yield shared
    assert shared.left() == []


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, service: Operated) -> Driller:
    return pod_killer(tmp_path, cluster, service)


def interrupted(drill: Driller, after: str, act: Callable[[Path], None]) -> tuple[int, Path, str]:
    """Let somebody act as soon as a run has come that far; returns how it ended."""
    with begun(drill, words(drill, "delete.yaml")) as process:
        folder = drill.until(after, process, None, within_s=150.0)
        act(folder)
        out = process.communicate(timeout=240)[0]
    return process.returncode, folder, out


# ---- before ----------------------------------------------------------------------------------------------


def refusal(drill: Driller) -> str:
    ran: Ran = drill(*words(drill, "delete.yaml"))
    said = refused(ran, 3)
    assert ran.events("load.started") == []
    return said


def test_a_rollout_in_progress_refuses(drill: Driller, service: Operated) -> None:
    service.stick()
    said = refusal(drill)
    assert "others are at work: Deployment vllm: a rollout is in progress: 1 of 3 replicas" in said


def test_a_cordoned_node_refuses(drill: Driller, service: Operated, own_node: Path) -> None:
    core = service.namespace.core
    node = service.namespace.pods(SELECTOR)[0].spec.node_name
    core.patch_node(node, {"spec": {"unschedulable": True}}, _request_timeout=REQUEST_TIMEOUT_S)
    try:
        said = refusal(drill)
    finally:
        core.patch_node(node, {"spec": {"unschedulable": False}}, _request_timeout=REQUEST_TIMEOUT_S)
    assert f"others are at work: node {node}: is cordoned" in said


def test_production_gets_a_tenth_of_what_users_send_which_is_nothing_here(drill: Driller, service: Operated) -> None:
    """Counted at the engines, through the API server; readiness probes are no users."""
    limits = "{environment: production, windows: ['Mon-Sun 00:00-24:00 UTC'], stop_if: ['vector(0)']}"
    nobody = "    prometheus: {url: http://127.0.0.1:9}\n"
    declare(drill.reports.parent, service, more=f"{nobody}    limits: {limits}\n")
    said = refused(drill(*words(drill, "delete.yaml")), 3)
    assert "target prod is production: add --confirm prod and --oncall NAME" in said
    said = refused(drill(*words(drill, "delete.yaml"), "--confirm", "prod", "--oncall", "ada"), 3)
    assert "production: 6/s would be added to 0/s of users (by the engines' counters)" in said
    assert "limits.stop_if: vector(0): is not answered" in said


# ---- during ----------------------------------------------------------------------------------------------


def test_a_rollout_before_the_fault_ends_the_run_untouched(drill: Driller, service: Operated) -> None:
    code, folder, out = interrupted(drill, "load.started", lambda _: service.rollout())
    assert code == 2, out
    assert events(folder, "inject.hit") == []
    assert events(folder, "changed_by_others")


@pytest.mark.parametrize("what", ["rollout", "scale", "autoscaler", "eviction"])
def test_what_others_do_during_the_fault_ends_the_run_reverted_and_inconclusive(
    drill: Driller, service: Operated, what: str
) -> None:
    if what == "autoscaler":
        service.autoscale(REPLICAS)

    def act(folder: Path) -> None:
        [receipt] = events(folder, "receipt")
        victim = receipt["data"]["receipt"]["victims"][0]["uid"]
        acts: dict[str, Callable[[], None]] = {
            "rollout": service.rollout,
            "scale": lambda: service.scale(REPLICAS + 1),
            "autoscaler": lambda: service.autoscale(REPLICAS + 1),
            "eviction": lambda: service.evict_another(victim),
        }
        acts[what]()

    code, folder, out = interrupted(drill, "proof.off", act)
    assert code == 2, out
    [hit] = events(folder, "inject.hit")
    changed = events(folder, "changed_by_others")
    assert changed
    assert changed[0]["mono"] > hit["mono"]
    subject = {"rollout": "Deployment vllm", "scale": "Deployment vllm", "autoscaler": "autoscaler vllm"}
    assert subject.get(what, "pod vllm-") in changed[0]["data"]["subject"]
    [end] = events(folder, "end")
    assert (end["data"]["status"], end["data"]["reason"][:4]) == ("changed", changed[0]["data"]["subject"][:4])
    assert "verdict: inconclusive" in out
    assert "restored: clean" in out
