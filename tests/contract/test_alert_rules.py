"""The shipped alert rules, by promtool; and every alert is shown to matter: without it the rule tests fail."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from drills.lab import monitoring
from drills.lab.config import LabConfig
from drills.lab.defects import DEFECTS, plant
from drills.model import Json
from drills.probes.alerts import is_page

TESTS = monitoring.RULES.with_name("vllm.rules.test.yml")
ALERTS = ["VllmReplicaDown", "VllmEngineStalled", "VllmErrorRatioHigh", "VllmTtftP99High", "GpuLostOrRecoveryNeeded"]
#: The table serving-minimum; what of it has a page of its own (TTFT) is among the others.
MINIMUM = [
    "ServingQpsChanged",
    "ServingTokenGapP99High",
    "ServingErrorRatioHigh",
    "ServingPrefixHitRateLow",
    "ServingSwapping",
    "ServingGpuUtilisationLow",
    "ServingGpuMemoryHigh",
    "ServingGpuTemperatureWarm",
    "ServingGpuTemperatureHigh",
    "ServingGpuTemperatureCritical",
    "ServingBusinessMetricFell",
]
FILES = {**dict.fromkeys(ALERTS, monitoring.RULES), **dict.fromkeys(MINIMUM, monitoring.MINIMUM)}


def promtool(*args: str) -> subprocess.CompletedProcess[str]:
    program = monitoring.binaries().promtool
    if program is None:
        pytest.skip(f"promtool not found: {monitoring.INSTALL}")
    return subprocess.run([program, *args], capture_output=True, text=True, timeout=60, check=False)


def shipped(file: Path = monitoring.RULES) -> Json:
    rules: Json = YAML(typ="safe").load(file.read_text())
    return rules


def alerts(rules: str) -> dict[str, Json]:
    data = YAML(typ="safe").load(rules)
    return {rule["alert"]: rule for group in data["groups"] for rule in group["rules"] if "alert" in rule}


@pytest.mark.parametrize("file", [monitoring.RULES, monitoring.MINIMUM], ids=lambda file: str(file.name))
def test_shipped_rules_are_valid_and_pass_their_tests(file: Path) -> None:
    checked = promtool("check", "rules", str(file))
    assert checked.returncode == 0, checked.stderr
    tested = promtool("test", "rules", str(file).replace(".rules.", ".rules.test."))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_shipped_alerts_are_these() -> None:
    for file, names in ((monitoring.RULES, ALERTS), (monitoring.MINIMUM, MINIMUM)):
        assert sorted(alerts(file.read_text())) == sorted(names)


def spoilt(name: str, change: Callable[[str], str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the shipped tests with one alert's expression changed."""
    file = FILES[name]
    data = shipped(file)
    for group in data["groups"]:
        for rule in group["rules"]:
            if rule.get("alert") == name:
                rule["expr"] = change(rule["expr"])
    with (folder / file.name).open("w") as out:
        YAML(typ="safe").dump(data, out)
    tests = file.name.replace(".rules.", ".rules.test.")
    (folder / tests).write_text(file.with_name(tests).read_text())
    return promtool("test", "rules", str(folder / tests))


@pytest.mark.parametrize("name", FILES)
def test_rule_tests_fail_when_the_alert_cannot_fire(name: str, tmp_path: Path) -> None:
    assert spoilt(name, lambda _: "vector(0) > 1", tmp_path).returncode != 0


@pytest.mark.parametrize("name", FILES)
def test_rule_tests_fail_when_the_alert_always_fires(name: str, tmp_path: Path) -> None:
    assert spoilt(name, lambda expr: f"({expr}) or vector(1)", tmp_path).returncode != 0


#: Alert → what vLLM calls its metrics in older and in newer versions.
RENAMED = {
    "ServingTokenGapP99High": ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds"),
    "ServingPrefixHitRateLow": ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"),
    "ServingSwapping": ("vllm:num_requests_swapped", "vllm:num_preemptions_total"),
}


@pytest.mark.parametrize(("name", "which"), [(name, which) for name in RENAMED for which in (0, 1)])
def test_old_and_new_names_are_both_needed(name: str, which: int, tmp_path: Path) -> None:
    metric = RENAMED[name][which]
    assert spoilt(name, lambda expr: expr.replace(metric, "nothing"), tmp_path).returncode != 0


