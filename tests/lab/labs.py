"""What tests of the lab share: free ports, waiting for events, and looking for processes left over."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from drills.access import holders
from drills.lab import processes
from drills.lab.client import Control
from drills.lab.config import LabConfig
from drills.model import Json

T = TypeVar("T")


def free_port_base() -> int:
    """Return a first port from which a whole lab fits, below the ports that the kernel hands out.

    Each worker of the test run has a range of its own: two that look at the same moment must not find the same one.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    for base in random.sample(range(20000 + 3000 * worker, 23000 + 3000 * worker, 200), 15):
        if not any(processes.taken(port) for port in LabConfig(port_base=base).all_ports()):
            return base
    raise AssertionError("no 124 free ports in a row")


def eventually(look: Callable[[], T | None], within_s: float = 20.0) -> T:
    """Return the first result of `look` that is not None or False."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.05)


def replica(control: Control, name: str) -> Json:
    """Return the replica as it is now."""
    return next(r for r in control.status()["replicas"] if r["name"] == name)


def all_ready(control: Control) -> bool:
    """Whether every replica is ready."""
    return all(r["ready"] for r in control.status()["replicas"])


def last_event(control: Control) -> int:
    """Return the number of the last event, for `Control.events`."""
    return max((e["n"] for e in control.events()), default=0)


def changes(control: Control, since: int, name: str) -> list[Json]:
    """Return what happened to one replica after event number `since`."""
    return [e for e in control.events(since) if e["replica"] == name]


def processes_of(folder: Path) -> list[str]:
    """Return the processes that a lab in that folder has: by command line, working directory or GPU held."""
    found = [h["title"] for h in holders.find(str(d) for d in (folder / "gpu" / "dev").glob("*"))[0]]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            here = (entry / "cwd").readlink() == folder
        except OSError:
            continue
        if here or f"{folder}/" in line or line.rstrip().endswith(str(folder)):
            found.append(line)
    return found


def path_without_monitoring(folder: Path) -> str:
    """Return a PATH with everything that is on ours but Prometheus and Alertmanager."""
    hidden = {"prometheus", "promtool", "alertmanager", "prometheus-alertmanager", "amtool"}
    there = folder / "bin"
    there.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = there / program.name
            if program.name not in hidden and not link.is_symlink():
                link.symlink_to(program)
    return str(there)
