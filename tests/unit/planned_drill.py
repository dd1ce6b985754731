"""A planned reset against the node in memory, with its journal as a list."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from drills.faults.gpu_reset import GpuReset
from drills.model import Context, Json, Receipt, Replica, Restored
from tests.unit.gpu_node import Node, a_replica, put_back


class Custody:
    """Undoes what the API can undo."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        whys: list[str] = []
        for step in reversed(receipt.undo):
            if step["do"] == "job" and not whys:  # they tell how a reset ended
                self.node.jobs.pop(step["name"], None)
            if step["do"] == "node":
                whys += [why for why in [put_back(self.node.nodes, step)] if why]
        return (Restored.DIRTY if whys else Restored.CLEAN), whys


class Target:
    """A target with one node."""

    name, kind = "prod", "kubernetes"

    def __init__(self) -> None:
        self.node, self.rows = Node(), [a_replica(), a_replica("vllm-1", "uid-1")]
        self.custody = Custody(self.node)
        self.budget: list[str | None] = []  # what dry evictions are answered with; then they are allowed
        self.evicted: list[str] = []

    def replicas(self) -> list[Replica]:
        return self.rows

    def gpu_node(self, name: str, run: str | None = None) -> Node:
        assert name == "n1"
        return self.node

    def evict_replica(self, replica: Replica, *, grace_s: float | None, dry: bool = False) -> str | None:
        if dry:
            return self.budget.pop(0) if self.budget else None
        self.evicted.append(replica.uid)
        self.node.holders = [h for h in self.node.holders if h["pod"] != replica.uid]
        self.node.host.living.discard(10)
        self.rows = [row for row in self.rows if row.uid != replica.uid]
        return None


class Drilled:
    """One planned reset, with its journal as a list."""

    def __init__(self) -> None:
        self.target: Any = Target()
        self.node: Node = self.target.node
        self.fault = GpuReset(GpuReset.Params(how="planned", budget_timeout=3.0), "kubernetes")
        self.events: list[tuple[str, Json]] = []
        self.stop_at: str | None = None
        self.on_step: Callable[[str], object] = lambda _: None
        clock = itertools.count()
        self.ctx = Context(self.tell, lambda _: None, lambda: float(next(clock)), self.stopping, 30.0)
        self.before = copy.deepcopy(self.node.nodes.node)

    def tell(self, event: str, data: Json) -> None:
        self.events.append((event, data))
        if event == "inject.step":
            self.on_step(data["step"])

    def stopping(self) -> bool:
        return self.stop_at is not None and self.stop_at in self.steps()

    def steps(self) -> list[str]:
        return [data["step"] for event, data in self.events if event == "inject.step"]

    def aim(self) -> Receipt:
        victims = [self.target.rows[0]]
        return self.fault.aim(self.target, victims, run="abcd0123", receipt="abcd0123-0-gpu-reset", deadline_s=35.0)

    def inject(self, receipt: Receipt) -> None:
        self.fault.inject(self.target, receipt, self.ctx)

    def revert(self, receipt: Receipt) -> Restored:
        return self.fault.revert(self.target, receipt, self.ctx)

    def as_before(self) -> bool:
        node = self.node.nodes.node
        same = node["spec"] == self.before["spec"] and node["metadata"]["labels"] == self.before["metadata"]["labels"]
        return same and not node["metadata"].get("annotations") and self.node.jobs == {}
