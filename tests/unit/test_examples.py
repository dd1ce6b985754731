"""The files of examples/kubernetes hold together: rules as shipped, a target that loads, names that meet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from drills import experiment, plan, target
from drills.model import Json

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "kubernetes"
MANIFESTS = sorted(path for path in EXAMPLES.glob("*.yaml") if path.name != "drill.yaml")
ENGINES = ("engines-emulated.yaml", "engines-vllm.yaml")


def objects(path: Path) -> Iterator[Json]:
    yield from YAML(typ="safe").load_all(path.read_text())


def one(file: str, kind: str, name: str) -> Json:
    [found] = [o for o in objects(EXAMPLES / file) if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def test_the_rules_are_the_shipped_ones() -> None:
    command = [sys.executable, str(ROOT / "tools" / "example_alerts.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def test_the_quick_rules_differ_in_times_only() -> None:
    shipped, quick = (one(f, "ConfigMap", "vllm-alerts")["data"] for f in ("alerts.yaml", "alerts-emulated.yaml"))
    assert shipped["serving-minimum.rules.yml"] == quick["serving-minimum.rules.yml"]
    changed = [
        (was.strip(), now.strip())
        for was, now in zip(*(text["vllm.rules.yml"].splitlines() for text in (shipped, quick)), strict=True)
        if was != now
    ]
    assert changed
    assert all("[" in now or now == "for: 5s" for _, now in changed)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_object_is_namespaced_by_whoever_applies_it(path: Path) -> None:
    found = list(objects(path))
    assert found
    for document in found:
        assert "namespace" not in document["metadata"], document["metadata"]
        assert not document["kind"].startswith("Cluster")


@pytest.mark.parametrize("engines", ENGINES)
def test_the_parts_name_each_other_as_they_are_called(engines: str) -> None:
    spec = target.load_target("chat", EXAMPLES / "drill.yaml")
    assert spec.kubernetes is not None
    assert spec.router is not None
    pod = one(engines, "Deployment", "vllm")["spec"]["template"]
    labels, [container] = pod["metadata"]["labels"], pod["spec"]["containers"]
    assert spec.kubernetes.selector == f"app={labels['app']}"
    assert one("service.yaml", "Service", "vllm")["spec"]["selector"] == {"app": labels["app"]}
    assert one("service.yaml", "PodDisruptionBudget", "vllm")["spec"]["selector"]["matchLabels"] == {
        "app": labels["app"]
    }
    assert {"service", "model"} <= labels.keys()
    assert container["name"] == spec.kubernetes.container
    assert [port["containerPort"] for port in container["ports"]] == [spec.kubernetes.port]
    router = one("router.yaml", "Deployment", "router")["spec"]["template"]
    assert spec.router.selector == f"app={router['metadata']['labels']['app']}"
    args = router["spec"]["containers"][0]["args"]
    assert {f"--selector={spec.kubernetes.selector}", f"--service-discovery-port={spec.kubernetes.port}"} <= set(args)


def test_vllm_takes_no_variable_of_a_service_for_a_setting_of_its_own() -> None:
    """A kubelet sets VLLM_PORT=tcp://... for a Service named vllm, and vLLM does not start with that."""
    assert one("service.yaml", "Service", "vllm")
    assert one("engines-vllm.yaml", "Deployment", "vllm")["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_the_target_says_of_the_monitoring_what_it_is() -> None:
    spec = target.load_target("chat", EXAMPLES / "drill.yaml")
    yaml = YAML(typ="safe")
    prometheus = yaml.load(one("prometheus.yaml", "ConfigMap", "prometheus")["data"]["prometheus.yml"])["global"]
    manager = yaml.load(one("alertmanager.yaml", "ConfigMap", "alertmanager")["data"]["alertmanager.yml"])["route"]
    rules = yaml.load(one("alerts-emulated.yaml", "ConfigMap", "vllm-alerts")["data"]["vllm.rules.yml"])
    [rule] = [r for group in rules["groups"] for r in group["rules"] if r.get("alert") == "VllmReplicaDown"]
    times = spec.alert_times
    assert times is not None
    assert prometheus["scrape_interval"] == f"{times.scrape_s:g}s"
    assert prometheus["evaluation_interval"] == f"{times.evaluation_s:g}s"
    assert rule["for"] == f"{times.for_s:g}s"
    assert manager["group_wait"] == f"{times.group_wait_s:g}s"


@pytest.mark.parametrize("name", ["pod-kill", "packet-loss"])
def test_the_shipped_drills_can_be_planned_for_it(name: str) -> None:
    spec = target.load_target("chat", EXAMPLES / "drill.yaml")
    assert plan.make_plan(experiment.find_experiment(name), spec, run="0123abcd", seed=1).steps
