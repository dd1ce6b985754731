"""Cgroups of a machine's own: a process belongs to the machine if and only if it is in there."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.machines.errors import MachineError

END_TIMEOUT_S = 20.0
POLL_S = 0.02


@dataclass(frozen=True)
class Hierarchy:
    """One mounted hierarchy, and where in it this process is."""

    mount: Path
    kind: str  # cgroup | cgroup2
    options: str  # to mount it again
    here: Path


def hierarchies() -> list[Hierarchy]:
    """Return the machine's hierarchies, as this process sees them."""
    own = _own_paths()
    found: list[Hierarchy] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        root, mount = fields.split()[3:5]
        kind, _, supers = rest.split(" ", 2)
        if kind not in ("cgroup", "cgroup2") or any(h.mount == Path(mount) for h in found):
            continue
        controllers = {word for word in supers.split(",") if word not in ("rw", "ro")}
        path = next((p for names, p in own if names & controllers), None) if kind == "cgroup" else _unified(own)
        if path is None:
            continue
        inner = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path()
        options = ",".join(sorted(word for word in controllers if "=" not in word or word.startswith("name=")))
        if options.startswith("name="):
            options = f"none,{options}"
        found.append(Hierarchy(Path(mount), kind, options, Path(mount) / inner))
    return found


def version_2_only(found: Iterable[Hierarchy]) -> bool:
    """Whether the controllers are in version 2."""
    return all(h.kind == "cgroup2" for h in found)


def make(paths: Iterable[Path]) -> None:
    """Make these cgroups, with all CPUs and memory nodes of their parents."""
    for path in paths:
        path.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            # Version 1: they begin empty, and an empty set holds no process.
            if (path / file).exists() and not text(path / file).strip() and (path.parent / file).exists():
                (path / file).write_text(text(path.parent / file))


def enter(paths: Iterable[Path]) -> None:
    """Move this process there."""
    for path in paths:
        (path / "cgroup.procs").write_text(str(os.getpid()))


def members(paths: Iterable[Path]) -> set[int]:
    """Return the pids in these cgroups and in all below them."""
    pids: set[int] = set()
    for folder in _folders(paths):
        pids |= {int(pid) for pid in text(folder / "cgroup.procs").split()}
    return pids


def end(paths: Iterable[Path]) -> None:
    """Kill what is in there and remove the cgroups (MachineError when something does not go)."""
    paths = list(paths)
    deadline = time.monotonic() + END_TIMEOUT_S
    while any(path.exists() for path in paths):
        if time.monotonic() > deadline:
            left = sorted(members(paths)) or "none"
            raise MachineError(f"test machines: {paths[0]} cannot be removed; processes in it: {left}: see /proc")
        for pid in members(paths):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for folder in _folders(paths):
            with contextlib.suppress(OSError):  # what was just killed may hold it for a moment
                folder.rmdir()
        time.sleep(POLL_S)


def _folders(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders, deepest first."""
    for path in paths:
        for folder, _, _ in os.walk(path, topdown=False):
            yield Path(folder)


def _own_paths() -> list[tuple[set[str], str]]:
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return [(set(names.split(",")), path) for _, names, path in lines]


def _unified(own: list[tuple[set[str], str]]) -> str | None:
    return next((path for names, path in own if names == {""}), None)


def text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
