"""Helper pods: what works on a node for a drill, one for each node on which a fault needs one.

A helper sees the processes and networks of its node, and nothing of the API: it carries no token, unless the target
names a service account for it, which a reset of a GPU needs so that its timer can uncordon the node. It is a `Host` as
any other, by commands executed in it; the timers in it undo their faults without driver and API. It is made for one
run, ends by itself some time after it, and when it ends, by whatever hand, it has every fault undone first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from drills.access.kubeexec import TIMED_OUT
from drills.access.kubelink import Link
from drills.access.kubernetes import Api
from drills.access.kubetypes import NODES, PODS, ClusterError
from drills.access.remote import PROGRAM, SERVE, RemoteHost
from drills.clock import Clock
from drills.errors import Refused, Unreachable
from drills.model import Completed, Json

#: In the helper; what is in it goes with the pod.
STATE_DIR: Final = "/run/drill"
CONTAINER: Final = "helper"
PYTHON: Final = "python3"
RUN, ROLE, HELPER = "drills/run", "drills/role", "helper"
MEMORY_MIB: Final = 512  # for commands and timers
PROXY_MIB: Final = 96  # for each proxy, and what is collected of it
SPARE_PROXIES: Final = 4  # for replicas that come to the node later
#: Asks service meshes for no container of theirs; some read labels, some annotations.
BY_ITSELF: Final = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
GRACE_S: Final = 30  # for the timers to undo what they watch over
KEEPER_S: Final = 5  # of that: for the keeper itself to end
NODE_GRACE_S: Final = 150  # where that may be a node, which must offer its GPUs again first
READY_TIMEOUT_S: Final = 90.0  # an image may have to be fetched
#: A kubelet that could not reach the API server asks again only after up to a minute.
GONE_TIMEOUT_S: Final = GRACE_S + 75.0
POLL_S: Final = 0.5
ENDED: Final = ("Failed", "Succeeded")
#: Why a container waits, when waiting longer is in vain.
IN_VAIN: Final = frozenset(
    {"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError",
     "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
)  # fmt: skip


@dataclass(frozen=True)
class Helper:
    """What a helper pod is made of. `image` must hold this package, iptables, iproute2 and util-linux."""

    image: str
    pull_secret: str | None = None
    lives_s: float = 3600.0
    service_account: str | None = None  # with it the timers in the pod can put back what lies in the API


def name_of(run: str, node: str) -> str:
    """Return the name of the pod: a node's own name may be too long for it."""
    return f"drill-{run}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"


def manifest(helper: Helper, *, run: str, node: str, labels: Mapping[str, str] | None = None, proxies: int = 0) -> Json:
    """Return the pod. It goes to its node past the scheduler: a cordon or a taint must not keep it away.

    `proxies`: how many may run in it.
    """
    grace_s = NODE_GRACE_S if helper.service_account else GRACE_S
    memory_mib = MEMORY_MIB + PROXY_MIB * (proxies + SPARE_PROXIES if proxies else 0)
    container = {
        "name": CONTAINER,
        "image": helper.image,
        "command": [PYTHON, "-m", "drills.access.nodekeeper", STATE_DIR, str(grace_s - KEEPER_S)],
        "securityContext": {"privileged": True, "runAsUser": 0},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": f"{memory_mib}Mi"}},
        "volumeMounts": [{"name": "state", "mountPath": STATE_DIR}],
    }
    spec: Json = {
        "nodeName": node,
        "hostPID": True,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(helper.lives_s),
        "terminationGracePeriodSeconds": grace_s,
        "automountServiceAccountToken": helper.service_account is not None,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "state", "emptyDir": {}}],
    }
    if helper.service_account:
        spec["serviceAccountName"] = helper.service_account
    if helper.pull_secret:
        spec["imagePullSecrets"] = [{"name": helper.pull_secret}]
    meta = {
        "name": name_of(run, node),
        "labels": {**(labels or {}), **BY_ITSELF, ROLE: HELPER, RUN: run},
        "annotations": dict(BY_ITSELF),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec,
    }


def runs(api: Api, namespace: str, labels: Mapping[str, str]) -> list[str]:
    """Return the runs that have helpers with these labels."""
    wanted = ",".join(f"{key}={value}" for key, value in {**labels, ROLE: HELPER}.items())
    found, _ = api.list_all(PODS, namespace, labels=wanted, keep=lambda pod: str(pod["metadata"]["labels"].get(RUN)))
    return sorted(set(found))


class NodeGone(Refused):
    """The node is no node of the cluster any more: whatever was changed on it is gone with it."""


