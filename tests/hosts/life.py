"""How the test hosts come and go. `up` twice is `up` once; `down` also clears what was killed on its way."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from drills.lab.gpu import shim
from tests.hosts import layout, state
from tests.hosts.layout import CONTROL, ROUTER, TREE
from tests.machines import cgroups
from tests.machines.errors import MachineError
from tests.machines.locks import lock

COMMANDS = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "pivot_root": "util-linux",
    "ssh-keygen": "openssh-client",
    "/usr/sbin/sshd": "openssh-server",
    "/usr/sbin/nft": "nftables",
    "iptables": "iptables",
    "iptables-legacy": "iptables",
    "sudo": "sudo",
    str(layout.SYSTEMD): "systemd",
    "dbus-daemon": "dbus",
}
SESSIONS = "lib/*/security/pam_systemd.so"
BOOT_TIMEOUT_S, COMMAND_TIMEOUT_S, POLL_S = 60.0, 30.0, 0.2
UP_TIMEOUT_S = 180.0
ENTERED = ("pid", "mount", "uts", "ipc", "net", "cgroup", "root", "wd")


def missing() -> str | None:
    """Return what keeps this machine from having test hosts, in one line; None when nothing does."""
    if os.geteuid() != 0:
        return "test hosts: need root, for namespaces of their own"
    lacking = {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    if not [*Path("/").glob(SESSIONS)]:
        lacking.add("libpam-systemd")
    if lacking:
        return f"test hosts: missing programs: apt-get install {' '.join(sorted(lacking))}"
    if not [h for h in cgroups.hierarchies() if h.kind == "cgroup2"]:
        return "test hosts: no cgroups of version 2: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
    return None


def is_up() -> bool:
    """Whether every machine lives."""
    return all(state.pid(name) is not None for name in (CONTROL, *(machine.name for machine in layout.ALL)))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Be the only one who brings up or takes down."""
    layout.folder().mkdir(parents=True, exist_ok=True)
    with (layout.folder() / "lock").open("w") as file:
        lock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Keep the hosts from being taken down by others; the last one out takes down what nobody asked to keep."""
    layout.folder().mkdir(parents=True, exist_ok=True)
    with (layout.folder() / "users").open("w") as users:
        lock(users, fcntl.LOCK_SH)
        yield
    down_unused()


def down_unused() -> bool:
    """Take the hosts down when nobody uses them and nobody asked to keep them; whether nothing is up any more."""
    with (layout.folder() / "users").open("w") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if state.run().exists() and not kept().exists():
            down()
        return not state.run().exists()


def current() -> str | None:
    """Return the name of the hosts' present life, None where it has none yet or they are not up."""
    with contextlib.suppress(OSError):
        return (state.run() / "life").read_text() or None
    return None


def kept() -> Path:
    """Return the file that says that the hosts are wanted beyond whoever brought them up."""
    return state.run() / "kept"


def up() -> bool:
    """Bring the hosts up, which lasts while somebody is `in_use`; False when they are up (MachineError)."""
    if reason := missing():
        raise MachineError(reason)
    with locked():
        if is_up():
            return False
        _clear()
        try:
            _begin()
        except BaseException:
            _clear()
            raise
    return True


def down() -> None:
    """End the hosts, or what is left of them; nothing of them stays on the machine (else MachineError)."""
    if os.geteuid() != 0:
        raise MachineError("test hosts: need root")
    with locked():
        _clear()


def _begin() -> None:
    name, run = uuid.uuid4().hex, state.run()
    _watch(name)  # first, so that nothing is there that nobody watches
    run.mkdir(mode=0o700)
    (run / "life").write_text(name)
    for name in ("keys", "log", "pid", "disks"):
        (run / name).mkdir()
    _plan_cgroups()
    for name in ("driver", *(machine.name for machine in layout.ALL)):
        _make_key(name)
    with contextlib.suppress(FileNotFoundError):
        shim.build_shim(run / "nvml", layout.GPU_STATE)
    boot(CONTROL)
    boot(ROUTER)
    wait_booted(ROUTER)  # the others plug into it
    for name in layout.HOSTS:
        boot(name)
    for name in layout.HOSTS:
        wait_booted(name)


