"""What is wrong with the example's service is found by its own check, and by no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes.client import AppsV1Api
from ruamel.yaml import YAML

from drills.model import Json
from tests.cluster.driving import EXPERIMENTS, driller
from tests.cluster.emulator import REPLICAS, SELECTOR, serving
from tests.cluster.example import ALERT, PATIENT, RUN_TIMEOUT_S, Example, run
from tests.cluster.kube import is_ready
from tests.lab.drilling import Driller, Ran

EXPERIMENT = EXPERIMENTS / "caught.yaml"
RESTART = "replica_restart: {within: 40s}"
HONEST = "health_honest: {within: 8s}"
FIRES = f"alert: {{name: {ALERT}, within: auto, notified_within: auto}}"
#: It says Ready as soon as the process runs; until a start-up probe has been answered nobody would be.
LYING: Json = {"readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}, "startupProbe": None}


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Example]:
    """Return the example's service with the shipped rules."""
    with serving(Example, cluster) as made:
        yield made


@pytest.fixture
def service(shared: Example) -> Iterator[Example]:
    """The service in order; afterwards it is in order again, and no drill has left anything."""
    shared.until_watched()
    yield shared
    shared.until_watched()
    assert shared.left() == []


@pytest.fixture
def drill(tmp_path: Path, cluster: Path) -> Driller:
    return driller(tmp_path, cluster, RUN_TIMEOUT_S)


def drilled(drill: Driller, service: Example, checks: str, how: str = "delete") -> Ran:
    """Run the short experiment with these checks; without a helper, which would be a pod more."""
    folder = drill.reports.parent
    text = EXPERIMENT.read_text().replace("CHECKS", checks).replace("how: delete", f"how: {how}")
    (folder / "caught.yaml").write_text(text)
    targets = service.targets(folder, plain)
    return run(service, drill, str(folder / "caught.yaml"), targets)


def plain(chat: Json) -> None:
    """Take helper and ledger out, and promise no more than these short runs can show."""
    del chat["kubernetes"]["helper"], chat["kubernetes"]["ledger"]
    chat["sla"] = PATIENT


def test_a_service_in_order_passes_all_of_it(drill: Driller, service: Example) -> None:
    ran = drilled(drill, service, f"{RESTART}\n  - {FIRES}\n  - {HONEST}")
    assert ran.code == 0, ran.out + ran.err


def test_a_replica_that_is_never_replaced(drill: Driller, service: Example) -> None:
    core, name = service.namespace.core, service.namespace.name
    pods = len(service.namespace.pods())
    quota = {"metadata": {"name": "full"}, "spec": {"hard": {"pods": str(pods - 1)}}}
    core.create_namespaced_resource_quota(name, quota)
    service.namespace.wait("the quota to be counted", lambda: counted(service))
    try:
        ran = drilled(drill, service, RESTART)
    finally:
        core.delete_namespaced_resource_quota("full", name)
        nudge(service)
    assert ran.code == 1, ran.out + ran.err
    assert ran.failing() == {"replica_restart"}
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "degraded")


def counted(service: Example) -> bool:
    """Whether the quota's controller has counted what is there."""
    found = service.namespace.core.read_namespaced_resource_quota("full", service.namespace.name)
    return bool(found.status and found.status.used)


def nudge(service: Example) -> None:
    """Have the ReplicaSet try again now; by itself it waits ever longer after each refusal."""
    apps = AppsV1Api(service.namespace.api)
    [found] = apps.list_namespaced_replica_set(service.namespace.name, label_selector=SELECTOR).items
    body = {"metadata": {"annotations": {"nudged": "true"}}}
    apps.patch_namespaced_replica_set(found.metadata.name, service.namespace.name, body)


def test_an_eviction_that_the_budget_never_allows(drill: Driller, service: Example) -> None:
    before = service.uids()
    policy, name = service._policy, service.namespace.name
    none = {"spec": {"maxUnavailable": 0}}
    policy.patch_namespaced_pod_disruption_budget("vllm", name, none)
    try:
        ran = drilled(drill, service, RESTART, how="evict, budget_timeout: 3s")
    finally:
        policy.patch_namespaced_pod_disruption_budget("vllm", name, {"spec": {"maxUnavailable": 1}})
    assert ran.code == 3, ran.out + ran.err
    said = [line for line in ran.out.splitlines() if line.startswith("refused: ")]
    assert ["eviction is refused by the disruption budget for 3 s" in line for line in said] == [True]
    assert ran.events("inject.hit") == []
    assert service.uids() == before


