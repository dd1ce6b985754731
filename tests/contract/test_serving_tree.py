"""No orphan is ever left of a replica's processes, and nobody who cleans up after them is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills import receipts
from drills.access import procs
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.errors import Refused
from drills.faults.common import offspring
from drills.faults.engine_kill import EngineKill
from drills.faults.pod_kill import PodKill
from drills.lab import processes
from drills.model import Context, Host, Json, Receipt, Replica, Restored
from tests.contract import serving_tree
from tests.contract.peers import eventually
from tests.contract.serving_tree import Tree

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is not a folder here")
HOST = LocalHost()


class OneReplica:
    """A target of one replica; only what these faults ask for."""

    name = "bench"
    kind = "lab"

    def __init__(self, tree: Tree, folder: Path) -> None:
        self.custody = FileCustody(HOST, str(folder), "bench")
        (pid, start), (engine_pid, engine_start) = tree.server, tree.engine
        self.replica = Replica("r0", "u0", "primary", "http://127.0.0.1:9", ready=True, pid=pid, pid_start=start)
        self.replica = replace(self.replica, engine_pid=engine_pid, engine_start=engine_start)

    def replicas(self) -> list[Replica]:
        return [self.replica]

    def control_host(self) -> Host:
        return HOST

    def host(self, name: str) -> Host:
        return HOST


@pytest.fixture
def tree() -> Iterator[Tree]:
    with serving_tree.running() as found:
        yield found


@pytest.fixture
def target(tree: Tree, tmp_path: Path) -> Any:
    return OneReplica(tree, tmp_path)


def context() -> Context:
    def tell(event: str, data: Json) -> None:
        assert event.startswith("inject.")

    return Context(tell, time.sleep, time.monotonic, lambda: False)


def aimed(fault: EngineKill | PodKill, target: Any) -> Receipt:
    return fault.aim(target, target.replicas(), run="r", receipt="r-0", deadline_s=60)


def inject(fault: EngineKill | PodKill, target: Any, receipt: Receipt) -> None:
    fault.inject(target, receipt, context())


def kill_all() -> PodKill:
    return PodKill(PodKill.Params.model_validate({"how": "kill-process"}), "lab")


def engine_kill() -> EngineKill:
    return EngineKill(EngineKill.Params(), "lab")


def test_offspring_are_the_engine_first_and_no_tracker(tree: Tree, target: Any) -> None:
    found = offspring(target, target.replica)
    assert [(p["pid"], p["start"]) for p in found] == [tree.engine, tree.worker]
    assert procs.alive(*tree.tracker)
    stranger = replace(target.replica, pid_start=1)  # the pid is somebody else's by now
    assert [p["pid"] for p in offspring(target, stranger)] == [tree.engine[0]]


def test_kill_process_kills_the_whole_tree_and_spares_the_tracker(tree: Tree, target: Any) -> None:
    assert tree.memory.exists()
    tracker, fault = tree.tracker, kill_all()
    inject(fault, target, aimed(fault, target))
    eventually(lambda: not any(procs.alive(*p) for p in (tree.server, tree.engine, tree.worker)))
    eventually(lambda: not procs.alive(*tracker))
    assert not tree.memory.exists(), "the tracker was killed before it could free the shared memory"


def test_engine_kill_ends_the_worker_that_the_engine_leaves(tree: Tree, target: Any) -> None:
    fault = engine_kill()
    receipt = aimed(fault, target)
    assert target.custody.undo(receipt) == (Restored.CLEAN, [])
    assert procs.alive(*tree.worker), "nothing was done yet, so there was nothing to end"
    inject(fault, target, receipt)
    eventually(lambda: not procs.alive(*tree.engine))
    assert procs.alive(*tree.worker)  # the orphan
    impatient = replace(context(), stopping=lambda: True)
    seen = fault.observe(target, receipt, impatient)
    assert seen.on is None, "its server says it is ready: that proves nothing"
    assert target.custody.undo(receipt) == (Restored.CLEAN, [])
    eventually(lambda: not procs.alive(*tree.worker))
    assert procs.alive(*tree.server)


@pytest.mark.parametrize("fault", [engine_kill, kill_all])
def test_the_timer_alone_ends_what_a_deed_cut_short_leaves(
    fault: Callable[[], EngineKill | PodKill], tree: Tree, target: Any
) -> None:
    made = fault()
    receipt = replace(aimed(made, target), deadline_s=0.3)
    dead = tree.engine if fault is engine_kill else tree.server
    procs.signal(*dead, signal.SIGKILL)  # and then the driver was killed
    target.custody.arm(receipt)
    eventually(lambda: not procs.alive(*tree.worker))
    eventually(lambda: not procs.alive(*tree.engine))
    assert procs.alive(*tree.server) is (fault is engine_kill)
    eventually(lambda: [o.timer_state for o in target.custody.outstanding()] == ["undone"])
    assert target.custody.disarm(receipt)


def test_what_is_to_be_done_by_hand_asks_for_the_parent_first(tree: Tree, target: Any) -> None:
    [step] = aimed(engine_kill(), target).undo
    assert receipts.manual(step) == f"kill -0 {tree.engine[0]} || kill -KILL {tree.worker[0]}"


def test_an_engine_that_cannot_be_named_is_refused(target: Any) -> None:
    nameless = replace(target.replica, engine_pid=None, engine_start=None)
    [reason] = engine_kill().preflight(target, [nameless])
    assert reason == "r0: its engine process is not known, so it cannot be signalled safely"
    fault = engine_kill()
    receipt = aimed(fault, target)
    target.replica = replace(target.replica, engine_start=1)  # it was restarted under the same server
    with pytest.raises(Refused, match="r0: is no longer the replica that was aimed at"):
        inject(fault, target, receipt)


def test_a_server_killed_alone_is_buried_with_its_engine(tree: Tree) -> None:
    tracker = tree.tracker
    procs.signal(*tree.server, signal.SIGKILL)
    assert tree.popen is not None
    tree.popen.wait(10)
    assert procs.alive(*tree.engine)
    asyncio.run(processes.end_session(tree.server[0], grace_s=0.0))
    assert not any(procs.alive(*p) for p in (tree.engine, tree.worker, tracker))
    assert not tree.memory.exists(), "the tracker was killed before it could free the shared memory"


KEEPER = """
import subprocess, sys
from pathlib import Path
from drills.lab import keeper
def supervise():
    child = subprocess.Popen([sys.executable, sys.argv[2]], stdout=subprocess.PIPE, text=True, start_new_session=True)
    print(child.stdout.readline(), end="", flush=True)
    return 0
sys.exit(keeper.keep(Path(sys.argv[1]), supervise))
"""


def test_the_end_of_a_lab_spares_the_tracker_too(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", KEEPER, str(tmp_path), serving_tree.__file__]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    left = serving_tree.read(done.stdout)
    assert not any(procs.alive(*p) for p in (left.server, left.engine, left.worker))
    assert not left.memory.exists(), "the tracker was killed before it could free the shared memory"


def test_an_engine_that_is_still_dying_when_it_is_looked_at_is_waited_for(
    tree: Tree, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = engine_kill()
    receipt = aimed(fault, target)
    answers = iter([True, False])
    monkeypatch.setattr(HOST, "alive", lambda pid, start: pid == tree.engine[0] and next(answers, False))
    slept: list[float] = []
    seen = fault.observe(target, receipt, replace(context(), sleep=slept.append))
    assert seen.on is True
    assert len(slept) == 1
