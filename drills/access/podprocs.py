"""The processes of a pod as its node sees them: `python -m drills.access.podprocs UID CONTAINER` prints JSON.

UID is the pod's, CONTAINER the id of the container that is meant. It needs the node's process ids (`hostPID`), and
goes by the control groups alone, which no process can lie about: names are never asked.

    {"netns": {"pid", "start", "inode"},   the pod's network, held by its sandbox, which outlives its containers
     "main": {"pid", "start"} | null,      the container's first process
     "engine": {"pid", "start"} | null,    its EngineCore
     "host": {"pid", "start", "inode"}}    the node's own network

Standard library only.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drills.access import procs

Json = dict[str, Any]
PROC = Path("/proc")
ENGINE_TITLE = "VLLM::EngineCore"


@dataclass(frozen=True)
class Process:
    """A process of the pod; `container` is the id of the container it belongs to, "" when none can be read."""

    pid: int
    start: int
    parent: int
    container: str
    title: str


def look(uid: str, container: str, proc: Path = PROC) -> Json:
    """Return what the node knows of the pod's processes; a pod that is not here has none."""
    found = list(_of_pod(uid, proc))
    mine = [p for p in found if p.container == container]
    inside = {p.pid for p in mine}
    engines = [p for p in mine if p.title.startswith(ENGINE_TITLE)]
    others = [p for p in found if p.container != container]
    # The sandbox starts before every container, and ends after them.
    holders = sorted(others, key=lambda p: p.start) or mine
    return {
        "netns": _netns(holders[0], proc) if holders else None,
        # What is executed in a container later has its parent outside too, so the first one is meant.
        "main": _named(sorted((p for p in mine if p.parent not in inside), key=lambda p: p.start)[:1]),
        "engine": _named(engines),
        "host": _netns(Process(1, procs.start(1) or 0, 0, "", ""), proc),
    }


def _of_pod(uid: str, proc: Path) -> Iterator[Process]:
    """Yield the processes in the pod's control group."""
    # systemd's names for it have underscores where the uid has dashes.
    pod = re.compile(rf"pod({re.escape(uid)}|{re.escape(uid.replace('-', '_'))})(?![0-9a-f])")
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            groups = (entry / "cgroup").read_text()
            place = next((line for line in groups.splitlines() if pod.search(line)), None)
            if place is None:
                continue
            state, parent, start = procs.parse_stat((entry / "stat").read_text())
        except OSError:  # it ended meanwhile
            continue
        if state not in "ZX":
            below = place[pod.search(place).end() :]  # type: ignore[union-attr] # it was found there
            inner = re.findall(r"[0-9a-f]{64}", below)
            yield Process(int(entry.name), start, parent, inner[0] if inner else "", _title(entry))


def _title(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _netns(process: Process, proc: Path) -> Json | None:
    try:
        inode = (proc / str(process.pid) / "ns" / "net").stat().st_ino
    except OSError:
        return None
    return {"pid": process.pid, "start": process.start, "inode": inode}


def _named(found: list[Process]) -> Json | None:
    """Return the one process that is meant; of none or several it cannot be said which."""
    return {"pid": found[0].pid, "start": found[0].start} if len(found) == 1 else None


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1], sys.argv[2])))
