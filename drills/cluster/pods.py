"""Pods as replicas: what of a pod matters to a drill, and the slot that stays when the pod is replaced. Pure.

A pod that a controller replaces comes back under another name. What a drill calls a replica is therefore the slot:
`vllm-0` is whichever pod of the workload has that place now. A new pod takes the place that became free last; so the
successor of a victim is found under the victim's name, and all others keep theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from drills.access.kubehttp import wall
from drills.errors import Refused
from drills.model import Json, Replica

#: Labels of a replica that say more of its pod; nobody else may own names that begin like this.
POD, NODE, HOST_NETWORK, GPUS = "drills/pod", "drills/node", "drills/host-network", "drills/gpus"
HASH: Final = "pod-template-hash"
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
ENDED: Final = ("Succeeded", "Failed")
#: The fact that says by what somebody takes the pod away, in the cluster's own word.
DISRUPTION: Final = "disruption"
#: Kinds of controller whose pods keep their name when they are replaced.
NAMED: Final = ("StatefulSet",)


#: Why a pod is disrupted, where that is somebody's doing and no consequence of load on its node.
DISRUPTED_BY: Final = {
    "EvictionByEvictionAPI": "evicted",
    "DeletionByTaintManager": "driven off by a taint of its node",
    "PreemptionByScheduler": "preempted",
    "DeletionByPodGC": "deleted, for its node is gone",
}


@dataclass(frozen=True)
class Owner:
    """The controller that replaces a pod, or restarts nothing when there is none."""

    kind: str
    name: str


@dataclass(frozen=True)
class Pod:
    """What of a pod matters; a thousand of these are small."""

    name: str
    uid: str
    role: str  # primary | fallback
    workload: str  # what names its slots
    owner: Owner | None
    node: str
    ip: str
    created_wall: float
    ready: bool
    state: str
    live: bool  # neither ended nor ending
    ended: bool
    restarts: int
    started_wall: float | None  # of the container that serves
    labels: Mapping[str, str]
    facts: Mapping[str, Any]  # image, restart policy, grace, node's word for why it waits


def slim(item: Json, *, role: str, container: str | None) -> Pod:
    """Return what matters of a pod as the API gives it."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    labels = {str(k): str(v) for k, v in (meta.get("labels") or {}).items()}
    owner = _owner(meta)
    chosen = _container(meta, spec, container)
    mine: Json = next((s for s in status.get("containerStatuses") or () if s.get("name") == chosen.get("name")), {})
    gone = _condition(status, "DisruptionTarget")
    ended, going = status.get("phase") in ENDED, bool(meta.get("deletionTimestamp"))
    running = (mine.get("state") or {}).get("running") or {}
    ready = not (ended or going) and _condition(status, "Ready").get("status") == "True"
    more = {POD: meta["name"], NODE: str(spec.get("nodeName") or "")}
    more |= {HOST_NETWORK: "true"} if spec.get("hostNetwork") else {}
    more |= {GPUS: gpus} if (gpus := _gpus(chosen)) != "0" else {}
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        role=role,
        workload=_workload(meta["name"], owner, labels),
        owner=owner,
        node=str(spec.get("nodeName") or ""),
        ip=str(status.get("podIP") or ""),
        created_wall=wall(meta.get("creationTimestamp")) or 0.0,
        ready=ready,
        state="completed" if ended else "terminating" if going else "ready" if ready else _why(status, mine),
        live=not (ended or going),
        ended=ended,
        restarts=int(mine.get("restartCount") or 0),
        started_wall=wall(running.get("startedAt")),
        labels={**labels, **more},
        facts={
            "image": str(chosen.get("image") or ""),
            "image_id": str(mine.get("imageID") or ""),
            "restart_policy": str(spec.get("restartPolicy") or "Always"),
            "grace_s": spec.get("terminationGracePeriodSeconds"),
            "readiness_probe": bool(chosen.get("readinessProbe")),
            "tcp_probes": _tcp_probes(chosen),
            "container": str(chosen.get("name") or ""),
            "container_id": str(mine.get("containerID") or "").rpartition("//")[2],
            "host_ip": str(status.get("hostIP") or ""),
            DISRUPTION: str(gone.get("reason") or "") if gone.get("status") == "True" else "",
        },
    )


def _owner(meta: Json) -> Owner | None:
    for one in meta.get("ownerReferences") or ():
        if one.get("controller"):
            return Owner(str(one.get("kind")), str(one.get("name")))
    return None


def _workload(name: str, owner: Owner | None, labels: Mapping[str, str]) -> str:
    """Return what names the slot: the Deployment above a ReplicaSet, else the owner, else the pod itself."""
    if owner is None or owner.kind in NAMED:
        return name if owner is None else owner.name
    return owner.name.removesuffix(f"-{labels.get(HASH)}")