def test_a_readiness_probe_that_lies(drill: Driller, service: Example) -> None:
    """Everybody sends to an engine that is loading."""
    honest = probe(service, LYING)
    try:
        ran = drilled(drill, service, f"{RESTART}\n  - {HONEST}")
    finally:
        probe(service, honest)
    assert ran.code == 1, ran.out + ran.err
    assert ran.failing() == {"health_honest"}
    assert "its readiness probe said Ready while no completion of it worked" in ran.row("health_honest")["reason"]


def probe(service: Example, change: Json) -> Json:
    """Give the engines other probes, wait until all have them, and return those that they had."""
    api, apps, name = service.namespace.api, service.namespace.apps, service.namespace.name
    body: Json = api.sanitize_for_serialization(apps.read_namespaced_deployment("vllm", name))
    container = body["spec"]["template"]["spec"]["containers"][0]
    before = {key: container.get(key) for key in change}
    container |= change
    apps.replace_namespaced_deployment("vllm", name, body)
    service.namespace.wait("the rollout", lambda: rolled_out(service), 240.0)
    service.until_watched()
    return before


def rolled_out(service: Example) -> bool:
    """Whether all replicas are of the present template, answer, and nobody else is there."""
    found = service.namespace.apps.read_namespaced_deployment("vllm", service.namespace.name)
    s = found.status
    done = s.observed_generation == found.metadata.generation and s.updated_replicas == s.available_replicas == REPLICAS
    return bool(done) and len(service.namespace.pods(SELECTOR)) == REPLICAS


def test_an_alert_that_is_missing(drill: Driller, service: Example) -> None:
    whole = rules(service, left_out)
    try:
        ran = drilled(drill, service, f"{RESTART}\n  - {FIRES}")
    finally:
        rules(service, lambda _: whole)
    assert ran.code == 1, ran.out + ran.err
    assert ran.failing() == {"alert"}
    assert "did not fire within" in ran.row("alert")["reason"]


def test_an_alert_that_nobody_is_told_of(drill: Driller, service: Example) -> None:
    """It fires, and Alertmanager's route sends it to a receiver that tells nobody."""
    before = route(service, lambda text: text.replace("receiver: pager", "receiver: nobody"))
    try:
        ran = drilled(drill, service, f"{RESTART}\n  - {FIRES}")
    finally:
        route(service, lambda _: before)
    assert ran.code == 1, ran.out + ran.err
    assert ran.failing() == {"alert"}
    assert "fired in time; notified: not seen" in ran.row("alert")["reason"]


def rules(service: Example, change: Callable[[str], str]) -> str:
    """Change the rules, restart Prometheus with them, and return what they were."""
    return configured(service, "vllm-alerts", "vllm.rules.yml", change, "prometheus")


def route(service: Example, change: Callable[[str], str]) -> str:
    """Change Alertmanager's configuration, restart it, and return what it was."""
    return configured(service, "alertmanager", "alertmanager.yml", change, "alertmanager")


def configured(service: Example, name: str, key: str, change: Callable[[str], str], part: str) -> str:
    core, namespace = service.namespace.core, service.namespace.name
    before = str(core.read_namespaced_config_map(name, namespace).data[key])
    after = change(before)
    assert after != before
    core.patch_namespaced_config_map(name, namespace, {"data": {key: after}})
    [old] = service.namespace.pods(f"app={part}")
    core.delete_namespaced_pod(old.metadata.name, namespace)
    service.namespace.wait(f"a new {part}", lambda: another(service, part, old.metadata.uid), 120.0)
    service.until_watched()
    return before


def another(service: Example, part: str, old: str) -> bool:
    """Whether a part's pod has been replaced by one that is Ready."""
    found = service.namespace.pods(f"app={part}")
    return len(found) == 1 and found[0].metadata.uid != old and is_ready(found[0])


def left_out(text: str) -> str:
    """Return the rules without the alert."""
    yaml = YAML(typ="safe")
    content = yaml.load(text)
    for group in content["groups"]:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert") != ALERT]
    return json.dumps(content)  # which is YAML, too