def test_who_is_woken() -> None:
    """A drill is refused while a page fires, and by nothing less."""
    labels = {name: rule["labels"] | {"alertname": name} for file in set(FILES.values())
              for name, rule in alerts(file.read_text()).items()}  # fmt: skip
    assert sorted(name for name in labels if is_page(labels[name])) == sorted(
        [*ALERTS, "ServingGpuTemperatureCritical"]
    )


def test_a_rule_that_only_looks_at_up_is_caught(tmp_path: Path) -> None:
    """up == 0 alone misses a replica whose series is gone: the reason for counting."""
    data = shipped()
    for rule in data["groups"][0]["rules"]:
        if rule.get("alert") == "VllmReplicaDown":
            rule["expr"] = 'count by (service, model) (up{job="vllm"} == 0) > 0'
    with (tmp_path / "vllm.rules.yml").open("w") as out:
        YAML(typ="safe").dump(data, out)
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    tested = promtool("test", "rules", str(tmp_path / TESTS.name))
    assert tested.returncode != 0
    assert "gone" in tested.stdout + tested.stderr


@pytest.mark.parametrize("defect", [None, *sorted(DEFECTS)])
def test_rules_rendered_for_the_lab_are_valid(defect: str | None, tmp_path: Path) -> None:
    config = plant(defect, LabConfig(alert_for_s=5))
    rendered = monitoring.rules(config)
    (tmp_path / "rules.yml").write_text(rendered)
    checked = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert checked.returncode == 0, checked.stderr
    found = alerts(rendered)
    assert set(found) == set(ALERTS) - set(config.alerts_left_out)
    assert {rule["for"] for rule in found.values()} == {"5s"}
    assert "[5m]" not in rendered
    assert "[1m]" not in rendered


def test_tickets_rendered_for_the_lab_are_valid_and_as_patient_as_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(monitoring.minimum())
    checked = promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert checked.returncode == 0, checked.stderr
    found, elsewhere = alerts(monitoring.minimum()), alerts(monitoring.MINIMUM.read_text())
    assert set(found) == set(MINIMUM) - monitoring.NOT_HERE
    assert {name: rule["for"] for name, rule in found.items()} == {name: elsewhere[name]["for"] for name in found}
    assert all("[5m]" not in rule["expr"] for rule in found.values())


def test_lab_files_are_valid(tmp_path: Path) -> None:
    monitoring.write(tmp_path / "m", LabConfig(), tmp_path / "token")
    checked = promtool("check", "config", str(tmp_path / "m" / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_lab_expects_its_exact_number_once_all_have_been_ready(tmp_path: Path) -> None:
    (tmp_path / "vllm.rules.yml").write_text(monitoring.rules(dataclasses.replace(LabConfig(), replicas=2)))
    down = {
        "exp_labels": {"service": "lab", "model": "lab-chat", "severity": "page"},
        "exp_annotations": {"summary": "lab: 1 replica(s) of lab-chat missing", "playbook": "pod-kill"},
    }
    up = 'up{{job="vllm",service="lab",model="lab-{}"}}'
    case = {
        "rule_files": ["vllm.rules.yml"],
        "evaluation_interval": "1s",
        "tests": [
            {
                "interval": "1s",
                "input_series": [
                    {"series": up.format('chat",replica="replica-0'), "values": "0x2 1x40"},
                    {"series": up.format('chat",replica="replica-1'), "values": "0x9 1x5 stale"},
                    {"series": up.format('small",replica="small-0'), "values": "0x2 1x40"},
                ],
                "alert_rule_test": [
                    {"eval_time": "9s", "alertname": "VllmReplicaDown"},  # one is still starting
                    {"eval_time": "18s", "alertname": "VllmReplicaDown"},  # gone for two seconds
                    {"eval_time": "30s", "alertname": "VllmReplicaDown", "exp_alerts": [down]},
                ],
            }
        ],
    }
    with (tmp_path / "case.yml").open("w") as out:
        YAML(typ="safe").dump(case, out)
    tested = promtool("test", "rules", str(tmp_path / "case.yml"))
    assert tested.returncode == 0, tested.stdout + tested.stderr