def _container(meta: Json, spec: Json, wanted: str | None) -> Json:
    """Return the container that serves: the one that is named, else the pod's default, else the first."""
    containers: list[Json] = spec.get("containers") or [{}]
    named = wanted or (meta.get("annotations") or {}).get(DEFAULT_CONTAINER)
    found = next((c for c in containers if c.get("name") == named), None)
    if found is None and wanted is not None:
        names = ", ".join(str(c.get("name")) for c in containers)
        raise Refused(f"pod {meta['name']}: no container {wanted!r}; it has {names}; mend kubernetes.container")
    return found or containers[0]


def _condition(status: Json, kind: str) -> Json:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})


def _why(status: Json, mine: Json) -> str:
    """Return in the cluster's own words why a pod is not ready."""
    waiting = ((mine.get("state") or {}).get("waiting") or {}).get("reason")
    unscheduled = _condition(status, "PodScheduled")
    if unscheduled.get("status") == "False":
        return str(unscheduled.get("reason") or "Unschedulable").lower()
    return str(waiting) if waiting else "not ready"


def _tcp_probes(container: Json) -> tuple[int, ...]:
    """Return the ports to which a probe only opens a connection."""
    named = {str(p.get("name")): p.get("containerPort") for p in container.get("ports") or ()}
    probes = (container.get(f"{kind}Probe") or {} for kind in ("readiness", "liveness", "startup"))
    asked = [probe["tcpSocket"].get("port") for probe in probes if probe.get("tcpSocket")]
    return tuple(int(port) for one in asked if str(port := named.get(str(one), one)).isdigit())


def disruption(pod: Pod) -> str:
    """Say by what somebody takes a pod away; empty when nobody does."""
    return DISRUPTED_BY.get(str(pod.facts[DISRUPTION]), "")


def _gpus(container: Json) -> str:
    limits = (container.get("resources") or {}).get("limits") or {}
    return str(limits.get("nvidia.com/gpu", "0"))


class Slots:
    """Which pod has which place. `known` are places by UID from before, out of a receipt."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self._slot: dict[str, str] = dict(known or {})
        self._seen: dict[str, int] = dict.fromkeys(self._slot.values(), 0)  # place → the last look with a live pod
        self._looks = 0
        self._lock = threading.Lock()

    def settle(self, pods: Sequence[Pod]) -> list[tuple[str, Pod]]:
        """Return the pods that are replicas with their places, by place.

        Left out are pods that have ended, and those that are ending while their successor is there or that were
        ending already when first seen: they leave, they are not part of the service.
        """
        with self._lock:
            self._looks += 1
            pods = list({p.uid: p for p in pods}.values())  # two looks at one pod are one pod, as it was seen last
            live = sorted((p for p in pods if p.live), key=lambda p: (p.created_wall, p.name))
            taken: dict[str, Pod] = {}
            for pod in (p for p in live if p.uid in self._slot):
                taken.setdefault(self._slot[pod.uid], pod)
            for pod in live:
                if (there := taken.get(self._slot.get(pod.uid, ""))) is None or there.uid != pod.uid:
                    place = self._place(pod, taken)
                    self._slot[pod.uid] = f"{pod.role}-{place}" if place in taken else place
                    taken[self._slot[pod.uid]] = pod
            self._seen |= dict.fromkeys(taken, self._looks)
            leaving = (p for p in pods if not p.live and not p.ended and p.uid in self._slot)
            for pod in sorted(leaving, key=lambda p: p.created_wall, reverse=True):
                taken.setdefault(self._slot[pod.uid], pod)
            return sorted(taken.items())

    def of(self, uid: str) -> str | None:
        """Return the place a pod has, or had."""
        with self._lock:
            return self._slot.get(uid)

    def _place(self, pod: Pod, taken: Mapping[str, Pod]) -> str:
        if pod.owner is None or pod.owner.kind in NAMED:
            return pod.name
        prefix = f"{pod.workload}-"
        free = [s for s in self._seen if s not in taken and s.startswith(prefix) and s[len(prefix) :].isdigit()]
        if free:
            return min(free, key=lambda s: (-self._seen[s], int(s[len(prefix) :])))
        n = 0
        while f"{prefix}{n}" in taken:
            n += 1
        return f"{prefix}{n}"


def replica(slot: str, pod: Pod, *, url: str, own: bool) -> Replica:
    """Return a pod as a replica. The drill's own pod is never a victim, nor one that nobody would replace."""
    return Replica(
        name=slot,
        uid=pod.uid,
        role=pod.role,
        url=url,
        ready=pod.ready,
        started_wall=pod.started_wall,
        restarts=pod.restarts,
        host=pod.node,
        labels=pod.labels,
        state=pod.state,
        spared="is the pod of this drill"
        if own
        else "has no controller that would replace it"
        if pod.owner is None
        else "",
    )


def one_workload(pods: Iterable[Pod], selector: str) -> None:
    """Refuse a selector that means several workloads: a drill of one service must not hit another."""
    names = sorted({p.workload for p in pods if p.live and p.owner is not None})
    if len(names) > 1:
        raise Refused(f"selector {selector}: matches pods of several workloads: {', '.join(names)}; make it narrower")
