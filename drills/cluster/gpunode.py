"""A node with GPUs: its object in the API, and the node itself through the helper there. Implements `GpuNode`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from drills.access import kubeconfig, nodemarks
from drills.access.kubehttp import wall
from drills.access.kubernetes import Api
from drills.access.kubetypes import NODES, PODS, ClusterError
from drills.access.nodemarks import Problem
from drills.cluster import resetjob, telemetry
from drills.cluster.cordon import NodeObjects
from drills.cluster.pods import POD
from drills.errors import DrillError, Refused
from drills.model import Host, Json, Replica
from drills.probes import gpu as gpu_program
from drills.targetfile import Helper, Kubernetes

GPU: Final = nodemarks.GPU
REFUSED: Final = "UnexpectedAdmissionError"  # what a kubelet says of a pod whose GPU it has not got
LOOK_TIMEOUT_S: Final = 60.0
COMMAND_TIMEOUT_S: Final = 20.0
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
#: Into the mounts of the node's first process: there nvidia-smi finds its library, the devices and its daemon's socket.
ENTER: Final = ("nsenter", "--target", "1", "--mount")
NODE_ROOT: Final = "/proc/1/root"
GKE: Final = "/home/kubernetes/bin/nvidia"
#: Where nvidia-smi is on a node, and how it runs from there: the driver of the host, of the GPU operator, of GKE.
DRIVERS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("/usr/bin/nvidia-smi", ("/usr/bin/nvidia-smi",)),
    ("/usr/local/bin/nvidia-smi", ("/usr/local/bin/nvidia-smi",)),
    ("/run/nvidia/driver/usr/bin/nvidia-smi", ("chroot", "/run/nvidia/driver", "nvidia-smi")),
    (f"{GKE}/bin/nvidia-smi", ("env", f"LD_LIBRARY_PATH={GKE}/lib64", f"{GKE}/bin/nvidia-smi")),
)
LIBRARY: Final = "libnvidia-ml.so.1"
LIBRARIES: Final = ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib")


class ClusterGpuNode:
    """One node of a run. `labels` are those of the target's own objects; the helper is made when it is needed first."""

    def __init__(
        self, api: Api, where: Kubernetes, name: str, helper: Callable[[str], Host], labels: Mapping[str, str]
    ) -> None:
        self.name, self.namespace = name, where.namespace
        self._api, self._where, self._on, self._labels = api, where, helper, labels
        self._nodes, self._clock = NodeObjects(api), nodemarks.Clock(api.clock.sleep, api.clock.mono)

    @cached_property
    def host(self) -> Host:
        """Return the helper there. Raises Refused."""
        return self._on(self.name)

    @cached_property
    def smi(self) -> list[str]:
        """Return the command that runs the node's own nvidia-smi. Raises Refused."""
        return _smi(self.host, self._where.nvidia_smi)

    # ---- what it says of itself ------------------------------------------------------------------------

    def refusals(self, victims: Sequence[Replica]) -> list[str]:
        """Return why nobody may work on the node now, or could come back to it."""
        node = self._read()
        found = [*telemetry.others_at_work(node, run=""), *self._pending()]
        for victim in victims:
            pod = self._api.find(PODS, self.namespace, victim.labels.get(POD, victim.name))
            found += telemetry.keeps_off(node, pod) if pod else ()
        found += [why for why in (telemetry.not_ready(node), self._account(), self._own_node()) if why]
        return found

    def _account(self) -> str | None:
        """Say what the helper's own account lacks: the timer there must be able to put the node back without us."""
        argv = [self.host.python, "-m", "drills.access.nodemarks", "check", self.name]
        done = self.host.run(argv, timeout_s=COMMAND_TIMEOUT_S)
        if done.rc == 0:
            return None
        why = (done.err.strip().splitlines() or [f"status {done.rc}"])[-1][:200]
        account = self._helper().service_account or "default"
        return (
            f"node {self.name}: at the deadline nobody could uncordon it: the service account {account} of the helper: "
            f"{why}; bind it to the ClusterRole of docs/kubernetes.md"
        )

    def _own_node(self) -> str | None:
        """Say that the drill itself runs in a pod on this very node."""
        here = Path(BOOT_ID)
        if not kubeconfig.in_cluster() or not here.exists():
            return None
        there = self.host.read(BOOT_ID)
        same = there is None or there.strip() == here.read_text().strip()
        return f"node {self.name}: this drill runs in a pod on that very node; run it from elsewhere" if same else None

    def _pending(self) -> list[str]:
        """Say which pods wait for a GPU: one of them would take the one that the replica lets go."""
        names, _ = self._api.list_all(PODS, self._where.namespace, keep=_waits_for_gpu)
        waiting = sorted(name for name in names if name)
        return [f"pods wait for a GPU already, so the replica might not get its own back: {', '.join(waiting[:5])}"] * (
            bool(waiting)
        )

    def state(self) -> Json:
        """Return what of the node object a reset touches, or waits for."""
        node = self._read()
        said = nodemarks.annotations_of(node)
        return {
            "unschedulable": bool((node.get("spec") or {}).get("unschedulable")),
            "allocatable": nodemarks.offered(node),
            "labels": {
                key: value for key, value in nodemarks.labels_of(node).items() if key.startswith(telemetry.DEPLOY)
            },
            "marks": {key: said[key] for key in (nodemarks.MARK, nodemarks.ENDED, nodemarks.HUMAN) if key in said},
        }

    def pausable(self) -> dict[str, str]:
        """Return the labels by which what watches the GPUs is paused."""
        return telemetry.pausable(nodemarks.labels_of(self._read()))

    def operand(self, title: str) -> str | None:
        """Return what can be paused and has processes of that title."""
        return telemetry.of_operand(title, nodemarks.labels_of(self._read()))

    def _read(self) -> Json:
        return self._api.get(NODES, None, self.name)

    # ---- its GPUs --------------------------------------------------------------------------------------

    def look(self) -> Json:
        """Return the answer of `drills.probes.gpu`; NVML, where its library is found, tells the uptime."""
        library = _library(self.host, self.smi)
        argv = [*(["--nvml-lib", library] if library else []), "--smi", *self.smi]
        return self._asked("drills.probes.gpu", gpu_program.__name__, argv)

    def survey(self) -> Json:
        """Return which GPUs there are and who holds them."""
        return self._asked("drills.access.gpunodes", "drills.access.gpunodes", ["--smi", *self.smi])

    def _asked(self, what: str, module: str, argv: Sequence[str]) -> Json:
        done = self.host.run([self.host.python, "-m", module, *argv], timeout_s=LOOK_TIMEOUT_S)
        if done.rc != 0 or done.timed_out:
            why = "no answer in time" if done.timed_out else (done.err.strip().splitlines() or [""])[-1][:200]
            raise DrillError(f"node {self.name}: {what}: status {done.rc}: {why}")
        found: Json = json.loads(done.out)
        return found

    # ---- what is changed -------------------------------------------------------------------------------

    def cordon(self, step: Json) -> None:
        """Mark the node, and cordon it unless it is cordoned already."""

        def body(node: Json) -> Json:
            if found := list(telemetry.others_at_work(node, run=step["run"])):
                raise Refused("; ".join(found))
            return nodemarks.put_on(node, step)

        self._nodes.change(self.name, body)

    def pause(self, step: Json) -> None:
        """Pause what the step's labels name."""
        self._nodes.change(self.name, lambda node: nodemarks.pause(node, step))

    def unpause(self, step: Json) -> None:
        """Give the labels their values back."""
        self._nodes.change(self.name, lambda node: nodemarks.unpause(node, step))

    def progress(self, step: Json, reset: str, human: str | None = None) -> None:
        """Note on the node how far the reset is, and why a person has to look."""
        self._nodes.change(self.name, lambda node: nodemarks.progress(node, step, reset, human))

    def offers_again(self, step: Json, stopping: Callable[[], bool]) -> int | None:
        """Wait, bounded, until the node offers as many GPUs as before; returns how many it offers."""
        try:
            return nodemarks.wait_for_offer(self._nodes, step, self._clock, stopping)
        except Problem as problem:
            raise DrillError(str(problem)) from None

    def put_back(self, step: Json) -> str | None:
        """Put the node back at once; returns what keeps it from that."""
        return nodemarks.undo(self._nodes, step, wait_s=0.0, clock=self._clock, settled=True) or None

    def gone(self) -> bool:
        """Whether the cluster has no such node any more."""
        return self._api.find(NODES, None, self.name) is None

    def refused(self, since_wall: float) -> list[tuple[str, str]]:
        """Return the target's own pods that this node refused since then, which nobody else deletes."""
        keep = partial(_refused_for_gpu, node=self.name, since_wall=since_wall)
        pods: set[tuple[str, str]] = set()
        for selector in filter(None, (self._where.selector, self._where.fallback_selector)):
            pods.update(self._api.list_all(PODS, self._where.namespace, labels=selector, keep=keep)[0])
        return sorted((name, uid) for name, uid in pods if name)

    def delete(self, pod: str, uid: str) -> None:
        """Delete a pod, unless it is another by now."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            self._api.delete(PODS, self._where.namespace, pod, body)
        except ClusterError as error:
            if error.status not in (404, 409):
                raise

    def command_of_reset(self, uuid: str) -> list[str]:
        """Return the command that resets that GPU."""
        return [*self.smi, "--gpu-reset", "-i", uuid]

    def begin_reset(self, job: str, uuid: str, *, run: str, limit_s: float) -> None:
        """Make the job that resets that GPU."""
        command = self.command_of_reset(uuid)
        body = resetjob.manifest(job, self.name, command, self._helper(), run=run, limit_s=limit_s, labels=self._labels)
        resetjob.begin(self._api, self._where.namespace, body)

    def reset(self, job: str) -> Json | None:
        """Return what became of a reset; None when it was not begun."""
        return resetjob.look(self._api, self._where.namespace, job)

    def _helper(self) -> Helper:
        if self._where.helper is None:
            raise Refused("a reset needs a helper: name its image in kubernetes.helper")
        return self._where.helper


def _smi(host: Host, named: str | None) -> list[str]:
    """Return the command that runs the node's nvidia-smi. Refused when there is none."""
    ways = ((named, (named,)),) if named else DRIVERS
    for path, command in ways:
        there = shlex.quote(f"{NODE_ROOT}{path}")
        if host.run(["sh", "-c", f"[ -e {there} ] || [ -L {there} ]"], timeout_s=COMMAND_TIMEOUT_S).rc == 0:
            return [*ENTER, *command]
    places = ", ".join(path for path, _ in ways)
    raise Refused(f"node {host.name}: no nvidia-smi there ({places}); name its place in kubernetes.nvidia_smi")