class Helpers:
    """The helper pods of one run. `labels` say whose they are beside that."""

    def __init__(
        self, api: Api, namespace: str, helper: Helper, *, run: str, labels: Mapping[str, str], clock: Clock
    ) -> None:
        self.api, self.namespace, self.helper = api, namespace, helper
        self.run, self.labels, self.clock = run, labels, clock
        self._hosts: dict[str, RemoteHost] = {}
        self._proxies: dict[str, int] = {}
        self._made_mono: dict[str, float] = {}  # of those that were made here: when
        self._links: list[Link] = []

    def expect(self, node: str, proxies: int) -> None:
        """Say how many proxies a helper on that node may have to carry, before it is made."""
        self._proxies[node] = max(proxies, self._proxies.get(node, 0))

    def on(self, node: str) -> RemoteHost:
        """Return the node's helper, made now if there is none. Refused when it does not come up."""
        if node not in self._hosts:
            name = name_of(self.run, node)
            if not _stays(self._until_settled(name)):
                self._made_mono[node] = self.clock.mono()
                self._create(node)
            self._until_ready(name, node)
            self._hosts[node] = self._host(name, node)
        return self._hosts[node]

    def found(self) -> Mapping[str, str]:
        """Return the helpers of this run that there are: node → pod."""
        return {node: pod for node, pod, _ in self._rows()}

    def lives_s(self, node: str) -> float:
        """Return how long the helper of that node lives at least, seconds; infinite for one that others have made."""
        made_mono = self._made_mono.get(node)
        return float("inf") if made_mono is None else made_mono + int(self.helper.lives_s) - self.clock.mono()

    def node_is_gone(self, node: str) -> bool:
        """Whether the cluster has no such node any more; who may not look takes it to be there (Unreachable)."""
        try:
            return self.api.find(NODES, None, node) is None
        except ClusterError as error:
            if isinstance(error, Unreachable):
                raise
            return False

    def staying(self) -> frozenset[str]:
        """Return the nodes whose helper is there to stay: one that is ending takes its timers with it."""
        return frozenset(node for node, _, stays in self._rows() if stays)

    def _rows(self) -> list[tuple[str, str, bool]]:
        label = f"{ROLE}={HELPER},{RUN}={self.run}"
        rows, _ = self.api.list_all(
            PODS,
            self.namespace,
            labels=label,
            keep=lambda pod: (pod["spec"].get("nodeName", ""), pod["metadata"]["name"], _stays(pod)),
        )
        return rows

    def end(self) -> None:
        """Delete all helpers of this run and wait until they are gone. Raises Refused when one stays."""
        self._hosts.clear()
        for link in self._links:
            link.close()
        self._links.clear()
        for pod in self.found().values():
            self._delete(pod)
        deadline = self.clock.mono() + GONE_TIMEOUT_S
        while left := self.found():
            if self.clock.mono() > deadline:
                pods = " ".join(left.values())
                raise Refused(f"helper pods do not end: kubectl -n {self.namespace} delete pod {pods}")
            self.clock.sleep(POLL_S)

    # ---- inside --------------------------------------------------------------------------------------

    def _create(self, node: str) -> None:
        try:
            proxies = self._proxies.get(node, 0)
            body = manifest(self.helper, run=self.run, node=node, labels=self.labels, proxies=proxies)
            self.api.create(PODS, self.namespace, body)
        except ClusterError as error:
            if error.status == 409:  # made a moment ago, by a request whose answer was lost
                return
            if error.status == 403 and "PodSecurity" in error.message:
                raise Refused(
                    f"namespace {self.namespace} admits no privileged pods, and a fault on a node needs one: "
                    f"kubectl label namespace {self.namespace} pod-security.kubernetes.io/enforce=privileged"
                ) from None
            raise

    def _until_settled(self, name: str) -> Json:
        """Return the pod as it is once it is not ending any more, nothing when there is none. Raises Refused."""
        deadline = self.clock.mono() + GONE_TIMEOUT_S
        while (pod := self.api.find(PODS, self.namespace, name)) is not None and not _stays(pod):
            if self.clock.mono() > deadline:
                raise Refused(f"helper pod {name} does not end: kubectl -n {self.namespace} delete pod {name}")
            self._delete(name)  # one that has ended by itself stays until somebody takes it away
            self.clock.sleep(POLL_S)
        return pod or {}

    def _until_ready(self, name: str, node: str) -> None:
        deadline = self.clock.mono() + READY_TIMEOUT_S
        why = "was not seen"
        while self.clock.mono() < deadline:
            pod = self.api.find(PODS, self.namespace, name) or {}
            ready, why = progress(pod)
            if ready:
                return
            if why in IN_VAIN or (pod.get("status") or {}).get("phase") in ENDED:
                break
            self.clock.sleep(POLL_S)
        with_what = f"; the image is {self.helper.image}" if "Image" in why else ""
        with suppress(ClusterError):  # it ends by its own deadline
            self._delete(name)
        raise Refused(f"node {node}: the helper pod {name} does not start: {why}{with_what}; nothing was touched")

    def _delete(self, pod: str) -> None:
        try:
            self.api.delete(PODS, self.namespace, pod, {"gracePeriodSeconds": GRACE_S})
        except ClusterError as error:
            if error.status != 404:
                raise

    def _host(self, pod: str, node: str) -> RemoteHost:
        serving = [PYTHON, "-m", PROGRAM, SERVE]
        link = Link(self.api, self.namespace, pod, CONTAINER, serving)
        self._links.append(link)

        def carry(argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
            try:
                said = link.ask(json.loads(stdin), timeout_s)
                return Completed(tuple(argv), 0 if said else TIMED_OUT, said or "", "", timed_out=said is None)
            except ClusterError as error:
                if error.status == 403:
                    raise
                self._hosts.pop(node, None)  # somebody may have ended it; whoever asks again is given another one
                raise Unreachable(f"node {node}: the helper pod {pod} does not answer: {error}") from None

        return RemoteHost(node, carry, python=PYTHON)


def _stays(pod: Json) -> bool:
    """Whether that pod is there, and neither ending nor ended."""
    ended = (pod.get("status") or {}).get("phase") in ENDED
    return bool(pod) and not ended and not pod["metadata"].get("deletionTimestamp")


def progress(pod: Json, container: str = CONTAINER) -> tuple[bool, str]:
    """Return whether that container of a pod runs, and the cluster's word for what it waits for.

    Others may have been put beside it.
    """
    status = pod.get("status") or {}
    mine: Json = next((one for one in status.get("containerStatuses") or [] if one.get("name") == container), {})
    state = mine.get("state") or {}
    if "running" in state:
        return True, "running"
    word = (state.get("waiting") or state.get("terminated") or {}).get("reason")
    return False, str(word or status.get("reason") or status.get("phase") or "not there")
