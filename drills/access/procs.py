"""Processes by pid + start time (field 22 of /proc/PID/stat): a pid alone may name another one tomorrow.

Standard library only: this file is also run on its own on target hosts.
"""

from __future__ import annotations

import errno
import os
import signal as signals
from pathlib import Path

#: How a kernel, or what filters its calls, says that it has no pidfd.
NO_PIDFD = (errno.ENOSYS, errno.EPERM)


def stat(pid: int) -> tuple[str, int, int] | None:
    """Return (state letter, parent pid, start) of a process, None when there is none."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def parse_stat(text: str) -> tuple[str, int, int]:
    """Return (state letter, parent pid, start) from the text of /proc/PID/stat; the name in it may hold anything."""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1]), int(fields[19])


def start(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None when it is gone or a zombie."""
    found = stat(pid)
    return None if found is None or found[0] in "ZX" else found[2]


def alive(pid: int, pid_start: int) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    return start(pid) == pid_start


def signal(pid: int, pid_start: int, sig: int) -> bool:
    """Signal that very process and no other; False when it is gone.

    A pidfd pins the process between the look at its start time and the signal. Kernels before 5.3 have none: there the
    signal follows the look at once, in far less time than it takes until a pid is given out again.
    """
    try:
        fd = _pinned(pid)
    except ProcessLookupError:
        return False
    try:
        if start(pid) != pid_start:
            return False
        if fd is None:
            os.kill(pid, sig)
        else:
            signals.pidfd_send_signal(fd, sig)
        return True
    except ProcessLookupError:
        return False
    finally:
        if fd is not None:
            os.close(fd)


def _pinned(pid: int) -> int | None:
    """Return a pidfd, None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except AttributeError:  # a Python that was built for such a kernel
        return None
    except OSError as error:
        if error.errno in NO_PIDFD:
            return None
        raise


def children(pid: int) -> list[int]:
    """Return the pids of all descendants of a process, nearest first."""
    parent_of: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := stat(int(entry.name))) is not None:
            parent_of[int(entry.name)] = found[1]
    tree, frontier = [], {pid}
    while frontier:
        frontier = {child for child, parent in parent_of.items() if parent in frontier and child not in tree}
        tree += sorted(frontier)
    return tree


def tree(pid: int, pid_start: int) -> list[tuple[int, int, str]]:
    """Return (pid, start, title) of every live descendant of that very process, nearest first; none when it is gone."""
    found = [(child, began, title(child)) for child in children(pid) if (began := start(child)) is not None]
    return found if alive(pid, pid_start) else []


def is_tracker(name: str) -> bool:
    """Whether a title is that of Python's resource tracker.

    It cleans up shared memory when the last of its processes is gone, and ends; killed, it leaves that memory behind.
    """
    return "multiprocessing.resource_tracker" in name


def title(pid: int) -> str:
    """Return the process's command line, or its name in brackets, or "" when it is gone."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return line or f"[{Path(f'/proc/{pid}/comm').read_text().strip()}]"
    except OSError:
        return ""
