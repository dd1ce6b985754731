"""The shipped alert rules, by promtool; and every alert is shown to matter: without it the rule tests fail."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from drills.lab import monitoring
from drills.lab.config import LabConfig
from drills.lab.defects import DEFECTS, plant
from drills.model import Json

TESTS = monitoring.RULES.with_name("vllm.rules.test.yml")
ALERTS = ["VllmReplicaDown", "VllmEngineStalled", "VllmErrorRatioHigh", "VllmTtftP99High", "GpuLostOrRecoveryNeeded"]


def promtool(*args: str) -> subprocess.CompletedProcess[str]:
    program = monitoring.binaries().promtool
    if program is None:
        pytest.skip(f"promtool not found: {monitoring.INSTALL}")
    return subprocess.run([program, *args], capture_output=True, text=True, timeout=60, check=False)


def shipped() -> Json:
    rules: Json = YAML(typ="safe").load(monitoring.RULES.read_text())
    return rules


def alerts(rules: str) -> dict[str, Json]:
    data = YAML(typ="safe").load(rules)
    return {rule["alert"]: rule for group in data["groups"] for rule in group["rules"] if "alert" in rule}


def test_shipped_rules_are_valid_and_pass_their_tests() -> None:
    checked = promtool("check", "rules", str(monitoring.RULES))
    assert checked.returncode == 0, checked.stderr
    tested = promtool("test", "rules", str(TESTS))
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("name", ALERTS)
def test_rule_tests_fail_when_the_alert_cannot_fire(name: str, tmp_path: Path) -> None:
    data = shipped()
    for group in data["groups"]:
        for rule in group["rules"]:
            if rule.get("alert") == name:
                rule["expr"] = "vector(0) > 1"
    with (tmp_path / "vllm.rules.yml").open("w") as out:
        YAML(typ="safe").dump(data, out)
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    assert promtool("test", "rules", str(tmp_path / TESTS.name)).returncode != 0


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
