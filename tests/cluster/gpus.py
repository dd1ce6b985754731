"""GPUs for the test node: the lab's stand-in on the node, what offers and watches it in pods, replicas that hold it.

The stand-in lies in the node's own /run, which goes with the node. Nothing else of the node is changed but its labels,
which are put back.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from kubernetes.client import BatchV1Api, RbacAuthorizationV1Api

from drills.cluster import rbac
from drills.model import Json
from tests.cluster import layout, node
from tests.cluster.cache import TREE, cache
from tests.cluster.emulator import Emulator
from tests.cluster.kube import MANIFESTS, REQUEST_TIMEOUT_S

FOLDER = "/run/drills-gpu"
SMI = f"{FOLDER}/bin/nvidia-smi"
COUNT = 3
#: As the GPU operator labels its nodes; what says no must still say no afterwards.
LABELS = {
    "nvidia.com/gpu.deploy.device-plugin": "true",
    "nvidia.com/gpu.deploy.dcgm-exporter": "true",
    "nvidia.com/gpu.deploy.nvsm": "false",
    "nvidia.com/gpu.deploy.driver": "true",
}
ACCOUNT = "drill-node"
READY_TIMEOUT_S = 240.0
TURN_TIMEOUT_S = 3600.0
COMMAND_TIMEOUT_S = 60.0
MAKE = """
import sys
from pathlib import Path
from drills.lab.gpu import smi, state
folder = Path(sys.argv[1])
state.create(folder, int(sys.argv[2]), seed=5)
with state.changed(folder / "state.json") as found:
    found["reset_duration_s"] = 0.5
smi.write_nvidia_smi(folder / "bin", folder / "state.json")
"""
CHANGE = """
import json, sys
from pathlib import Path
from drills.lab.gpu import state
file = Path(sys.argv[1])
asked = json.loads(sys.argv[2])
with state.changed(file) as found:
    found.update(asked.get("machine", {}))
    for uuid, values in asked.get("gpus", {}).items():
        state.by_uuid(found, uuid).update(values)
"""


class GpuEmulator(Emulator):
    """Three replicas, each with a GPU of its own that its engine holds."""

    def create(self) -> None:
        """Put the GPUs on the node, and wait until the replicas hold them. One at a time has the node's GPUs."""
        self._turn = (cache() / "gpus.lock").open("w")
        deadline = time.monotonic() + TURN_TIMEOUT_S
        while not _taken(self._turn):
            assert time.monotonic() < deadline, "the GPUs of the test node are in use by other tests"
            time.sleep(1.0)
        on_node("-c", MAKE, FOLDER, str(COUNT))
        self._grant()
        label(LABELS, self)
        self.namespace.create(MANIFESTS / "gpu-node.yaml")
        self.namespace.wait("the GPUs to be offered", lambda: offered(self) == COUNT, READY_TIMEOUT_S)
        self.namespace.create(MANIFESTS / "gpu-emulator.yaml")
        self.until_ready()
        self.namespace.until_reached("vllm")

    def _grant(self) -> None:
        """Let the helpers' service account get and patch nodes, and do nothing else."""
        name = self.namespace.name
        rbac_api = RbacAuthorizationV1Api(self.namespace.api)
        self.namespace.core.create_namespaced_service_account(name, {"metadata": {"name": ACCOUNT}})
        rbac_api.create_cluster_role(rbac.cluster_role(name))
        self.bind(ACCOUNT)

    def bind(self, account: str) -> None:
        """Give an account of the namespace the rights on nodes."""
        name = self.namespace.name
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": name}
        body = {"metadata": {"name": f"{name}-{account}"}, "roleRef": reference, "subjects": [subject]}
        RbacAuthorizationV1Api(self.namespace.api).create_cluster_role_binding(body)

    def destroy(self) -> None:
        """Take away what is in no namespace, then the namespace; the node is as it was."""
        api, name = RbacAuthorizationV1Api(self.namespace.api), self.namespace.name
        label(dict.fromkeys(LABELS), self)
        for binding in api.list_cluster_role_binding(_request_timeout=REQUEST_TIMEOUT_S).items:
            if binding.metadata.name.startswith(f"{name}-"):
                api.delete_cluster_role_binding(binding.metadata.name)
        api.delete_cluster_role(name)
        self.namespace.delete()
        self._turn.close()

    def left(self) -> list[str]:
        """Return what drills have left in the namespace, jobs included."""
        jobs = BatchV1Api(self.namespace.api).list_namespaced_job(self.namespace.name)
        return [*super().left(), *(f"job {job.metadata.name}" for job in jobs.items)]

    def holders(self) -> dict[str, str]:
        """Return which replica holds which GPU: UUID → pod UID."""
        ours = self.uids()
        survey = json.loads(on_node("-m", "drills.access.gpunodes", "--smi", SMI))
        return {holder["gpu"]: holder["pod"] for holder in survey["holders"] if holder["pod"] in ours}