def _plan_cgroups() -> None:
    """Make the cgroups: in the second version, below this process's own, so that what bounds us bounds the hosts."""
    here = next(h.here for h in cgroups.hierarchies() if h.kind == "cgroup2")
    top = here / f"drills-hosts-{digest()}"
    # Written before they are made: `down` must find what a killed `up` left.
    (state.run() / "cgroups.new").write_text(json.dumps([str(top)]))
    (state.run() / "cgroups.new").rename(state.run() / "cgroups.json")
    cgroups.make([top, *(top / name for name in (CONTROL, *(machine.name for machine in layout.ALL)))])


def digest() -> str:
    """Return what tells the hosts of this folder from those of others."""
    return hashlib.sha256(str(state.run()).encode()).hexdigest()[:8]


def _watch(name: str) -> None:
    """Start what takes the hosts down when nobody is left who uses them, however they ended."""
    with (layout.folder() / "watch.log").open("wb") as log:
        argv = [sys.executable, "-m", "tests.hosts.watch", name]
        nothing = subprocess.DEVNULL
        subprocess.run(argv, cwd=TREE, stdin=nothing, stdout=log, stderr=log, timeout=COMMAND_TIMEOUT_S, check=True)


def _make_key(name: str) -> None:
    file = state.keys() / name
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(file)]
    subprocess.run(argv, timeout=COMMAND_TIMEOUT_S, check=True)


def boot(name: str) -> None:
    """Start a machine, or ctl (MachineError)."""
    log = state.run() / "log" / f"{name}.log"
    with log.open("ab") as out:
        argv = [sys.executable, "-m", "tests.hosts.boot", name, str(state.run() / "pid" / name)]
        done = subprocess.run(
            argv, cwd=TREE, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=BOOT_TIMEOUT_S, check=False
        )
    if done.returncode:
        raise MachineError(_last_line(log) or f"test hosts: {name} did not boot: see {log}")


def wait_booted(name: str) -> None:
    """Wait until a machine has started its units (MachineError)."""
    deadline, log = time.monotonic() + UP_TIMEOUT_S, state.run() / "log" / f"{name}.systemd.log"
    while ask(name, "systemctl", "is-active", "multi-user.target") != "active":
        if state.pid(name) is None or time.monotonic() > deadline:
            what = "does not finish its boot" if state.pid(name) else f"does not boot: {layout.SYSTEMD} ended"
            raise MachineError(f"test hosts: {name} {what}: {_last_line(log) or 'it said nothing'}")
        time.sleep(POLL_S)


def power_off(name: str) -> None:
    """End a machine at once, as if its power had gone; its disk stays."""
    cgroups.end([state.cgroup(name)])
    wait(f"{name} is gone", lambda: state.pid(name) is None, COMMAND_TIMEOUT_S)
    cgroups.make([state.cgroup(name)])


def inside(name: str) -> list[str]:
    """Return the words that run a command in a machine, or in the network of ctl. Raises OSError when it is gone."""
    pid = state.first_pid(name)
    if name == CONTROL:
        return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]
    return ["nsenter", f"--target={pid}", *(f"--{what}" for what in ENTERED), "--"]


def ask(name: str, *words: str) -> str | None:
    """Return what a command inside a machine prints; None when the machine or the command cannot be had."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [*inside(name), *words], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
        return done.stdout.strip()
    return None


def _last_line(file: Path) -> str:
    said = file.read_text(errors="replace").strip() if file.exists() else ""
    return said.splitlines()[-1] if said else ""


def _clear() -> None:
    """End what there is of the hosts and remove their files, keeping the logs."""
    run = state.run()
    cgroups.end(state.cgroups())
    if (run / "log").is_dir():
        shutil.rmtree(layout.folder() / "log", ignore_errors=True)
        (run / "log").rename(layout.folder() / "log")
    if run.exists():
        shutil.rmtree(run)


def wait(what: str, holds: Callable[[], bool], timeout_s: float) -> None:
    """Wait until something holds (MachineError)."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise MachineError(f"test hosts: waited in vain until {what}: see {layout.folder()}")
        time.sleep(POLL_S)
