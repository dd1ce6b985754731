"""The hands of others on a service in a cluster: rollouts, autoscalers, drains. Reads only.

Before a drill nothing of that may be at work. During it the objects that say how the service should be are held
against what they were then: a specification, a number of replicas, a cordon, an eviction that is not the drill's own.
What an autoscaler does to the number of replicas is told apart: our load or fault may have made it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from drills.access.kubernetes import Api
from drills.access.kubetypes import AUTOSCALERS, DEPLOYMENTS, NODES, REPLICASETS, STATEFULSETS
from drills.cluster.pods import Owner, Pod, disruption
from drills.cluster.rbac import GET_NODES
from drills.model import Json, Receipt

OTHERS, AUTOSCALER = "others", "autoscaler"
RESOURCES: Final = {"Deployment": DEPLOYMENTS, "StatefulSet": STATEFULSETS, "ReplicaSet": REPLICASETS}
#: Taints with which a node is about to be taken away.
LEAVING: Final = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption")
#: The fault that cordons the nodes of its victims itself.
CORDONS: Final = "gpu-reset"
#: Looked at each time, the victims' first: a look at each of hundreds would be most of what the API server does.
NODES_MAX: Final = 20


@dataclass(frozen=True)
class Workload:
    """A controller of the pods as it is."""

    spec: str  # digest of all but the number of replicas
    replicas: int
    rollout: str  # why one is in progress; empty: none is


@dataclass(frozen=True)
class Autoscaler:
    """A HorizontalPodAutoscaler of a workload."""

    workload: Owner
    spec: str
    desired: int
    current: int
    active: bool  # whether it can tell what it desires


@dataclass(frozen=True)
class Look:
    """What others may change, as it is at one moment."""

    workloads: Mapping[Owner, Workload]
    autoscalers: Mapping[str, Autoscaler]
    nodes: Mapping[str, str]  # → why nothing is scheduled there any more; empty: it is
    leaving: Mapping[str, tuple[str, str]]  # UID of a pod that is there → its name, and why it goes
    disrupted: Mapping[str, tuple[str, str]]  # these, and all that went since somebody watches


class Hands:
    """Looks at a service. `seen` returns the disruptions that a watch has seen, by the UID of the pod."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        pods: Callable[[], Sequence[Pod]],
        seen: Callable[[], Mapping[str, tuple[str, str]]] = dict,
    ) -> None:
        self._api, self._namespace, self._pods, self._seen = api, namespace, pods, seen
        self._owners: dict[Owner, Owner] = {}  # a ReplicaSet → its Deployment
        self._sees_nodes: bool | None = None
        self._before: Look | None = None

    def at_work(self) -> list[str]:
        """Return what others are doing now, a sentence each. Changes count from here."""
        self._before = now = self.look()
        found = [f"{_name(owner)}: {one.rollout}" for owner, one in now.workloads.items() if one.rollout]
        found += [
            f"autoscaler {name}: wants {one.desired} replicas of {_name(one.workload)}, there are {one.current}"
            for name, one in now.autoscalers.items()
            if one.active and one.desired != one.current
        ]
        found += [f"node {node}: {why}; nothing may be scheduled there" for node, why in now.nodes.items() if why]
        found += [f"pod {pod}: is being {why}" for pod, why in now.leaving.values()]
        return [f"others are at work: {sentence}: wait until that is over" for sentence in found]

    def changes(self, ours: Sequence[Receipt]) -> list[Json]:
        """Return what is not as it was, as {what, subject, was, now, by}."""
        now = self.look([str(v["host"]) for r in ours for v in r.victims if "host" in v])
        if self._before is None:
            self._before = now
        was = self._before
        return [
            *_workloads(was, now),
            *_autoscalers(was, now),
            *_nodes(was, now, {str(v["host"]) for r in ours if r.fault == CORDONS for v in r.victims if "host" in v}),
            *_pods(was, now, {str(v["uid"]) for r in ours for v in r.victims if "uid" in v}),
        ]

    def notes(self) -> list[str]:
        """Return what cannot be seen."""
        if self._may_see_nodes():
            return []
        return ["cordoned nodes are not seen: no right to get nodes; an eviction of one of the pods is"]

    # ---- looking ---------------------------------------------------------------------------------------

    def look(self, first: Sequence[str] = ()) -> Look:
        """Return how everything is now; of very many nodes those `first` and some more. Raises ClusterError."""
        pods = [pod for pod in self._pods() if not pod.ended]
        owners = sorted({self._top(pod.owner) for pod in pods if pod.owner is not None}, key=_name)
        workloads = {owner: one for owner in owners if (one := self._workload(owner)) is not None}
        if self._before is not None:  # one whose pods are all gone may be gone itself
            missing = [owner for owner in self._before.workloads if owner not in workloads]
            workloads |= {owner: one for owner in missing if (one := self._workload(owner)) is not None}
        there = sorted({pod.node for pod in pods if pod.node}, key=lambda node: (node not in first, node))
        nodes = there[:NODES_MAX] if self._may_see_nodes() else []
        leaving = {pod.uid: (pod.name, why) for pod in pods if (why := disruption(pod))}
        return Look(
            workloads, self._scalers(workloads), {n: self._node(n) for n in nodes}, leaving, {**self._seen(), **leaving}
        )

    def _top(self, owner: Owner) -> Owner:
        """Return the controller above: of a ReplicaSet its Deployment; of what is not known here the ReplicaSet."""
        if owner.kind != "ReplicaSet":
            return owner
        if owner not in self._owners:
            found = self._api.find(REPLICASETS, self._namespace, owner.name) or {}
            above = ((found.get("metadata") or {}).get("ownerReferences")) or ()
            known = (o for o in above if o.get("controller") and o.get("kind") in RESOURCES)
            self._owners[owner] = next((Owner(str(o["kind"]), str(o["name"])) for o in known), owner)
        return self._owners[owner]

    def _workload(self, owner: Owner) -> Workload | None:
        if owner.kind not in RESOURCES:
            return None
        found = self._api.find(RESOURCES[owner.kind], self._namespace, owner.name)
        return None if found is None else workload(owner.kind, found)

    def _scalers(self, workloads: Iterable[Owner]) -> dict[str, Autoscaler]:
        mine = set(workloads)
        found, _ = self._api.list_all(AUTOSCALERS, self._namespace, keep=_autoscaler)
        return {name: one for name, one in sorted(found) if one.workload in mine}

    def _may_see_nodes(self) -> bool:
        if self._sees_nodes is None:
            self._sees_nodes = self._api.may(GET_NODES, "")
        return self._sees_nodes

    def _node(self, name: str) -> str:
        found = self._api.find(NODES, None, name)
        return "is gone" if found is None else unschedulable(found)


