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
    text = host.read(_path(target.state_dir)) or ""
    held = _parse(text)
    if held is not None and not held.dead(clock):
        raise Refused(
            f"target {target.name}: run {held.run} of {held.owner} holds it (pid {held.pid}, since "
            f"{utc(held.taken_wall)}); wait for it, or stop it with `drill stop {held.run}`"
        )
    if not _swap(host, target.state_dir, text, json.dumps(asdict(lock)), lock.run):
        raise Refused(f"target {target.name}: another run took the lock at this moment; try again")


def refuse_leftovers(host: Host, state_dir: str, target: str) -> None:
    """Refuse while something of an earlier run lies on the target."""
    for left in receipts.outstanding(host, state_dir):
        raise Refused(f"target {target}: not put back yet: {left.sentence()}; run `drill recover`")


def read(host: Host, state_dir: str) -> Lock | None:
    """Return the lock as it is; None when nobody holds it."""
    return _parse(host.read(_path(state_dir)) or "")


def release(host: Host, state_dir: str, run: str) -> None:
    """Let the lock go if that run holds it."""
    text = host.read(_path(state_dir)) or ""
    held = _parse(text)
    if held is not None and held.run == run:
        _swap(host, state_dir, text, "", run)


def _path(state_dir: str) -> str:
    return f"{state_dir}/lock/lock.json"


def _parse(text: str) -> Lock | None:
    try:
        return Lock(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        return None


#: $1 the lock's file, $2 its text as it was read, $3 the file that takes its place.
SWAP = '[ "$(cat "$1" 2>/dev/null)" = "$2" ] && if [ -s "$3" ]; then mv -f "$3" "$1"; else rm -f "$1"; fi'


def _swap(host: Host, state_dir: str, before: str, after: str, run: str) -> bool:
    """Change the lock from one text to another ("": nobody holds it), unless it is another one by now.

    Compared and changed under a lock of the kernel, which ends with whoever holds it.
    """
    path = _path(state_dir)
    new = f"{path}.{run}"
    host.write(new, after)
    wait = ["flock", "-w", f"{TIMEOUT_S / 2:g}", f"{path}.mutex"]
    done = host.run([*wait, "sh", "-c", SWAP, "sh", path, before, new], timeout_s=TIMEOUT_S)
    host.remove(new)
    return done.rc == 0


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
