"""GPUs of a node by nvidia-smi's XML and control groups; and the job that resets one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from drills.access import gpunodes, nodemarks
from drills.cluster import helpers, rbac, resetjob
from drills.targetfile import Helper

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
  <driver_version>570.1</driver_version>
  <gpu id="00000000:1A:00.0">
    <product_architecture>Hopper</product_architecture>
    <uuid>GPU-1</uuid><minor_number>3</minor_number>
    <gpu_virtualization_mode><virtualization_mode>Pass-Through</virtualization_mode></gpu_virtualization_mode>
  </gpu>
  <gpu id="00000000:3B:00.0"><uuid>GPU-2</uuid><minor_number>0</minor_number>
    <gpu_virtualization_mode><virtualization_mode>N/A</virtualization_mode></gpu_virtualization_mode></gpu>
  <gpu id="00000000:5C:00.0"><uuid>GPU-3</uuid></gpu>
</nvidia_smi_log>
"""


def test_a_gpu_is_told_by_its_uuid_and_its_file_by_its_minor_number() -> None:
    assert gpunodes.parse(XML) == {
        "GPU-1": {"device": "/dev/nvidia3", "architecture": "Hopper", "virtualization": "Pass-Through"},
        "GPU-2": {"device": "/dev/nvidia0", "architecture": None, "virtualization": None},
    }


@pytest.mark.parametrize(
    ("groups", "pod"),
    [
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f0e0d0c_1111_2222_3333_444455556666.slice/"
            "cri-containerd-abc.scope",
            "0f0e0d0c-1111-2222-3333-444455556666",
        ),
        (
            "4:cpu:/kubepods/besteffort/pod0f0e0d0c-1111-2222-3333-444455556666/abc\n",
            "0f0e0d0c-1111-2222-3333-444455556666",
        ),
        ("0::/system.slice/nvidia-dcgm.service", ""),
        ("", ""),
    ],
)
def test_a_process_is_of_the_pod_of_its_control_group(groups: str, pod: str) -> None:
    assert gpunodes.pod_of(groups) == pod


JOB = resetjob.manifest(
    "drill-r-0", "n1", ["nvidia-smi", "--gpu-reset", "-i", "GPU-1"], Helper(image="d:1", service_account="drill-node"),
    run="0123abcd", limit_s=120.0, labels={"drills/lock": "x"},
)  # fmt: skip


def test_the_job_is_tried_once_and_ends_by_itself() -> None:
    assert JOB["spec"]["backoffLimit"] == 0
    assert JOB["spec"]["activeDeadlineSeconds"] == 180
    assert JOB["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_it_goes_to_its_node_whatever_keeps_others_away_and_gets_no_gpu() -> None:
    spec = JOB["spec"]["template"]["spec"]
    assert (spec["nodeName"], spec["hostPID"], spec["tolerations"]) == ("n1", True, [{"operator": "Exists"}])
    [container] = spec["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert "limits" not in container["resources"]


def test_a_mesh_is_asked_for_no_container_in_it() -> None:
    pod = JOB["spec"]["template"]["metadata"]
    assert pod["annotations"] == helpers.BY_ITSELF
    assert pod["labels"].items() > helpers.BY_ITSELF.items()
    assert JOB["metadata"]["labels"].keys() == pod["labels"].keys() - helpers.BY_ITSELF.keys()


def test_it_names_one_gpu_by_its_uuid() -> None:
    [container] = JOB["spec"]["template"]["spec"]["containers"]
    assert container["command"][-3:] == ["--gpu-reset", "-i", "GPU-1"]


def test_its_name_fits_whatever_the_run() -> None:
    assert len("drill-0123abcd-10-gpu-reset-15-1") <= 63


def test_the_documented_cluster_role_is_the_rendered_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    [block] = [b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: ClusterRole" in b]
    assert YAML(typ="safe").load(block) == rbac.cluster_role("drill-nodes")
    needed = rbac.needed(["gpu-reset planned"], proxy=False)
    assert {right for right in needed if right[2] == "nodes"} == rbac.NODE
    assert not any(rule["resources"] == ["nodes"] for rule in rbac.role("drill", "llm", needed)["rules"])


def test_a_helper_has_a_token_only_where_an_account_is_named_for_it_and_then_time_to_open_the_node() -> None:
    plain = helpers.manifest(helpers.Helper("d:1"), run="r", node="n")["spec"]
    named = helpers.manifest(helpers.Helper("d:1", service_account="drill-node"), run="r", node="n")["spec"]
    assert (plain["automountServiceAccountToken"], "serviceAccountName" in plain) == (False, False)
    assert (named["automountServiceAccountToken"], named["serviceAccountName"]) == (True, "drill-node")
    assert named["terminationGracePeriodSeconds"] > nodemarks.OFFER_TIMEOUT_S
    told_s = int(named["containers"][0]["command"][-1])
    assert nodemarks.OFFER_TIMEOUT_S < told_s < named["terminationGracePeriodSeconds"]