def workload(kind: str, item: Json) -> Workload:
    """Return what matters of a controller as the API gives it."""
    spec = dict(item.get("spec") or {})
    replicas = int(spec.pop("replicas", 1) if spec.get("replicas") is not None else 1)
    return Workload(_digest(spec), replicas, _rollout(kind, item, replicas))


def _rollout(kind: str, item: Json, replicas: int) -> str:
    """Say that a rollout is in progress, by what `kubectl rollout status` goes by; empty when none is."""
    status = item.get("status") or {}
    if int((item.get("metadata") or {}).get("generation") or 0) > int(status.get("observedGeneration") or 0):
        return "its controller has not taken in its last change yet"
    updated, there = int(status.get("updatedReplicas") or 0), int(status.get("replicas") or 0)
    if kind == "StatefulSet":
        return _statefulset(item.get("spec") or {}, status, updated, replicas)
    if kind == "Deployment" and updated < replicas:
        return f"a rollout is in progress: {updated} of {replicas} replicas are of the new version"
    if kind == "Deployment" and there > updated:
        return f"a rollout is in progress: {there - updated} replicas of an older version are still there"
    if there != replicas:
        return f"it is being scaled: {there} replicas of {replicas}"
    return ""


def _statefulset(spec: Json, status: Json, updated: int, replicas: int) -> str:
    strategy = spec.get("updateStrategy") or {}
    partition = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
    if int(status.get("replicas") or 0) != replicas:
        return f"it is being scaled: {int(status.get('replicas') or 0)} replicas of {replicas}"
    same = status.get("currentRevision") == status.get("updateRevision")
    if strategy.get("type") == "OnDelete" or same or updated >= replicas - partition:
        return ""
    return f"a rollout is in progress: {updated} of {replicas - partition} replicas are of the new version"


