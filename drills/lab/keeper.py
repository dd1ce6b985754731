"""The parent of the supervisor. It holds the lab's lock, adopts every orphan, and ends last.

    keeper ── supervisor ── engines ── EngineCores
                         └─ proxies, router, edge, exporter, Prometheus, Alertmanager

However the supervisor ends, SIGKILL included, its descendants become the keeper's, and the keeper ends them. When the
keeper is the one that ends, the supervisor is told to stop and does the same in order.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from drills.access import procs
from drills.lab import processes

LOCK = "lock"
END_TIMEOUT_S = 10.0
STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def locked(folder: Path) -> bool:
    """Whether a lab lives in the folder (starting and ending ones included)."""
    try:
        fd = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holder(folder: Path) -> tuple[int, int] | None:
    """Return (pid, start) of the keeper that wrote itself into the lock, None when it is gone."""
    try:
        held = json.loads((folder / LOCK).read_text())
        pid, start = int(held["pid"]), int(held["start"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (pid, start) if procs.alive(pid, start) else None


def keep(folder: Path, supervise: Callable[[], int]) -> int:
    """Run `supervise` in a child and return its exit status once nothing of the lab is left; 1 when one is running."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 1
    os.ftruncate(lock, 0)
    os.write(lock, json.dumps({"pid": os.getpid(), "start": procs.start(os.getpid())}).encode())
    processes.adopt_orphans()
    for sig in (
        signal.SIGINT,
        signal.SIGQUIT,
    ):  # a shell that puts us in the background ignores them, for all our heirs
        signal.signal(sig, signal.SIG_DFL)
    # A signal that comes while the two part must reach both: it waits until the handlers are there.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(_become_supervisor(keeper, supervise))
    for sig in STOP:
        signal.signal(sig, lambda *_: _tell(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
    status = _wait_for(child)
    _end_all()
    return status


def _become_supervisor(keeper: int, supervise: Callable[[], int]) -> int:
    os.setsid()
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != keeper:  # it ended before it could be asked for
        return 1
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
    return supervise()


def _tell(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


def _wait_for(child: int) -> int:
    """Reap whatever ends until the supervisor does."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _end_all() -> None:
    """Kill and reap every descendant; new orphans arrive here while their parents end.

    Resource trackers are given a moment to end by themselves: they free shared memory.
    """
    began = time.monotonic()
    while (took := time.monotonic() - began) < END_TIMEOUT_S:
        for pid in procs.children(os.getpid()):
            spared = took < processes.TRACKER_GRACE_S and procs.is_tracker(procs.title(pid))
            if not spared and (start := procs.start(pid)) is not None:
                procs.signal(pid, start, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)
