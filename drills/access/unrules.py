"""Undo steps that take rules of ours out of the tables of a network, in the words of iptables (`ontarget` names them).

Standard library only: it is copied to hosts.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drills.access import procs

LOCK_WAIT_S = 5  # for the lock that all of iptables share
RULE_COPIES = 8
Json = dict[str, Any]


def unrule(step: Json) -> str | None:
    """Delete the rule as often as it is there; one that only resembles it is somebody else's."""
    wanted, error = ["-A", step["chain"], *step["rule"]], ""
    with _tables(step) as run:
        for _ in range(RULE_COPIES):
            if run is None or not any(shlex.split(line) == wanted for line in run("-S")):
                return None
            try:
                run("-D", *wanted[1:])
            except RuntimeError as problem:  # somebody else may have been quicker
                error = f": {problem}"
    return f"the rule is still there{error}"


def unchain(step: Json) -> str | None:
    """Remove a chain of ours, and what is in it."""
    with _tables(step) as run:
        for command in ("-F", "-X"):
            if run is not None and f"-N {step['chain']}" in run("-S"):
                run(command, step["chain"])
    return None


@contextmanager
def _tables(step: Json) -> Iterator[Callable[..., list[str]] | None]:
    """Yield what runs iptables in the step's namespace; None when the namespace is gone, and its rules with it."""
    fd = None if step["netns"] is None else _namespace(**step["netns"])
    if step["netns"] is not None and fd is None:
        yield None
        return
    enter = [] if fd is None else ["nsenter", f"--net=/proc/self/fd/{fd}"]

    def run(*args: str) -> list[str]:
        argv = [*enter, step["iptables"], "-w", str(LOCK_WAIT_S), "-t", step["table"], *args]
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * LOCK_WAIT_S,
            pass_fds=() if fd is None else (fd,),
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{args[0]}: status {done.returncode}: {done.stderr.strip()[:200]}")
        return done.stdout.splitlines()

    try:
        yield run
    finally:
        if fd is not None:
            os.close(fd)


def _namespace(pid: int, start: int, inode: int) -> int | None:
    """Open the network namespace of that process; when the process is gone, of any that still lives there."""
    others = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    for candidate in (pid, *others):
        try:
            fd = os.open(f"/proc/{candidate}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        if os.fstat(fd).st_ino == inode and (candidate != pid or procs.alive(pid, start)):
            return fd
        os.close(fd)
    return None
