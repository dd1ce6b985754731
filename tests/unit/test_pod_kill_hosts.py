"""pod-kill on units of hosts: the engine is below what is killed, the unit comes back, and both deaths are seen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from drills.errors import Unreachable
from drills.faults.pod_kill import PodKill
from drills.model import Context, Json, Replica

SERVER, ENGINE, WORKER, CLIENT = 10, 11, 12, 20
TREE: list[Json] = [
    {"pid": ENGINE, "start": 1, "title": "VLLM::EngineCore"},
    {"pid": WORKER, "start": 1, "title": "VLLM::Worker"},
]


class Host:
    """A host with processes; whoever survives a kill is in `immortal`."""

    name = "h1"

    def __init__(self) -> None:
        self.trees: dict[int, list[Json]] = {SERVER: TREE, CLIENT: []}
        self.alive_pids = {SERVER, ENGINE, WORKER, CLIENT}
        self.immortal: set[int] = set()
        self.killed: list[int] = []

    def tree(self, pid: int, pid_start: int) -> list[Json]:
        return list(self.trees[pid])

    def signal(self, pid: int, pid_start: int, signal: str) -> bool:
        self.killed.append(pid)
        self.alive_pids -= {pid} - self.immortal
        return True

    def alive(self, pid: int, pid_start: int) -> bool:
        return pid in self.alive_pids


class Units:
    """Says of each replica whether it would stay down."""

    def __init__(self) -> None:
        self.down: list[str] = []

    def stay_down(self, victims: Sequence[Replica], deed: str) -> list[str]:
        assert deed == "kill"
        return [f"{v.name}: stays down" for v in victims if v.name in self.down]


class Target:
    """A target of one unit on a host."""

    name, kind = "gpu-hosts", "hosts"

    def __init__(self, pid: int | None = SERVER, engine: int | None = ENGINE) -> None:
        self.there, self.units, self.pid, self.engine = Host(), Units(), pid, engine

    def replicas(self) -> list[Replica]:
        ready = self.pid in self.there.alive_pids
        start = 1 if self.engine else None
        return [
            Replica("h1", "run-1", "primary", "", ready=ready, host="h1", pid=self.pid, pid_start=1,
                    engine_pid=self.engine, engine_start=start)
        ]  # fmt: skip

    def host(self, name: str) -> Host:
        assert name == "h1"
        return self.there

    def unit_host(self, name: str) -> Units:
        assert name == "h1"
        return self.units


def fault() -> PodKill:
    return PodKill(PodKill.Params(how="kill-process"), "hosts")


def refused(target: Any) -> list[str]:
    return fault().preflight(target, target.replicas())


def context() -> Context:
    clock = itertools.count()
    return Context(lambda *_: None, lambda _: None, lambda: float(next(clock)), lambda: False)


def test_a_unit_with_its_engine_below_it_is_drilled() -> None:
    assert refused(Target()) == []


def test_a_unit_that_only_starts_a_container_is_refused() -> None:
    [reason] = refused(Target(CLIENT, None))
    assert reason.startswith("h1: no engine (VLLM::EngineCore) is below the main process of its unit")
    assert "container" in reason


def test_a_unit_with_several_engines_is_killed_with_all_of_them() -> None:
    target: Any = Target(engine=None)
    target.there.trees[SERVER] = [TREE[0], {"pid": WORKER, "start": 1, "title": "VLLM::EngineCore_DP1"}]
    assert refused(target) == []
    receipt = fault().aim(target, target.replicas(), run="r", receipt="r-0-pod-kill", deadline_s=30.0)
    target.there.immortal = {WORKER}
    fault().inject(target, receipt, context())
    assert target.there.killed == [ENGINE, WORKER, SERVER]
    seen = fault().observe(target, receipt, context())
    assert (seen.on, seen.evidence[0]["engines_left"]) == (False, [WORKER])


def test_a_unit_that_would_stay_down_is_refused() -> None:
    target = Target()
    target.units.down = ["h1"]
    assert refused(target) == ["h1: stays down"]


def test_a_host_that_does_not_answer_is_a_reason() -> None:
    target: Any = Target()

    def tree(*_: object) -> list[Json]:
        raise Unreachable("h1: no answer")

    target.there.tree = tree
    assert refused(target) == ["h1: no answer"]


def test_another_death_asks_no_unit() -> None:
    target: Any = Target(CLIENT, None)
    assert PodKill(PodKill.Params(how="delete"), "kubernetes").preflight(target, target.replicas()) == []


@pytest.mark.parametrize(("survivor", "on"), [(None, True), (ENGINE, False), (SERVER, False)])
def test_a_death_is_proven_only_when_server_and_engine_are_gone(survivor: int | None, on: bool) -> None:
    target: Any = Target()
    receipt = fault().aim(target, target.replicas(), run="r", receipt="r-0-pod-kill", deadline_s=30.0)
    target.there.immortal = {survivor}
    fault().inject(target, receipt, context())
    seen = fault().observe(target, receipt, context())
    assert seen.on is on
    assert seen.evidence[0]["engines_left"] == ([ENGINE] if survivor == ENGINE else [])