def _taken(turn: IO[str]) -> bool:
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def on_node(*words: str) -> str:
    """Run Python with the node's mounts and processes."""
    pid = (node.run_folder() / "pid").read_text().strip()
    command = ["nsenter", f"--target={pid}", "--mount", "--pid", "--", sys.executable, *words]
    ran = subprocess.run(
        command, cwd=TREE, env={"PYTHONPATH": str(TREE), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def change(machine: Json | None = None, **gpus: Json) -> None:
    """Change values of the stand-in; `gpus` by UUID with underscores for dashes."""
    asked = {"machine": machine or {}, "gpus": {uuid.replace("_", "-"): values for uuid, values in gpus.items()}}
    on_node("-c", CHANGE, f"{FOLDER}/state.json", json.dumps(asked))


def stand_in() -> Json:
    """Return the stand-in's state."""
    pid = (node.run_folder() / "pid").read_text().strip()
    found: Json = json.loads(Path(f"/proc/{pid}/root{FOLDER}/state.json").read_text())
    return found


def renew() -> None:
    """Make the GPUs honest and healthy again, without making new ones."""
    gpus = {gpu["uuid"]: {"mig": False, "recovery_action": 0, "virtualization": "None"} for gpu in stand_in()["gpus"]}
    change({"script": {"reset": {}, "delay_s": 0}}, **{uuid.replace("-", "_"): values for uuid, values in gpus.items()})


def label(labels: Json, service: Emulator) -> None:
    """Label the node; None takes a label away."""
    service.namespace.core.patch_node(layout.NODE, {"metadata": {"labels": labels}})


def offered(service: Emulator) -> int:
    """Return how many GPUs the node offers."""
    found: Any = service.namespace.core.read_node(layout.NODE, _request_timeout=REQUEST_TIMEOUT_S)
    return int(found.status.allocatable.get("nvidia.com/gpu", 0))


def as_seen(service: Emulator) -> Json:
    """Return what of the node a drill may change: all of it must be as before."""
    found: Any = service.namespace.core.read_node(layout.NODE, _request_timeout=REQUEST_TIMEOUT_S)
    taints = sorted(f"{taint.key}:{taint.effect}" for taint in found.spec.taints or ())
    notes = {key: value for key, value in (found.metadata.annotations or {}).items() if not key.startswith("node.")}
    return {
        "unschedulable": bool(found.spec.unschedulable),
        "taints": taints,
        "labels": dict(found.metadata.labels),
        "annotations": notes,
        "offered": int(found.status.allocatable.get("nvidia.com/gpu", 0)),
    }


def hold(service: GpuEmulator, title: str) -> str:
    """Start somebody else's pod that holds every GPU; returns its name."""
    container = {
        "name": "holder",
        "image": "drills.test/gpu-node:dev",
        "imagePullPolicy": "Never",
        "command": ["python3", "/opt/gpu-node/watcher.py", FOLDER, title],
        "volumeMounts": [{"name": "gpus", "mountPath": FOLDER}],
    }
    spec = {"containers": [container], "volumes": [{"name": "gpus", "hostPath": {"path": FOLDER}}]}
    spec |= {"terminationGracePeriodSeconds": 1}
    body = {"metadata": {"name": "somebody", "labels": {"app": "somebody"}}, "spec": spec}
    service.namespace.core.create_namespaced_pod(service.namespace.name, body)
    service.namespace.wait("the holder", lambda: service.namespace.ready_pods("app=somebody"))
    return "somebody"


def let_go(service: GpuEmulator, pod: str) -> None:
    """End that pod, and wait until it is gone."""
    service.namespace.core.delete_namespaced_pod(pod, service.namespace.name)
    service.namespace.wait("its end", lambda: not service.namespace.pods("app=somebody"))
