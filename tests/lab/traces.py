"""What a drill could leave on a lab, and what it must not change; looked at without the code under test."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from drills.access import holders, procs
from drills.lab.client import Lab
from drills.lab.gpu import state as gpu_state
from drills.model import Json

SETTINGS = ("persistence", "power_limit_w", "locked_clocks_mhz", "mig", "recovery_action")
IDENTITY = ("uid", "pid", "pid_start", "engine_pid", "engine_start", "restarts")
DECOY = """
import sys, time
from setproctitle import setproctitle
setproctitle(sys.argv[1])
print("up", flush=True)
time.sleep(600)
"""


def state_dir(lab: Lab) -> Path:
    """Where drills keep their lock, receipts, notes and markers."""
    return lab.dir / "drill"


def identities(lab: Lab) -> dict[str, tuple[object, ...]]:
    """Which processes of which incarnation the replicas are now."""
    return {r["name"]: tuple(r[key] for key in IDENTITY) for r in lab.control().status()["replicas"]}


def gpus(lab: Lab) -> list[Json]:
    """The GPUs as they are now."""
    found: list[Json] = gpu_state.read(lab.dir / "gpu" / "state.json")["gpus"]
    return found


def settings(lab: Lab) -> dict[str, dict[str, object]]:
    """The settings of each GPU that a reset may drop, or a drill change."""
    return {gpu["uuid"]: {key: gpu[key] for key in SETTINGS} for gpu in gpus(lab)}


def resets(lab: Lab) -> dict[str, float]:
    """When each GPU was last reset, on the monotonic clock."""
    return {gpu["uuid"]: gpu["uptime_start_mono"] for gpu in gpus(lab)}


def files(folder: Path) -> dict[str, str]:
    """Every file below a folder, by content."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def left_behind(lab: Lab) -> list[str]:
    """Everything of a drill that is still there: files, held gates, processes, engines that belong to nobody."""
    drill = state_dir(lab)
    kept = {drill / "lock" / "lock.json.mutex"}  # stays, empty, where drills are run
    found = [
        f"file {path.relative_to(drill)}" for path in sorted(drill.rglob("*")) if path.is_file() and path not in kept
    ]
    found += [f"fault file {path}" for path in sorted((lab.dir / "faults").rglob("*")) if path.is_file()]
    found += [f"gate {gate.name} is held" for gate in sorted((lab.dir / "gates").glob("*.lock")) if held(gate)]
    found += [f"process {line}" for line in command_lines() if f"{drill}/" in line]
    found += [f"rule {line}" for line in rules(lab)]
    engines, _ = holders.find(str(device) for device in (lab.dir / "gpu" / "dev").iterdir())
    servers = {r["pid"] for r in lab.control().status()["replicas"]}
    found += [f"engine {h['pid']} is stopped" for h in engines if h["state"] == "T"]
    return found + [f"engine {h['pid']} {h['title']}" for h in engines if not servers & set(h["parents"])]


def rules(lab: Lab) -> list[str]:
    """The rules and chains in the lab's namespaces and in the main one that a drill made, of both kinds of iptables."""
    found = []
    for enter in [[], *namespaces(lab).values()]:
        for kind in ("nft", "legacy") if os.geteuid() == 0 else ():
            argv = [*enter, f"iptables-{kind}-save"]
            saved = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout
            found += [f"{kind}: {line}" for line in saved.splitlines() if "DRILL-" in line]
    return found


def namespaces(lab: Lab) -> dict[str, list[str]]:
    """The words that run a command where each part of the lab lives, of those that live apart."""
    net = lab.data["network"]
    places = {r["name"]: r["netns"] for r in lab.control().status()["replicas"] if r["netns"]}
    places |= {"router": net["router"]["netns"]} if net else {}
    return {name: ["nsenter", f"--net=/proc/{place['pid']}/ns/net"] for name, place in places.items()}


CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.5)
    print("open")
except OSError as error:
    print("silent" if isinstance(error, TimeoutError) else "refused")
"""


def link(lab: Lab, name: str, seen_from: str = "router") -> str:
    """How the way to a replica's proxy is, seen from the router or from main: open, refused or silent."""
    [row] = [r for r in lab.control().status()["replicas"] if r["name"] == name]
    proxy = urlsplit(row["proxy"])
    enter = [] if seen_from == "main" else namespaces(lab)[seen_from]
    argv = [*enter, sys.executable, "-S", "-c", CONNECT, str(proxy.hostname), str(proxy.port)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout.strip()


def held(gate: Path) -> bool:
    """Whether somebody keeps restarts out: a shared lock cannot be had."""
    with gate.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def command_lines() -> list[str]:
    """The command lines of all other processes."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [line for pid in pids if pid != os.getpid() and (line := procs.title(pid))]


@contextmanager
def decoy(title: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that looks like a victim in a process list, and is none."""
    with subprocess.Popen([sys.executable, "-c", DECOY, title], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()
