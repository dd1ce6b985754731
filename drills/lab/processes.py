"""Child processes of the lab: started in a session of their own, waited for by pidfd, ended with all they started.

A child dies with the process that started it (PR_SET_PDEATHSIG). That does not reach grandchildren such as an
EngineCore, so the supervisor runs under a keeper that adopts every orphan and ends it (`keeper.py`).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from drills.access import holders, procs

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Loaded before any fork: between fork and exec nothing may be imported.
_libc = ctypes.CDLL(None, use_errno=True)
ENGINE_TITLE = "VLLM::EngineCore"
KILL_TIMEOUT_S = 10.0
TRACKER_GRACE_S = 3.0
POLL_S = 0.05


def python(module: str, *args: str) -> list[str]:
    """Return the command line of one of our own modules; -P keeps the working directory off its path."""
    return [sys.executable, "-P", "-m", module, *args]


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process `sig` when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, sig, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass
class Child:
    """A running child. It leads a session whose id is its pid, so the session's members are it and its offspring."""

    name: str
    popen: subprocess.Popen[bytes]
    start: int
    log: Path
    started_mono: float = field(default_factory=time.monotonic)
    started_wall: float = field(default_factory=time.time)

    @property
    def pid(self) -> int:
        """The process id; names the child for ever only together with `start`."""
        return self.popen.pid


class Place(Protocol):
    """Where a child lives, other than where its parent does."""

    def enter(self) -> None:
        """Move the process that calls it there."""


def spawn(name: str, argv: Sequence[str], log: Path, cwd: Path | None = None, place: Place | None = None) -> Child:
    """Start a child; its output is appended to `log`. Raises OSError when it cannot be started."""

    def before_exec() -> None:
        die_with_parent()
        if place is not None:
            place.enter()

    with log.open("ab") as out:
        popen = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=before_exec,  # the supervisor has no threads that could hold a lock now
        )
    # Our own child stays in /proc until we wait for it, so the look cannot miss; a zombie still has its start time.
    found = procs.stat(popen.pid)
    return Child(name, popen, found[2] if found else 0, log)


async def ended(child: Child) -> int:
    """Wait for the child to end and return its exit status (negative: the signal that killed it)."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    fd = os.pidfd_open(child.pid)
    loop.add_reader(fd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return child.popen.wait()


def session(sid: int) -> list[tuple[int, int]]:
    """Return (pid, start) of every live process of a session.

    A session id is not given out again while the session has members: with the leader gone they are still its own.
    """
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) == sid and (start := procs.start(int(entry.name))) is not None:
                members.append((int(entry.name), start))
        except ProcessLookupError:
            continue
    return members


async def end_session(sid: int, *, grace_s: float) -> None:
    """End what is left of a session: SIGTERM, and SIGKILL after `grace_s` (at once when 0). Returns when none is.

    Resource trackers are given a moment to end by themselves, once the others are gone: they free shared memory.
    """
    if grace_s > 0:
        _signal_all(session(sid), signal.SIGTERM)
        if await until(lambda: not session(sid), grace_s):
            return

    def killed(*, trackers: bool) -> bool:
        members = [m for m in session(sid) if trackers or not procs.is_tracker(procs.title(m[0]))]
        _signal_all(members, signal.SIGKILL)
        return not members

    await until(lambda: killed(trackers=False), KILL_TIMEOUT_S)
    if not await until(lambda: not session(sid), TRACKER_GRACE_S):
        await until(lambda: killed(trackers=True), KILL_TIMEOUT_S)


async def until(test: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until the test holds; False when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not test():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _signal_all(members: Sequence[tuple[int, int]], sig: int) -> None:
    for pid, start in members:
        procs.signal(pid, start, sig)


def orphans(devices: Sequence[Path]) -> list[tuple[int, int]]:
    """Return (pid, start) of every EngineCore that has one of these device files open."""
    held, _ = holders.find(str(device) for device in devices)
    return [(h["pid"], h["start"]) for h in held if h["title"].startswith(ENGINE_TITLE)]


def last_line(log: Path) -> str:
    """Return the last line of a log that says something, "" when there is none."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def taken(port: int) -> bool:
    """Whether something listens on the port of 127.0.0.1 (or on all addresses)."""
    with socket.socket() as probe:
        # As servers do: without it a port that was in use a moment ago (TIME_WAIT) would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def listener(port: int) -> tuple[int, str] | None:
    """Return (pid, name) of what listens on the port, None where that cannot be seen."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    for conn in connections:
        if conn.status == psutil.CONN_LISTEN and conn.laddr and conn.laddr.port == port and conn.pid:
            return conn.pid, procs.title(conn.pid).split(" ", 1)[0].rsplit("/", 1)[-1] or "?"
    return None
