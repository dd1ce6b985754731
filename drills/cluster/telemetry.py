"""What watches the GPUs of a node, by the labels that the GPU operator deploys it by; and who else is at work there.

Pure: a node object in, words out. Only telemetry and the device plugin are ever paused, never the driver or the
container toolkit; and only what is on: a label that is absent or says no was never ours to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from drills.access import nodemarks
from drills.model import Json

DEPLOY: Final = "nvidia.com/gpu.deploy."
ON: Final = "true"
#: What is paused, and the programs by which it shows among the holders of a GPU.
OPERANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "device-plugin": ("nvidia-device-plugin", "config-manager"),
    "dcgm": ("nv-hostengine",),
    "dcgm-exporter": ("dcgm-exporter",),
    "gpu-feature-discovery": ("gpu-feature-discovery",),
    "nvsm": ("nvsm_core", "nvsm-notifier"),
}
PAUSED: Final = "paused-"  # begins what an operator writes into these labels while it works
UPGRADE: Final = "nvidia.com/gpu-driver-upgrade-state"
UPGRADE_AT_REST: Final = ("", "upgrade-done", "unknown")
MIG_STATE: Final = "nvidia.com/mig.config.state"
MIG_AT_WORK: Final = ("pending", "rebooting")
NVSENTINEL: Final = ("dgxc.nvidia.com/nvsentinel", "quarantineHealthEvent", "nvsentinel")
CORDON_TAINT: Final = "node.kubernetes.io/unschedulable"


def pausable(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that a drill pauses, with the values they have."""
    return {f"{DEPLOY}{name}": ON for name in OPERANDS if labels.get(f"{DEPLOY}{name}") == ON}


def of_operand(title: str, labels: Mapping[str, str]) -> str | None:
    """Return the operand whose program that is, when a label could pause it; None for everybody else's."""
    program = (title.split() or [""])[0].rsplit("/", 1)[-1]
    for name, programs in OPERANDS.items():
        if program in programs and f"{DEPLOY}{name}" in pausable(labels):
            return name
    return None


def others_at_work(node: Json, run: str) -> Iterator[str]:
    """Say who else works on the node, or has said that nobody shall; each a sentence."""
    name, spec = node["metadata"]["name"], node.get("spec") or {}
    labels, said = nodemarks.labels_of(node), nodemarks.annotations_of(node)
    if nodemarks.HUMAN in said:
        lift = f"kubectl annotate node {name} {nodemarks.HUMAN}-"
        yield f"node {name}: a person has to look at it first: {said[nodemarks.HUMAN]}; when it is well: {lift}"
    if (mark := nodemarks.mark_of(node)) and mark["run"] != run:
        yield f"node {name}: run {mark['run']} has left its mark there; put it back with `drill recover`"
    elif spec.get("unschedulable") and not mark:
        yield f"node {name}: is cordoned already, by somebody else, so the replica could not come back to it"
    for key in sorted(labels):
        if key.startswith(DEPLOY) and labels[key].startswith(PAUSED) and labels[key] != nodemarks.paused(run):
            yield f"node {name}: somebody else is at work: label {key} is {labels[key]}"
    if labels.get(UPGRADE, "") not in UPGRADE_AT_REST:
        yield f"node {name}: its driver is being upgraded: label {UPGRADE} is {labels[UPGRADE]}"
    if labels.get(MIG_STATE) in MIG_AT_WORK:
        yield f"node {name}: its MIG manager is at work: label {MIG_STATE} is {labels[MIG_STATE]}"
    for key in sorted({*labels, *said}):
        if key.startswith(NVSENTINEL):
            yield f"node {name}: NVSentinel is at work there: {key} is {(labels.get(key) or said.get(key) or '')[:80]}"


def keeps_off(node: Json, pod: Json) -> Iterator[str]:
    """Say which taints of the node the pod does not tolerate: its successor could not come back to it."""
    tolerations = (pod.get("spec") or {}).get("tolerations") or []
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("effect") == "PreferNoSchedule" or taint.get("key") == CORDON_TAINT:
            continue
        if not any(_tolerates(one, taint) for one in tolerations):
            name, key = node["metadata"]["name"], taint.get("key")
            yield f"node {name}: carries the taint {key}, which pod {pod['metadata']['name']} does not tolerate"


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return toleration.get("key") == taint.get("key") and toleration.get("value", "") == taint.get("value", "")


def not_ready(node: Json) -> str | None:
    """Say that the node is not Ready; None when it is."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), None)
    return None if ready == "True" else f"node {node['metadata']['name']}: is not Ready"