def _autoscaler(item: Json) -> tuple[str, Autoscaler]:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    aim = spec.get("scaleTargetRef") or {}
    conditions = {str(c.get("type")): c.get("status") for c in status.get("conditions") or ()}
    return str(item["metadata"]["name"]), Autoscaler(
        workload=Owner(str(aim.get("kind")), str(aim.get("name"))),
        spec=_digest(spec),
        desired=int(status.get("desiredReplicas") or 0),
        current=int(status.get("currentReplicas") or 0),
        active=conditions.get("ScalingActive") != "False",
    )


def unschedulable(node: Json) -> str:
    """Say why nothing is scheduled on a node any more; empty when that is possible."""
    spec = node.get("spec") or {}
    leaving = [str(t.get("key")) for t in spec.get("taints") or () if t.get("key") in LEAVING]
    if leaving:
        return f"is about to be removed ({leaving[0]})"
    return "is cordoned" if spec.get("unschedulable") else ""


def _digest(spec: Json) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]


def _name(owner: Owner) -> str:
    return f"{owner.kind} {owner.name}"


# ---- comparing -----------------------------------------------------------------------------------------


def _change(subject: str, what: str, was: object, now: object, by: str = OTHERS) -> Json:
    return {"subject": subject, "what": what, "was": was, "now": now, "by": by}


def _workloads(was: Look, now: Look) -> list[Json]:
    found = []
    for owner, before in was.workloads.items():
        after = now.workloads.get(owner)
        if after is None:
            found.append(_change(_name(owner), "object", "there", "gone"))
            continue
        if after.spec != before.spec:
            found.append(_change(_name(owner), "specification", before.spec, after.spec))
        if after.replicas != before.replicas:
            by = AUTOSCALER if _by_autoscaler(owner, after.replicas, was, now) else OTHERS
            found.append(_change(_name(owner), "replicas", before.replicas, after.replicas, by))
    return found


def _by_autoscaler(owner: Owner, replicas: int, was: Look, now: Look) -> bool:
    """Whether an autoscaler that was there before, and is as it was, wants just that many."""
    known = [name for name, one in was.autoscalers.items() if one.workload == owner]
    same = [
        now.autoscalers[n] for n in known if n in now.autoscalers and now.autoscalers[n].spec == was.autoscalers[n].spec
    ]
    return any(one.desired == replicas for one in same)


def _autoscalers(was: Look, now: Look) -> list[Json]:
    names = sorted({*was.autoscalers, *now.autoscalers})
    before = {name: was.autoscalers[name].spec if name in was.autoscalers else "none" for name in names}
    after = {name: now.autoscalers[name].spec if name in now.autoscalers else "none" for name in names}
    return [_change(f"autoscaler {n}", "specification", before[n], after[n]) for n in names if before[n] != after[n]]


def _nodes(was: Look, now: Look, ours: set[str]) -> list[Json]:
    new = {node: why for node, why in now.nodes.items() if why and not was.nodes.get(node) and node not in ours}
    return [_change(f"node {node}", "scheduling", "allowed", why) for node, why in new.items()]


def _pods(was: Look, now: Look, ours: set[str]) -> list[Json]:
    new = {uid: one for uid, one in now.disrupted.items() if uid not in was.disrupted and uid not in ours}
    return [_change(f"pod {name}", "state", "serving", why) for name, why in new.values()]
