"""A service in a Kubernetes namespace as a target. It only reads until it is told to delete or evict."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import quote

import urllib3

from drills.access import kubeconfig
from drills.access.kubernetes import Api
from drills.access.kubetypes import PODS, REPLICASETS, STATEFULSETS, ClusterError
from drills.cluster import pods, rights
from drills.cluster.changes import Changes
from drills.cluster.pods import POD, Owner, Pod, Slots
from drills.custody import Custody
from drills.errors import Refused, UsageError
from drills.model import Fault, Host, Json, Replica
from drills.probes import http
from drills.target import TargetSpec

#: A pod that is told to end now gets the second that `kubectl delete --now` gives; none at all would only take its
#: object away and leave the process to itself.
NOW_S: Final = 1
SCALED: Final = {"ReplicaSet": REPLICASETS, "StatefulSet": STATEFULSETS}
NO_HOST: Final = "needs a helper on the node, which is not in this version"


class KubernetesTarget:
    """Implements Target, CanDelete, CanEvict, HasEvents and HasHttp."""

    kind = "kubernetes"
    state_dir = ""  # nothing of ours lies on a node

    def __init__(self, spec: TargetSpec, api: Api, custody: Custody, slots: Mapping[str, str]) -> None:
        assert spec.kubernetes is not None
        self.spec, self.api, self.where = spec, api, spec.kubernetes
        self.name, self.sla, self.endpoint, self.model = spec.name, spec.sla, spec.url, spec.model
        self.fallback_models = spec.degradation.fallback_models
        self.capacity_per_replica = spec.capacity_per_replica
        self.prometheus = spec.prometheus.url if spec.prometheus else None
        self.alertmanager = spec.alertmanager.url if spec.alertmanager else None
        self.router_metrics = spec.router.metrics if spec.router else None
        self.custody: Custody = custody
        self.direct = self.where.reach == "direct" or (self.where.reach == "auto" and kubeconfig.in_cluster())
        self._selectors = {"primary": self.where.selector}
        if self.where.fallback_selector:
            self._selectors["fallback"] = self.where.fallback_selector
        self._slots = Slots(slots)
        self._changes = Changes(api, self.where.namespace, self._selectors, self._slim, self._slots)
        found = self._pods()
        self._refuse_nobody(found)
        self.expected_replicas = self._expected(found)

    def close(self) -> None:
        """End the watches and connections."""
        self._changes.close()
        self.api.close()

    # ---- Target --------------------------------------------------------------------------------------

    def replicas(self) -> list[Replica]:
        """Return the pods that serve, or should, as they are now; each under its slot. Raises ClusterError."""
        return [self._replica(slot, pod) for slot, pod in self._slots.settle(self._pods())]

    def control_host(self) -> Host:
        """Refuse: no machine of the cluster carries anything of ours."""
        return self.host("the control plane")

    def host(self, name: str) -> Host:
        """Refuse: nothing runs on nodes yet."""
        raise Refused(f"target {self.name}: what is to be done on {name} {NO_HOST}")

    def http(self) -> urllib3.PoolManager:
        """Return a pool that reaches the pods: plainly, or through the API server's proxy."""
        return http.pool() if self.direct else self.api.http()

    def facts(self) -> Json:
        """Return versions, and what the pods are made of."""
        found = self._pods()
        live = [p for p in found if p.live]

        def words(key: str) -> list[str]:
            return sorted({str(p.facts[key]) for p in live if p.facts[key]})

        shown = [{"replica": s, "pod": p.name, "uid": p.uid, "node": p.node, "role": p.role, "restarts": p.restarts}
                 for s, p in self._slots.settle(found)]  # fmt: skip
        return {
            "versions": {"kubernetes": self.api.version().get("gitVersion"), "images": words("image")},
            "cluster": {"context": self.api.name, "server": self.api.server, "namespace": self.where.namespace},
            "selector": self.where.selector,
            "reach": "direct" if self.direct else "proxy",
            "image_ids": words("image_id"),
            "restart_policy": words("restart_policy"),
            "grace_s": words("grace_s"),
            "nodes": sorted({p.node for p in live if p.node}),
            "pods": shown,
            "notes": self._notes(live),
        }

    def _notes(self, live: list[Pod]) -> list[str]:
        blind = sorted({p.workload for p in live if p.role == "primary" and not p.facts["readiness_probe"]})
        found = [f"{name}: its container has no readiness probe, so Ready says only that it runs" for name in blind]
        if not self.direct:
            found.append(
                "probes reach the pods through the API server, which adds to every time-to-first-token of theirs"
            )
        return found

    # ---- abilities -----------------------------------------------------------------------------------

    def delete_replica(self, replica: Replica, *, grace_s: float | None) -> None:
        """Delete that very pod (Refused when it is another one by now); its controller makes a new one.

        None leaves it its own grace period.
        """
        self._refuse_leaving(replica)
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": replica.uid}}
        body |= {} if grace_s is None else {"gracePeriodSeconds": max(NOW_S, int(grace_s))}
        try:
            self.api.delete(PODS, self.where.namespace, replica.labels[POD], body)
        except ClusterError as error:
            raise self._lost(replica, error) from None

    def evict_replica(self, replica: Replica, *, grace_s: float | None, dry: bool = False) -> str | None:
        """Evict that very pod; returns None, or in the API server's words why a disruption budget does not allow it."""
        self._refuse_leaving(replica)
        options: Json = {"preconditions": {"uid": replica.uid}}
        options |= {} if grace_s is None else {"gracePeriodSeconds": int(grace_s)}
        options |= {"dryRun": ["All"]} if dry else {}
        name, namespace = replica.labels[POD], self.where.namespace
        body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options}
        body["metadata"] = {"name": name, "namespace": namespace}
        try:
            self.api.create(PODS, namespace, body, name=name, sub="eviction")
        except ClusterError as error:
            if error.status == 429 and error.causes:
                return self.api.clean("; ".join(str(cause.get("message")) for cause in error.causes))
            if error.status == 500 and "PodDisruptionBudget" in error.message:  # more than one of them
                return error.message
            raise self._lost(replica, error) from None
        return None

    def rights_refusals(self, faults: Sequence[Fault]) -> list[str]:
        """Return what these faults need and our credentials do not allow."""
        return rights.refusals(self.api, self.where.namespace, faults, proxy=not self.direct)

    def replica_events(self, after: int) -> list[Json]:
        """Return what happened to the pods after event number `after`."""
        return self._changes.after(after)

    def notifications(self, after: int) -> list[Json]:  # noqa: ARG002 - of the protocol
        """Return none: a cluster's Alertmanager notifies people, not us."""
        return []

    def _refuse_leaving(self, replica: Replica) -> None:
        if replica.state == "terminating":
            raise Refused(f"{replica.name}: pod {replica.labels[POD]} is ending already, by other hands")

    def _lost(self, replica: Replica, error: ClusterError) -> ClusterError | Refused:
        if error.status in (404, 409):
            return Refused(f"{replica.name}: pod {replica.labels[POD]} is no longer the one that was aimed at")
        return error

    # ---- inside --------------------------------------------------------------------------------------

    def _slim(self, item: Json, role: str) -> Pod:
        return pods.slim(item, role=role, container=self.where.container if role == "primary" else None)

    def _pods(self) -> list[Pod]:
        found: list[Pod] = []
        for role, selector in self._selectors.items():
            keep = partial(self._slim, role=role)
            listed, _ = self.api.list_all(PODS, self.where.namespace, labels=selector, keep=keep)
            found += listed
        return found

    def _refuse_nobody(self, found: list[Pod]) -> None:
        primaries = [p for p in found if p.role == "primary"]
        where = f"target {self.name}: namespace {self.where.namespace} of {self.api.name}"
        if not primaries:
            raise Refused(f"{where}: no pod matches {self.where.selector}; mend kubernetes.selector or namespace")
        if all(p.ended for p in primaries):
            raise Refused(f"{where}: the {len(primaries)} pods of {self.where.selector} have all completed")

    def _replica(self, slot: str, pod: Pod) -> Replica:
        return pods.replica(
            slot, pod, url=self._url(pod), own=kubeconfig.in_cluster() and pod.name == socket.gethostname()
        )

    def _url(self, pod: Pod) -> str:
        port = self.where.port if pod.role == "primary" else self.where.fallback_port or self.where.port
        if not self.direct:
            return self.api.proxied(self.where.namespace, pod.name, port)
        ip = f"[{quote(pod.ip, safe=':')}]" if ":" in pod.ip else pod.ip
        return f"http://{ip}:{port}" if ip else ""

    def _expected(self, found: list[Pod]) -> int:
        """Return how many primaries their controllers should keep; where they do not say, how many there are."""
        primaries = [p for p in found if p.role == "primary" and not p.ended]
        pods.one_workload(primaries, self.where.selector)
        total = 0
        for owner in {p.owner for p in primaries}:
            there = sum(p.owner == owner for p in primaries if p.live)
            total += there if owner is None else self._scale(owner, there)
        if total == 0:
            raise UsageError(f"target {self.name}: {self.where.selector} is scaled to no replica")
        return total

    def _scale(self, owner: Owner, there: int) -> int:
        if owner.kind not in SCALED:
            return there
        found = self.api.find(SCALED[owner.kind], self.where.namespace, owner.name)
        return there if found is None else int((found.get("spec") or {}).get("replicas", 1))
