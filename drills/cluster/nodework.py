"""What is done on nodes: undo timers beside the fault, and the processes and networks of pods, through helper pods.

A receipt may lead to several nodes; each gets its own part of it, with a timer of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

from drills.access.filecustody import FileCustody
from drills.access.remote import RemoteHost
from drills.cluster.helpers import STATE_DIR, Helpers, NodeGone
from drills.errors import Refused
from drills.model import Json, Receipt
from drills.parts import Parted, parts
from drills.parts import worst as worst_of

LOOK_TIMEOUT_S: Final = 15.0
#: A look into a helper costs a command in it; a timer that is lost is known a little later, and undoes nothing anyway.
LOOK_AGAIN_S: Final = 5.0


class NodeWork(Parted):
    """The helpers of runs, and what they carry. `helpers_of` returns those of a run."""

    machine = "node"

    def __init__(self, helpers_of: Callable[[str], Helpers], target: str) -> None:
        self._helpers_of, self._target = helpers_of, target
        self._runs: dict[str, Helpers] = {}
        self._pods: dict[tuple[str, str], Json] = {}
        self._timers: dict[str, tuple[float, Json]] = {}
        self._gone: set[str] = set()  # nodes that the cluster has no more

    def helpers(self, run: str) -> Helpers:
        """Return the helpers of a run; none is made by that."""
        if run not in self._runs:
            self._runs[run] = self._helpers_of(run)
        return self._runs[run]

    def host(self, run: str, node: str) -> RemoteHost:
        """Return the helper of a run on a node, made now if there is none. Raises Refused, NodeGone too."""
        if not node:
            raise Refused("the pod is on no node yet")
        if node in self._gone:
            raise NodeGone(f"node {node} is gone")
        return self.helpers(run).on(node)

    def processes(self, run: str, node: str, uid: str, container: str) -> Json:
        """Return what the node knows of a container's processes and of its pod's network (`drills.access.podprocs`).

        A container has the same ones until it is another container.
        """
        if (known := self._pods.get((uid, container))) is not None:
            return known
        host = self.host(run, node)
        done = host.run([host.python, "-m", "drills.access.podprocs", uid, container], timeout_s=LOOK_TIMEOUT_S)
        if done.rc != 0:
            why = (done.err.strip().splitlines() or ["no reason given"])[-1][:200]
            raise Refused(f"node {node}: the processes of pod {uid} cannot be looked at: {why}")
        found: Json = json.loads(done.out)
        if found["main"] and found["engine"]:  # else it is still starting
            self._pods[uid, container] = found
        return found

    # ---- receipts ------------------------------------------------------------------------------------

    def _keeper(self, run: str, name: str) -> FileCustody:
        return self._custody(run, name)

    def _refuse(self, part: Receipt) -> None:
        self.host(part.run, part.host)
        self._refuse_too_long(part)

    def _refuse_too_long(self, part: Receipt) -> None:
        """Refuse a timer that would end with its helper, in the middle of the deed perhaps."""
        left_s = self.helpers(part.run).lives_s(part.host)
        if part.deadline_s > left_s:
            raise Refused(
                f"its timer runs for {part.deadline_s:.0f} s and its helper pod lives for {left_s:.0f} s only: "
                "plan fewer victims, or longer phases"
            )

    def _is_gone(self, run: str, name: str) -> bool:
        if self.helpers(run).node_is_gone(name):
            self._gone.add(name)
        return name in self._gone

    def disarm(self, receipt: Receipt) -> bool:
        """End the timers; a node that is gone, or whose helper is, has none."""
        ok = True
        for node, part in parts(receipt).items():
            if node not in self._gone and node in self.helpers(receipt.run).staying():
                ok = self._custody(receipt.run, node).disarm(part) and ok
        return ok

    def timer(self, receipt: Receipt) -> Json:
        """Return what the receipt's timers say: the worst of them."""
        looked, known = self._timers.get(receipt.id, (float("-inf"), {}))
        if time.monotonic() - looked < LOOK_AGAIN_S:
            return known
        there = self.helpers(receipt.run).staying()
        said = [
            {**(self._said(receipt, node) if node in there else {"state": "dead"}), "node": node}
            for node in parts(receipt)
        ]
        worst = worst_of(said)
        if worst.get("state") in ("armed", "released"):  # one that is being armed at this moment is looked at again
            self._timers[receipt.id] = (time.monotonic(), worst)
        return worst

    def _said(self, receipt: Receipt, node: str) -> Json:
        found = self._custody(receipt.run, node).found().outstanding
        return next((one.timer for one in found if one.receipt.id == receipt.id), {"state": "none"})

    def _custody(self, run: str, node: str) -> FileCustody:
        return FileCustody(self.host(run, node), STATE_DIR, self._target)

    def end(self, run: str) -> None:
        """Delete the helpers of a run. Raises Refused when one stays."""
        self.helpers(run).end()
        self._runs.pop(run, None)
