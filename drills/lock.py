"""One run per target: a lock with owner and expiry on the host that carries the receipts.

Held means refuse, not wait. A lock whose process is gone may be taken over, but only when nothing is left
to put back: that is for `drill recover`.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from drills import receipts
from drills.access import procs
from drills.clock import Clock, utc
from drills.errors import Refused
from drills.model import Host, Target

TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Lock:
    """Who drills the target, from where, and until when at most."""

    run: str
    owner: str
    machine: str  # boot id of the driver's machine: a pid means something only there
    pid: int
    start: int
    taken_wall: float
    expires_wall: float
    folder: str  # the run folder, on the driver's machine

    def dead(self, clock: Clock) -> bool:
        """Whether the process that took it is known to be gone, or its time is over."""
        if self.machine == _boot_id():
            return not procs.alive(self.pid, self.start)
        return clock.wall() > self.expires_wall


def mine(run: str, folder: Path, lives_s: float, pid: int, clock: Clock) -> Lock:
    """Return the lock this process would take."""
    import getpass

    now = clock.wall()
    owner = f"{getpass.getuser()}@{socket.gethostname()}"
    return Lock(run, owner, _boot_id(), pid, procs.start(pid) or 0, now, now + lives_s, str(folder))


def take(target: Target, lock: Lock, clock: Clock) -> None:
    """Take the target's lock. Refused when it is held or when an earlier run is not put back."""
    host = target.control_host()
    refuse_leftovers(host, target.state_dir, target.name)
    if _make(host, target.state_dir, lock):
        return
    held = read(host, target.state_dir)
    if held is not None and not held.dead(clock):
        raise Refused(
            f"target {target.name}: run {held.run} of {held.owner} holds it (pid {held.pid}, since "
            f"{utc(held.taken_wall)}); wait for it, or stop it with `drill stop {held.run}`"
        )
    _clear(host, target.state_dir, held, lock.run)
    if not _make(host, target.state_dir, lock):
        raise Refused(f"target {target.name}: another run took the lock at this moment; try again")


def refuse_leftovers(host: Host, state_dir: str, target: str) -> None:
    """Refuse while something of an earlier run lies on the target."""
    for left in receipts.outstanding(host, state_dir):
        raise Refused(f"target {target}: not put back yet: {left.sentence()}; run `drill recover`")


def read(host: Host, state_dir: str) -> Lock | None:
    """Return the lock as it is; None when nobody holds it."""
    return _read(host, _path(state_dir))


def release(host: Host, state_dir: str, run: str) -> None:
    """Let the lock go if that run holds it."""
    held = read(host, state_dir)
    if held is not None and held.run == run:
        host.remove(_path(state_dir))


def _path(state_dir: str) -> str:
    return f"{state_dir}/lock/lock.json"


def _read(host: Host, path: str) -> Lock | None:
    text = host.read(path)
    try:
        return Lock(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        return None


def _make(host: Host, state_dir: str, lock: Lock) -> bool:
    """Put the signed lock in place, which only one can: a link to a name that is there already fails."""
    path = _path(state_dir)
    signed = f"{path}.{lock.run}"
    host.write(signed, json.dumps(asdict(lock)))
    made = host.run(["ln", signed, path], timeout_s=TIMEOUT_S).rc == 0
    host.remove(signed)
    return made


def _clear(host: Host, state_dir: str, dead: Lock | None, run: str) -> None:
    """Move a dead lock out of the way, and put it back when it turns out to be another one by now."""
    path = _path(state_dir)
    aside = f"{path}.{run}.dead"
    if host.run(["mv", path, aside], timeout_s=TIMEOUT_S).rc == 0:
        if _read(host, aside) != dead:
            host.run(["ln", aside, path], timeout_s=TIMEOUT_S)
        host.remove(aside)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
