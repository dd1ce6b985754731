"""What happens to the pods while a run goes on, as numbered events; from a watch, with a new list where it breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from drills.access.kubernetes import Api
from drills.access.kubetypes import PODS, ClusterAway, ClusterError
from drills.cluster.pods import Pod, Slots, disruption
from drills.errors import DrillError
from drills.model import Json

LASTS_S: Final = 20.0  # of one watch; the next one goes on where it ended
AGAIN_S: Final = 1.0


@dataclass
class _Known:
    """A pod as it was last told of; `up` while its container has started and not gone."""

    pod: Pod
    up: bool


class Changes:
    """Watches the pods of some selectors on threads of its own until it is closed.

    created   a pod object is there            started   its container runs (again, with one restart more)
    ready, notready   as the router sees it: a pod that is ending is not ready
    gone      its container has ended, or the pod
    """

    def __init__(
        self, api: Api, namespace: str, selectors: Mapping[str, str], slim: Callable[[Json, str], Pod], slots: Slots
    ) -> None:
        self._api, self._namespace, self._slim, self._slots = api, namespace, slim, slots
        self._selectors = dict(selectors)  # role → selector
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._events: list[Json] = []
        self._listed: set[str] = set()  # roles whose pods have been seen once
        self._problem: dict[str, str] = {}
        self._disrupted: dict[str, tuple[str, str]] = {}  # UID → name of the pod, and by what it goes
        self._open: dict[str, Any] = {}  # role → response of its watch
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def after(self, number: int) -> list[Json]:
        """Return the events after that number; the first call begins to watch. Raises ClusterAway while nobody can."""
        if not self._threads:
            for role in self._selectors:
                self._threads.append(
                    threading.Thread(target=self._follow, args=(role,), name=f"pods:{role}", daemon=True)
                )
                self._threads[-1].start()
        with self._lock:
            found = self._events[number:]
            if not found and self._problem:
                raise ClusterAway(next(iter(self._problem.values())))
        return found

    def disrupted(self) -> dict[str, tuple[str, str]]:
        """Return the pods that somebody took away since the watch began, by UID, each with its name and how."""
        with self._lock:
            return dict(self._disrupted)

    def close(self) -> None:
        """End the watches."""
        self._over.set()
        for response in list(self._open.values()):
            with suppress(Exception):
                response.shutdown()
        for thread in self._threads:
            thread.join(2.0)

    # ---- watching --------------------------------------------------------------------------------------

    def _follow(self, role: str) -> None:
        while not self._over.is_set():
            try:
                self._list_and_watch(role)
            except DrillError as error:
                if isinstance(error, ClusterError) and error.status == 410:  # too long ago: list again, at once
                    continue
                if not self._over.is_set():
                    self._problem[role] = str(error)
                self._over.wait(AGAIN_S)

    def _list_and_watch(self, role: str) -> None:
        labels = self._selectors[role]
        pods, since = self._api.list_all(PODS, self._namespace, labels=labels, keep=lambda item: self._slim(item, role))
        self.listed(role, pods)
        self._problem.pop(role, None)
        while not self._over.is_set():
            changes = self._api.watch(
                PODS, self._namespace, labels=labels, since=since, lasts_s=LASTS_S,
                opened=lambda response: self._open.update({role: response}),
            )  # fmt: skip
            for change in changes:
                since = str(change["object"]["metadata"]["resourceVersion"])
                if change["type"] != "BOOKMARK":
                    self.changed(self._slim(change["object"], role), gone=change["type"] == "DELETED")

    # ---- what it means ---------------------------------------------------------------------------------

    def listed(self, role: str, pods: list[Pod]) -> None:
        """Take in all pods of a role; those that are not among them any more are gone."""
        with self._lock:
            first = role not in self._listed
            self._listed.add(role)
            there = {pod.uid for pod in pods}
            others = [k.pod for k in self._known.values() if k.pod.uid not in there]
            missing = [pod for pod in others if pod.role == role]
            if first:
                self._known |= {pod.uid: _Known(pod, pod.started_wall is not None) for pod in pods}
            self._slots.settle([*(pod for pod in others if pod.role != role), *pods])
            for pod in missing:
                self._tell_gone(pod, "controller")
                del self._known[pod.uid]
            for pod in pods:
                self._tell(pod)

    def changed(self, pod: Pod, *, gone: bool) -> None:
        """Take in one change."""
        with self._lock:
            others = [k.pod for uid, k in self._known.items() if uid != pod.uid]
            self._slots.settle(others if gone else [*others, pod])
            self._tell(pod)
            if gone:
                self._tell_gone(pod, "controller")
                self._known.pop(pod.uid, None)

    def _tell(self, pod: Pod) -> None:
        """Tell what is different about a pod."""
        if how := disruption(pod):
            self._disrupted[pod.uid] = (pod.name, how)
        known = self._known.get(pod.uid)
        if known is None:
            known = self._known[pod.uid] = _Known(pod, up=False)
            self._say(pod, "created", "controller")
            started, ready = None, False
        else:
            started, ready = known.pod.started_wall, known.pod.ready
            known.pod = pod
        hand = "controller" if pod.restarts == 0 or not pod.live else "supervisor"
        if ready and not pod.ready:
            self._say(pod, "notready", hand)
        if pod.started_wall != started or (pod.started_wall is None and known.up):
            self._tell_gone(pod, hand)
            if pod.started_wall is not None and pod.live:
                known.up = True
                self._say(pod, "started", hand)
        if pod.ready and not ready:
            self._say(pod, "ready", hand)

    def _tell_gone(self, pod: Pod, by: str) -> None:
        known = self._known.get(pod.uid)
        if known is not None and known.up:
            known.up = False
            self._say(pod, "gone", by)

    def _say(self, pod: Pod, change: str, by: str) -> None:
        slot = self._slots.of(pod.uid)
        if slot is None:  # it was ending when it was first seen
            return
        event: Json = {"n": len(self._events) + 1, "mono": time.monotonic(), "replica": slot, "role": pod.role}
        event |= {"change": change, "uid": pod.uid, "pod": pod.name, "node": pod.node, "restarts": pod.restarts}
        event |= {"start": None if pod.started_wall is None else int(pod.started_wall), "by": by, "source": "api"}
        self._events.append(event)
