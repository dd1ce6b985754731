"""A service in a Kubernetes namespace as a target. It only reads until it is told to delete or evict."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import quote

import urllib3

from drills.access import kubeconfig
from drills.access.kubernetes import Api
from drills.access.kubetypes import PODS, REPLICASETS, STATEFULSETS, ClusterError
from drills.cluster import pods, rights
from drills.cluster.changes import Changes
from drills.cluster.custody import ClusterCustody
from drills.cluster.fronted import FrontedPods, placed
from drills.cluster.gpunode import ClusterGpuNode
from drills.cluster.helpers import STATE_DIR, name_of
from drills.cluster.others import Hands
from drills.cluster.pods import HOST_NETWORK, POD, Owner, Pod, Slots
from drills.custody import Custody
from drills.errors import Refused, UsageError
from drills.model import Fault, Host, Json, Receipt, Replica
from drills.probes import http
from drills.target import TargetSpec
from drills.targetfile import value_of

#: A pod that is told to end now gets the second that `kubectl delete --now` gives; none at all would only take its
#: object away and leave the process to itself.
NOW_S: Final = 1
SCALED: Final = {"ReplicaSet": REPLICASETS, "StatefulSet": STATEFULSETS}


class KubernetesTarget(FrontedPods):
    """Implements Target, CanDelete, CanEvict, HasEvents and HasHttp; by `FrontedPods` ledger proxies too.

    With helpers NodeAccess and HasNetwork too, and HasGpuNodes when they have an account of their own.
    """

    kind = "kubernetes"

    def __init__(
        self, spec: TargetSpec, api: Api, custody: ClusterCustody, slots: Mapping[str, str], *, drilled: bool = True
    ) -> None:
        """Look at the pods. One that is not to be drilled, only put back, may have none. Raises Refused, UsageError."""
        assert spec.kubernetes is not None
        self.spec, self.api, self.where = spec, api, spec.kubernetes
        self.name, self.sla, self.endpoint, self.model = spec.name, spec.sla, spec.url, spec.model
        self.fallback_models = spec.degradation.fallback_models
        self.capacity_per_replica = spec.capacity_per_replica
        self.prometheus = spec.prometheus.url if spec.prometheus else None
        self.alertmanager = spec.alertmanager.url if spec.alertmanager else None
        self.router_metrics = spec.router.metrics if spec.router else None
        self.custody: Custody = custody
        self._keeper = custody
        self.own_node = os.environ.get("DRILL_NODE") if kubeconfig.in_cluster() else None
        self.direct = self.where.reach == "direct" or (self.where.reach == "auto" and kubeconfig.in_cluster())
        self._selectors = {"primary": self.where.selector}
        if self.where.fallback_selector:
            self._selectors["fallback"] = self.where.fallback_selector
        self._slots = Slots(slots)
        self._begin_fronts()
        self._reached: set[tuple[str, str]] = set()  # run, and node with a helper of it
        self._changes = Changes(api, self.where.namespace, self._selectors, self._slim, self._slots)
        self._hands = Hands(api, self.where.namespace, self._pods, self._changes.disrupted)
        self.alert_labels = spec.service_labels()
        self.expected_replicas = self._expected_of_drilled() if drilled else 0

    def close(self) -> None:
        """End the watches and connections."""
        self._changes.close()
        self.api.close()

    # ---- Target --------------------------------------------------------------------------------------

    def replicas(self) -> list[Replica]:
        """Return the pods that serve, or should, as they are now; each under its slot. Raises ClusterError.

        Those on a node that was reached are shown with their processes.
        """
        return [self._replica(slot, pod) for slot, pod in self._slots.settle(self._pods())]

    def control_host(self) -> Host:
        """Refuse: no machine of the cluster carries anything of ours."""
        return self.host("the control plane")

    def host(self, name: str) -> Host:
        """Return the helper of the present run on that node, made now if there is none. Raises Refused."""
        return self._keeper.nodes.host(self._keeper.run, name)

    def state_dir_of(self, host: str) -> str:  # noqa: ARG002 - of the protocol
        """Return a folder of the helper; nothing of ours lies on the node itself."""
        return STATE_DIR

    def receipts_dir_of(self, host: str) -> str:  # noqa: ARG002 - of the protocol
        """Return where the helper has its part of receipts."""
        return f"{STATE_DIR}/receipts"

    def run_now(self) -> str:
        """Return the run that has the target now, nothing between two: what is known of its nodes goes with it."""
        return self._keeper.run

    def _is_reached(self, node: str) -> bool:
        return (self.run_now(), node) in self._reached

    def http(self) -> urllib3.PoolManager:
        """Return a pool that reaches the pods: plainly, with the endpoint's key, or through the API server's proxy.

        That one takes the header with the key for itself.
        """
        return http.pool(value_of(self.spec.api_key)) if self.direct else self.api.http()

    def bearer(self, of: str) -> str | None:
        """Return the token for its Prometheus or Alertmanager. Raises UsageError that names its place."""
        server = self.spec.prometheus if of == "prometheus" else self.spec.alertmanager
        return value_of(server.bearer) if server else None

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
        return found + self._hands.notes()

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

    def reach(self, replicas: Sequence[Replica], tell: Callable[[str, Json], None]) -> list[Replica]:
        """Have a helper on each of their nodes, told before it is made. Raises Refused."""
        pods_on = Counter(pod.node for pod in self._pods())
        for node in sorted({replica.host for replica in replicas if not self._is_reached(replica.host)}):
            pod = name_of(self._keeper.run, node)
            tell("helper", {"node": node, "pod": pod, "namespace": self.where.namespace})
            self._keeper.nodes.helpers(self._keeper.run).expect(node, pods_on[node])
            self.host(node)
            self._reached.add((self.run_now(), node))
        wanted = {replica.name: replica.uid for replica in replicas}
        return [one for one in self.replicas() if wanted.get(one.name) == one.uid]

    def gpu_node(self, name: str, run: str | None = None) -> ClusterGpuNode:
        """Return a node with GPUs, through the helper of that run, or of the present one."""
        self._keeper.run = run or self._keeper.run
        return ClusterGpuNode(self.api, self.where, name, self.host, self._keeper.labels)

    def network(self, replica: Replica) -> Json | None:
        """Return the pod's network namespace on its node. Refused when it has none of its own, or it is not found."""
        if HOST_NETWORK in replica.labels:
            raise Refused(f"pod {replica.labels[POD]} uses the network of its node; a rule there would hit everybody")
        near = {slot: pod for slot, pod in self._slots.settle(self._pods()) if pod.node == replica.host}
        pod = near.get(replica.name)
        seen = self._processes(pod) if pod else None
        if pod is None or seen is None or seen["netns"] is None:
            raise Refused(f"pod {replica.labels[POD]}: its network is not found on node {replica.host}")
        others = {slot: self._processes(one)["netns"] for slot, one in near.items() if slot != replica.name}
        return {
            "netns": seen["netns"],
            "port": self.where.port,
            **self._ports(replica, self.where.port),
            "peers": {"router": self._router_addresses()},
            "management": [pod.facts["host_ip"]] if pod.facts["host_ip"] else [],
            "bystanders": {"node": seen["host"], **{slot: netns for slot, netns in others.items() if netns}},
        }

    def place(self, replica: Replica) -> Json:
        """Return where a proxy would stand in front of a replica's pod. Refused when none could."""
        if HOST_NETWORK in replica.labels:
            raise Refused(f"{replica.name}: its pod uses the network of its node; a redirect there would hit everybody")
        pod = next((p for p in self._pods() if p.uid == replica.uid), None)
        if pod is None:
            raise Refused(f"{replica.name}: pod {replica.labels[POD]} is gone")
        port = self._port(pod)
        tcp = port in pod.facts["tcp_probes"]
        return placed(replica, ip=pod.ip, port=port, netns=self._processes(pod)["netns"], tcp_probe=tcp)

    def rights_refusals(self, faults: Sequence[Fault]) -> list[str]:
        """Return what these faults need and our credentials do not allow."""
        return rights.refusals(self.api, self.where.namespace, faults, proxy=not self.direct, ledger=self.where.ledger)

    def others_at_work(self) -> list[str]:
        """Return what others are doing to the service now: rollouts, autoscalers, drains."""
        return self._hands.at_work()

    def changes_by_others(self, ours: Sequence[Receipt]) -> list[Json]:
        """Return what others have changed since."""
        return self._hands.changes(ours)

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

    def _router_addresses(self) -> list[str]:
        selector = self.spec.router.selector if self.spec.router else None
        if selector is None:
            return []
        found, _ = self.api.list_all(
            PODS, self.where.namespace, labels=selector, keep=lambda pod: (pod.get("status") or {}).get("podIPs") or []
        )
        return sorted({str(one["ip"]) for ips in found for one in ips if ":" not in str(one["ip"])})

    def _processes(self, pod: Pod) -> Json:
        run = self._keeper.run
        return self._keeper.nodes.processes(run, pod.node, pod.uid, pod.facts["container_id"])

    def _replica(self, slot: str, pod: Pod) -> Replica:
        own = kubeconfig.in_cluster() and pod.name == socket.gethostname()
        found = pods.replica(slot, pod, url=self._url(pod), own=own)
        if not self._is_reached(pod.node) or not pod.facts["container_id"] or pod.ended:
            return found
        seen = self._processes(pod)
        main, engine = seen["main"] or {}, seen["engine"] or {}
        return replace(
            found,
            pid=main.get("pid"),
            pid_start=main.get("start"),
            engine_pid=engine.get("pid"),
            engine_start=engine.get("start"),
        )

    def _url(self, pod: Pod) -> str:
        port = self._port(pod)
        if not self.direct:
            return self.api.proxied(self.where.namespace, pod.name, port)
        ip = f"[{quote(pod.ip, safe=':')}]" if ":" in pod.ip else pod.ip
        return f"http://{ip}:{port}" if ip else ""

    def _port(self, pod: Pod) -> int:
        return self.where.port if pod.role == "primary" else self.where.fallback_port or self.where.port

    def _expected_of_drilled(self) -> int:
        found = self._pods()
        self._refuse_nobody(found)
        return self._expected(found)

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
