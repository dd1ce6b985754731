"""The files that say what of the test hosts is up: below `layout.folder()`.

lock    who brings up or takes down          users    held shared by whoever needs the hosts
run/    while they are up: pid/NAME, keys/, log/, disks/ (a file system of ctl's own), cgroups.json
"""

from __future__ import annotations

import json
from pathlib import Path

from drills.access import procs
from tests.hosts import layout


def run() -> Path:
    """Return the folder of the running hosts; there is none while none run."""
    return layout.folder() / "run"


def keys() -> Path:
    """Return the folder of the keys: `driver` and one named as each machine, each with its .pub."""
    return run() / "keys"


def disks() -> Path:
    """Return where the disks are, in the mount namespace of ctl."""
    return run() / "disks"


def library() -> Path | None:
    """Return the NVML shim, None where there is no compiler."""
    file = run() / "nvml" / "libnvidia-ml.so.1"
    return file if file.exists() else None


def cgroup(name: str) -> Path:
    """Return the cgroup of one of the machines, or of ctl."""
    return cgroups()[0] / name


def cgroups() -> list[Path]:
    """Return the hosts' own cgroups; none while none run."""
    file = run() / "cgroups.json"
    return [Path(path) for path in json.loads(file.read_text())] if file.exists() else []


def pid(name: str) -> int | None:
    """Return the pid of a machine's first process, or of what holds ctl; None when it is not up."""
    try:
        found = int((run() / "pid" / name).read_text())
    except (OSError, ValueError):
        return None
    try:  # the pid may be another's by now
        mine = f"/{cgroup(name).parent.name}/{name}" in Path(f"/proc/{found}/cgroup").read_text()
    except OSError:
        return None
    return found if mine and procs.start(found) is not None else None


def first_pid(name: str) -> int:
    """Return the pid of a machine's first process. Raises OSError when it is gone."""
    found = pid(name)
    if found is None:
        raise OSError(f"{name} is not up")
    return found
