"""A node of a cluster in memory, for the planned reset: patched as the API would, with a GPU that does as told."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from drills.access import nodemarks
from drills.access.nodemarks import Problem
from drills.cluster import telemetry
from drills.errors import DrillError, Refused
from drills.model import Completed, Json, Replica

UUID, OTHER = "GPU-11111111-aaaa", "GPU-22222222-bbbb"
PLUGIN, EXPORTER, DRIVER = (f"nvidia.com/gpu.deploy.{name}" for name in ("device-plugin", "dcgm-exporter", "driver"))


def node_object(**labels: str) -> Json:
    """A healthy node with an operator's labels."""
    return {
        "metadata": {"name": "n1", "resourceVersion": "1", "labels": {PLUGIN: "true", DRIVER: "true"} | labels},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "2"}},
    }


def merge(into: Json, patch: Json) -> None:
    """Apply a JSON merge patch."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


class Nodes:
    """Implements `nodemarks.Nodes` for one node."""

    def __init__(self, node: Json) -> None:
        self.node, self.patches = node, 0
        self.before_patch: Callable[[], object] = lambda: None  # what others do at that moment

    def get(self, node: str) -> Json:
        assert node == "n1"
        return copy.deepcopy(self.node)

    def patch(self, node: str, body: Json) -> None:
        assert node == "n1"
        others, self.before_patch = self.before_patch, lambda: None
        others()
        body = copy.deepcopy(body)
        if body["metadata"].pop("resourceVersion") != self.node["metadata"]["resourceVersion"]:
            raise Problem("HTTP 409", conflict=True)
        merge(self.node, body)
        self.touch()
        self.patches += 1

    def touch(self) -> None:
        """Give the object its next version."""
        self.node["metadata"]["resourceVersion"] += "1"


class FakeHost:
    """A helper in which every command succeeds."""

    name, python = "n1", "python3"

    def __init__(self) -> None:
        self.ran: list[Sequence[str]] = []
        self.living: set[int] = {10}

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        self.ran.append(argv)
        return Completed(tuple(argv), 0, "", "")

    def read(self, path: str) -> str | None:
        return None

    def alive(self, pid: int, pid_start: int) -> bool:
        return pid in self.living


def a_gpu(**changes: Any) -> Json:
    """One GPU as `drills.probes.gpu` tells of it."""
    gpu = {
        "pci": "00000000:1A:00.0", "uptime_s": 5000, "recovery_action": "None", "mig": False, "display_active": False,
        "fabric": "completed", "processes": [], "xids": [], "persistence": True, "power_limit_w": 700.0,
        "power_default_w": 700.0, "remapped": {"pending": False, "failure": False},
    }  # fmt: skip
    return gpu | changes


class Node:
    """Implements `GpuNode`. `outcome` is how a reset ends: (status, text), or None when it goes on for ever."""

    name, namespace, smi = "n1", "llm", ["nvidia-smi"]

    def __init__(self) -> None:
        self.nodes = Nodes(node_object())
        self.host: Any = FakeHost()
        self.gpus = {UUID: a_gpu(), OTHER: a_gpu(pci="00000000:3B:00.0")}
        self.holders = [
            self.holder(10, "VLLM::EngineCore", pod="uid-0"),
            self.holder(20, "/usr/bin/nvidia-device-plugin"),
        ]
        self.kinds: Json = {"architecture": "Hopper", "virtualization": "None"}
        self.outcome: tuple[int, str] | None = (0, "GPU 00000000:1A:00.0 was successfully reset.\nAll done.\n")
        self.outcomes: list[tuple[int, str]] = []  # of the first attempts
        self.jobs: dict[str, Json] = {}
        self.after: Json = {"uptime_s": 1}  # what a reset makes of the GPU
        self.blind = self.is_gone = self.forbidden = False
        self.offers = 2  # without a pause
        self.reasons: list[str] = []
        self.stayed: list[str] = []  # pods that the node refused for want of a GPU
        self.uptime_s = 90000.0

    def holder(self, pid: int, title: str, *, pod: str = "", gpu: str = UUID, state: str = "S") -> Json:
        where = {"device": "/dev/nvidia0", "gpu": gpu, "pod": pod, "ppid": 1, "parents": [1]}
        return {"pid": pid, "start": 1, "title": title, "state": state, **where}

    def refusals(self, victims: Sequence[Replica]) -> list[str]:
        assert victims
        return [*self.reasons, *telemetry.others_at_work(self.nodes.get("n1"), run="")]

    def state(self) -> Json:
        node = self.nodes.get("n1")
        said = nodemarks.annotations_of(node)
        paused = any(value.startswith("paused") for value in node["metadata"]["labels"].values())
        marks = {key: said[key] for key in (nodemarks.MARK, nodemarks.ENDED, nodemarks.HUMAN) if key in said}
        return {
            "unschedulable": bool(node["spec"].get("unschedulable")),
            "allocatable": 0 if paused else self.offers,
            "labels": node["metadata"]["labels"],
            "marks": marks,
        }

    def pausable(self) -> dict[str, str]:
        return telemetry.pausable(self.nodes.node["metadata"]["labels"])

    def operand(self, title: str) -> str | None:
        return telemetry.of_operand(title, self.nodes.node["metadata"]["labels"])

    def look(self) -> Json:
        if self.blind:
            raise Refused("no helper there")
        self.uptime_s += 3
        return {
            "source": "nvml", "lab": False, "boot_id": "b", "host_uptime_s": self.uptime_s, "count": len(self.gpus),
            "conf_compute": False, "may_reset": True, "errors": [], "gpus": copy.deepcopy(self.gpus),
        }  # fmt: skip

    def survey(self) -> Json:
        gpus = dict.fromkeys(self.gpus, self.kinds)
        return {
            "gpus": gpus, "holders": list(self.holders), "blind": 0, "errors": [], "nvswitch": False,
            "fabric_manager": False,
        }  # fmt: skip

    def cordon(self, step: Json) -> None:
        if found := list(telemetry.others_at_work(self.nodes.get("n1"), run=step["run"])):
            raise Refused("; ".join(found))
        nodemarks.change(self.nodes, "n1", lambda node: nodemarks.put_on(node, step))

    def pause(self, step: Json) -> None:
        nodemarks.change(self.nodes, "n1", lambda node: nodemarks.pause(node, step))
        self.holders = [h for h in self.holders if self.operand_was(h["title"]) is None]

    def operand_was(self, title: str) -> str | None:
        return telemetry.of_operand(title, {PLUGIN: "true", EXPORTER: "true"})

    def unpause(self, step: Json) -> None:
        nodemarks.change(self.nodes, "n1", lambda node: nodemarks.unpause(node, step))

    def progress(self, step: Json, reset: str, human: str | None = None) -> None:
        try:
            nodemarks.change(self.nodes, "n1", lambda node: nodemarks.progress(node, step, reset, human))
        except Problem as problem:
            raise DrillError(str(problem)) from None

    def offers_again(self, step: Json, stopping: Callable[[], bool]) -> int | None:
        return nodemarks.wait_for_offer(self.nodes, step, ticking(), stopping)

    def put_back(self, step: Json) -> str | None:
        return nodemarks.undo(self.nodes, step, wait_s=0.0, clock=ticking(), settled=True) or None

    def gone(self) -> bool:
        return self.is_gone

    def refused(self, since_wall: float) -> list[tuple[str, str]]:
        assert since_wall > 0
        return [(pod, f"uid-of-{pod}") for pod in self.stayed]

    def delete(self, pod: str, uid: str) -> None:
        if self.forbidden:
            raise Refused("HTTP 403")
        assert uid == f"uid-of-{pod}"
        self.stayed.remove(pod)

    def command_of_reset(self, uuid: str) -> list[str]:
        return ["nvidia-smi", "--gpu-reset", "-i", uuid]

    def begin_reset(self, job: str, uuid: str, *, run: str, limit_s: float) -> None:
        if job in self.jobs:
            raise Refused("begun before")
        ended = self.outcomes.pop(0) if self.outcomes else self.outcome
        rc, text = ended or (None, "")
        self.jobs[job] = {"active": False, "rc": rc, "text": text, "began_s": self.uptime_s, "ended_s": None}
        if rc == 0:
            self.gpus[uuid].update(self.after)

    def reset(self, job: str) -> Json | None:
        return self.jobs.get(job)


def put_back(nodes: Nodes, step: Json) -> str:
    """Put a node back without waiting for anything."""
    return nodemarks.undo(nodes, step, wait_s=0.0, clock=ticking())


def ticking(on_sleep: Callable[[], object] = lambda: None) -> nodemarks.Clock:
    """Return a clock on which time passes by sleeping alone."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        on_sleep()

    return nodemarks.Clock(sleep, lambda: now[0])


def a_replica(name: str = "vllm-0", uid: str = "uid-0") -> Replica:
    """A replica whose engine holds the first GPU."""
    return Replica(name=name, uid=uid, role="primary", url="", ready=True, host="n1", pid=10, pid_start=1)
