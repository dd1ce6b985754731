"""A replica's processes as vLLM has them: server, engine, its worker, and Python's own resource tracker.

    python serving_tree.py        prints {"server", "engine", "worker", "memory"} once all are there, and sleeps

The engine owns a piece of shared memory, which the tracker frees when everybody else is gone. Nobody here ends because
another one did.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

from drills.access import procs

SPAWN = multiprocessing.get_context("spawn")


def worker() -> None:
    setproctitle("VLLM::Worker")
    time.sleep(600)


def engine(server: int) -> None:
    setproctitle("VLLM::EngineCore")
    memory = SharedMemory(create=True, size=4096)
    child = SPAWN.Process(target=worker)
    child.start()
    told = {"server": server, "engine": os.getpid(), "worker": child.pid, "memory": memory.name}
    print(json.dumps(told), flush=True)
    time.sleep(600)


@dataclass(frozen=True)
class Tree:
    """The processes, each by (pid, start)."""

    server: tuple[int, int]
    engine: tuple[int, int]
    worker: tuple[int, int]
    memory: Path
    popen: subprocess.Popen[str] | None = None

    @property
    def tracker(self) -> tuple[int, int]:
        """The resource tracker, while the server lives."""
        [found] = [(p, s) for p, s, title in procs.tree(*self.server) if procs.is_tracker(title)]
        return found

    def end(self) -> None:
        """Kill what is left, as a test that failed leaves it."""
        for process in (self.worker, self.engine, self.server):
            procs.signal(*process, signal.SIGKILL)


def read(line: str, popen: subprocess.Popen[str] | None = None) -> Tree:
    """Return the tree that a line tells of."""
    told: dict[str, Any] = json.loads(line)
    identity = {name: (told[name], procs.start(told[name]) or 0) for name in ("server", "engine", "worker")}
    return Tree(**identity, memory=Path("/dev/shm") / told["memory"], popen=popen)


@contextmanager
def running() -> Iterator[Tree]:
    """Run such a tree in a session of its own."""
    argv = [sys.executable, __file__]
    quiet = {"PYTHONWARNINGS": "ignore"}  # the tracker says what it freed
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | quiet
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True) as popen:
        assert popen.stdout is not None
        tree = read(popen.stdout.readline(), popen)
        try:
            yield tree
        finally:
            tree.end()


if __name__ == "__main__":
    SPAWN.Process(target=engine, args=(os.getpid(),)).start()
    time.sleep(600)
