"""The lock of a target in a cluster: a Lease in its namespace, changed only if nobody else changed it meanwhile.

Its name comes from the selector, not from the target's name, which every driver may choose: two drills of the same pods
must meet.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, replace
from typing import Final

from drills import lock as locks
from drills.access.kubehttp import micro, wall
from drills.access.kubernetes import Api
from drills.access.kubetypes import LEASES, ClusterAway, ClusterError
from drills.clock import Clock
from drills.custody import Lock, LockLost, LockUnreadable
from drills.errors import Refused
from drills.model import Json

LOCK: Final = "drills/lock"  # annotation: the whole lock
STOP: Final = "drills/stop"  # annotation: {run, who}
#: A driver on another machine that has not renewed for so long is gone. An API server may be away for a while.
LIVES_S: Final = 180


def name_of(selector: str) -> str:
    """Return the name of the Lease for what a selector means, the same for every way to write it."""
    parts = sorted(part.strip() for part in selector.split(","))
    text = ",".join(re.sub(r"\s*(==?|!=)\s*", lambda found: found[1].replace("==", "="), part) for part in parts)
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return f"drill-{words}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


class LeaseLock:
    """One Lease. Every change is bound to the resourceVersion that was read."""

    def __init__(self, api: Api, namespace: str, name: str, target: str) -> None:
        self.api, self.namespace, self.name, self.target = api, namespace, name, target

    def held(self) -> Lock | None:
        """Return the lock. It expires some time after it was last renewed, however long its run may take."""
        return self._lock(self._read())

    def take(self, lock: Lock, clock: Clock) -> None:
        """Take it. Refused when another driver that lives holds it, or is quicker."""
        lease = self._read()
        locks.refuse_held(self.target, self._lock(lease), clock)
        wanted = self._lease(lock, clock.wall(), lease)
        try:
            if lease is None:
                self.api.create(LEASES, self.namespace, wanted)
            else:
                self.api.replace(LEASES, self.namespace, wanted)
        except ClusterAway:  # nobody knows whether it was done
            if (now := self.held()) is None or now.run != lock.run:
                raise
        except ClusterError as error:
            if error.status != 409:
                raise
            raise Refused(f"target {self.target}: another run took the lock at this moment; try again") from None

    def renew(self, lock: Lock, clock: Clock) -> None:
        """Say that the driver lives. Raises LockLost when it is not that run's any more."""
        for last in (False, True):
            lease = self._read()
            try:
                held = self._lock(lease)
            except LockUnreadable as error:
                raise LockLost(str(error)) from None
            if lease is None or held is None or held.run != lock.run:
                now = f"run {held.run} of {held.owner} has it" if held else "its Lease is gone"
                raise LockLost(f"target {self.target}: the lock of run {lock.run} was lost: {now}")
            lease["spec"]["renewTime"] = micro(clock.wall())
            try:
                self.api.replace(LEASES, self.namespace, lease)
            except ClusterError as error:
                if error.status != 409 or last:  # somebody pressed the stop button meanwhile
                    raise
            else:
                return

    def release(self, run: str) -> None:
        """Take the Lease away if that run holds it."""
        for last in (False, True):
            lease = self._read()
            try:
                held = self._lock(lease)
            except LockUnreadable:  # for people to find out whose it is
                return
            if lease is None or held is None or held.run != run:
                return
            read = {key: lease["metadata"][key] for key in ("uid", "resourceVersion")}
            try:
                self.api.delete(LEASES, self.namespace, self.name, {"preconditions": read})
            except ClusterError as error:
                if error.status not in (404, 409) or last:
                    raise
            else:
                return

    def ask_to_stop(self, run: str, who: str) -> None:
        """Note on the Lease who asks that run to stop."""
        self._note(json.dumps({"run": run, "who": who}))

    def asked_to_stop(self, run: str) -> str | None:
        """Return who asked that run to stop, None when nobody did."""
        text = _annotations(self._read()).get(STOP)
        try:
            asked = json.loads(text) if text else {}
            return str(asked["who"]) if asked.get("run") == run else None
        except (ValueError, LookupError, TypeError, AttributeError):
            return None

    def forget_stop(self, run: str) -> None:
        """Take the note away."""
        if self.asked_to_stop(run) is not None:
            self._note(None)

    def _note(self, text: str | None) -> None:
        self.api.patch(LEASES, self.namespace, self.name, {"metadata": {"annotations": {STOP: text}}})

    def _read(self) -> Json | None:
        return self.api.find(LEASES, self.namespace, self.name)

    def _lock(self, lease: Json | None) -> Lock | None:
        """Return the lock on a Lease; None when it says nothing of any. Raises LockUnreadable."""
        spec = (lease or {}).get("spec") or {}
        text = _annotations(lease).get(LOCK)
        if text is None and not spec.get("holderIdentity"):
            return None
        remove = f"kubectl --namespace {self.namespace} delete lease {self.name}"
        lock = locks.parse(text or "", f"lease {self.name} in {self.namespace}", remove)
        renewed = wall(spec.get("renewTime"))
        until = lock.expires_wall if renewed is None else renewed + LIVES_S
        return replace(lock, expires_wall=until)

    def _lease(self, lock: Lock, now_wall: float, before: Json | None) -> Json:
        meta: Json = {"name": self.name, "namespace": self.namespace, "annotations": {LOCK: json.dumps(asdict(lock))}}
        meta["labels"] = {"app.kubernetes.io/managed-by": "drill"}
        if before is not None:
            meta["resourceVersion"] = before["metadata"]["resourceVersion"]
        spec = {"holderIdentity": lock.run, "leaseDurationSeconds": LIVES_S}
        spec |= {"acquireTime": micro(now_wall), "renewTime": micro(now_wall)}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def _annotations(lease: Json | None) -> dict[str, str]:
    return ((lease or {}).get("metadata") or {}).get("annotations") or {}
