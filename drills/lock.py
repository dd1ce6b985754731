"""One run per target: whose lock it is, whether that driver still lives, and what refuses another one.

Held means refuse, not wait. Where the lock lies, and how of many who try one gets it, is for the target's custody.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from drills import strictjson
from drills.access import procs
from drills.clock import Clock, utc
from drills.custody import Custody, Lock, LockUnreadable, Outstanding, is_pid, is_start, is_wall, is_word
from drills.errors import Refused


def mine(run: str, folder: Path, lives_s: float, pid: int, clock: Clock) -> Lock:
    """Return the lock this process would take."""
    now = clock.wall()
    return Lock(run, owner(), machine(), pid, procs.start(pid) or 0, now, now + lives_s, str(folder))


def owner() -> str:
    """Return who we are, as others read it: user and machine. In a container a user may have no name."""
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


_SHAPE: Final[dict[str, Any]] = {
    "run": is_word, "owner": is_word, "machine": is_word, "pid": is_pid, "start": is_start, "taken_wall": is_wall,
    "expires_wall": is_wall, "folder": is_word,
}  # fmt: skip


def parse(text: str, where: str, remove: str) -> Lock:
    """Return the lock that was written down; LockUnreadable when it is none. `remove` is the command to remove it."""
    try:
        said = strictjson.loads(text.encode("utf-8", "replace"))
        why = strictjson.misfit(said, _SHAPE)
    except ValueError:
        why = "it is no JSON"
    if why:
        raise unreadable(where, why, remove)
    return Lock(**{key: said[key] for key in _SHAPE})


def unreadable(where: str, why: str, remove: str) -> LockUnreadable:
    """Return what is raised where something lies there that is no lock."""
    return LockUnreadable(
        f"{where}: is no lock that can be read ({why}), so nobody can tell whether a run drills this target; "
        f"when none does: {remove}; then `drill recover`"
    )


def dead(lock: Lock, clock: Clock) -> bool:
    """Whether the process that took it is known to be gone, or its time is over."""
    if lock.machine == machine():
        return not procs.alive(lock.pid, lock.start)
    return clock.wall() > lock.expires_wall


def machine() -> str:
    """Return where a pid of this process means something: the boot of the machine, and the namespace of its pids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def refuse_held(target: str, held: Lock | None, clock: Clock) -> None:
    """Refuse while a driver that lives holds the target."""
    if held is not None and not dead(held, clock):
        raise Refused(
            f"target {target}: run {held.run} of {held.owner} holds it (pid {held.pid}, since "
            f"{utc(held.taken_wall)}); wait for it, or stop it with `drill stop {held.run}`"
        )


def refuse_taken(target: str, custody: Custody, clock: Clock) -> None:
    """Refuse what is drilled, then what an earlier run left: the receipts of a run that lives are its own.

    A lock that cannot be read is told by whoever takes it.
    """
    with suppress(LockUnreadable):
        refuse_held(target, custody.held(), clock)
    refuse_leftovers(target, custody.outstanding())


def refuse_leftovers(target: str, outstanding: Sequence[Outstanding]) -> None:
    """Refuse while something of an earlier run lies on the target."""
    for left in outstanding:
        raise Refused(f"target {target}: not put back yet: {left.sentence()}; run `drill recover`")
