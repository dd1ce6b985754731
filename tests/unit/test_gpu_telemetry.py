"""What of a node may be paused, and what says that somebody else is at work there."""

from __future__ import annotations

import pytest

from drills.access import nodemarks
from drills.cluster import telemetry
from drills.model import Json
from tests.unit.gpu_node import DRIVER, EXPORTER, PLUGIN, node_object


def at_work(node: Json, run: str = "0123abcd") -> str:
    return "; ".join(telemetry.others_at_work(node, run))


def test_only_what_watches_and_is_on_is_paused() -> None:
    labels = {PLUGIN: "true", EXPORTER: "false", DRIVER: "true", "nvidia.com/gpu.deploy.container-toolkit": "true"}
    assert telemetry.pausable(labels) == {PLUGIN: "true"}


def test_its_programs_are_known_only_where_a_label_pauses_them() -> None:
    assert telemetry.of_operand("/usr/bin/nvidia-device-plugin --x", {PLUGIN: "true"}) == "device-plugin"
    assert telemetry.of_operand("/usr/bin/nvidia-device-plugin --x", {PLUGIN: "false"}) is None
    assert telemetry.of_operand("datadog-agent", {PLUGIN: "true"}) is None
    assert telemetry.of_operand("", {}) is None


def test_a_node_at_rest_is_nobodys() -> None:
    assert at_work(node_object(**{telemetry.UPGRADE: "upgrade-done", telemetry.MIG_STATE: "success"})) == ""


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({EXPORTER: "paused-for-driver-upgrade"}, "paused-for-driver-upgrade"),
        ({EXPORTER: "paused-for-mig-change"}, "paused-for-mig-change"),
        ({EXPORTER: "paused-for-drill-ffffffff"}, "somebody else is at work"),
        ({telemetry.UPGRADE: "cordon-required"}, "driver is being upgraded"),
        ({telemetry.MIG_STATE: "rebooting"}, "MIG manager is at work"),
        ({"dgxc.nvidia.com/nvsentinel-state": "draining"}, "NVSentinel is at work"),
    ],
)
def test_labels_of_others_are_a_reason(labels: dict[str, str], says: str) -> None:
    assert says in at_work(node_object(**labels))


def test_a_cordon_by_others_is_a_reason_and_our_own_is_none() -> None:
    node = node_object()
    node["spec"]["unschedulable"] = True
    assert "cordoned already" in at_work(node)
    node["metadata"]["annotations"] = {nodemarks.MARK: '{"run": "0123abcd"}'}
    assert at_work(node) == ""
    assert "run 0123abcd has left its mark" in at_work(node, "ffffffff")


@pytest.mark.parametrize(
    ("tolerations", "comes_back"),
    [
        ([], False),
        ([{"key": "pool", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}], True),
        ([{"key": "pool", "value": "gpu"}], True),
        ([{"key": "pool", "value": "cpu"}], False),
        ([{"key": "pool", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "pool", "operator": "Exists"}], True),
        ([{"operator": "Exists"}], True),
    ],
)
def test_a_taint_is_a_reason_when_the_replica_could_not_come_back(tolerations: list[Json], comes_back: bool) -> None:
    node = node_object()
    node["spec"]["taints"] = [
        {"key": "pool", "value": "gpu", "effect": "NoSchedule"},
        {"key": "maybe", "effect": "PreferNoSchedule"},
        {"key": telemetry.CORDON_TAINT, "effect": "NoSchedule"},
    ]
    pod = {"metadata": {"name": "vllm-x"}, "spec": {"tolerations": tolerations}}
    said = "; ".join(telemetry.keeps_off(node, pod))
    assert (said == "") is comes_back
    assert comes_back or "taint pool, which pod vllm-x does not tolerate" in said


def test_a_note_for_a_person_is_a_reason() -> None:
    node = node_object()
    node["metadata"]["annotations"] = {nodemarks.HUMAN: "look at GPU 3"}
    assert "look at GPU 3" in at_work(node)


def test_a_node_that_is_not_ready_says_so() -> None:
    node = node_object()
    assert telemetry.not_ready(node) is None
    node["status"]["conditions"][0]["status"] = "Unknown"
    assert telemetry.not_ready(node) == "node n1: is not Ready"