def _library(host: Host, smi: Sequence[str]) -> str | None:
    """Return NVML's library as the helper sees it; None when it is not where it should be."""
    prefix = Path(smi[-1]).parent.parent if smi[-1].startswith("/") else Path("/run/nvidia/driver/usr")
    for folder in LIBRARIES:
        path = f"{NODE_ROOT}{prefix}/{folder}/{LIBRARY}"
        if host.run(["test", "-e", path], timeout_s=COMMAND_TIMEOUT_S).rc == 0:
            return path
    return None


def _waits_for_gpu(pod: Json) -> str:
    """Return the name of a pod that no node has and that wants a GPU; "" for every other."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    wants = any(((c.get("resources") or {}).get("limits") or {}).get(GPU) for c in spec.get("containers") or ())
    return (
        str(pod["metadata"]["name"]) if wants and status.get("phase") == "Pending" and not spec.get("nodeName") else ""
    )


def _refused_for_gpu(pod: Json, node: str, since_wall: float) -> tuple[str, str]:
    """Return name and UID of a pod that the node refused since then; empty for every other."""
    meta, status = pod["metadata"], pod.get("status") or {}
    theirs = status.get("reason") == REFUSED and (pod.get("spec") or {}).get("nodeName") == node
    born = wall(meta.get("creationTimestamp"))
    ours = theirs and born is not None and born >= since_wall
    return (str(meta["name"]), str(meta["uid"])) if ours else ("", "")
