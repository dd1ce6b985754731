"""What drills leave on the hosts, or must not: processes, units, rules, files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from drills.model import Json
from tests.hosts import layout
from tests.hosts.fleet import Fleet, Host

SAVES = ("iptables-nft-save", "iptables-legacy-save")
STATE_DIR = "/var/lib/drill"
ENGINE = "VLLM::EngineCore"
#: What answers calls of a driver ends a while after it.
ANSWERS = "drills.access.remote"


@dataclass(frozen=True)
class Process:
    """A process of a host."""

    pid: int
    parent: int
    state: str
    title: str


def processes(host: Host) -> list[Process]:
    """Return all processes there."""
    lines = host.run(["ps", "-eo", "pid=,ppid=,stat=,args="]).stdout.splitlines()
    rows = (line.split(None, 3) for line in lines)
    return [Process(int(pid), int(parent), state[0], title) for pid, parent, state, title in rows]


def engines(host: Host) -> list[Process]:
    """Return the engine processes."""
    return [one for one in processes(host) if one.title.startswith(ENGINE)]


def rules(host: Host) -> str:
    """Return what both kinds of iptables-save say, without counters and comment lines."""
    text = "".join(host.run([save]).stdout for save in SAVES)
    return "".join(
        re.sub(r" ?\[\d+:\d+\]", "", line) for line in text.splitlines(keepends=True) if not line.startswith("#")
    )


def units(host: Host) -> list[str]:
    """Return the units of drills there."""
    shown = host.run(["systemctl", "list-units", "--all", "--no-legend", "--plain", "drill*"]).stdout
    return sorted(line.split()[0] for line in shown.splitlines() if line.strip())


def files(host: Host) -> list[str]:
    """Return what drills keep there, but for the programs, and the file under whose lock the lock is changed."""
    found = host.run(
        ["find", STATE_DIR, "-path", f"{STATE_DIR}/lib", "-prune", "-o", "-type", "f", "-print"], check=False
    )
    return sorted(name for name in found.stdout.split() if not name.endswith("lock.json.mutex"))


def run_of(host: Host) -> str:
    """Return what tells this run of the engine's unit from the next one."""
    return host.run(["systemctl", "show", "--value", "--property=InvocationID", layout.UNIT]).stdout.strip()


def runs(fleet: Fleet) -> dict[str, str]:
    """Return that of each host."""
    return {host.name: run_of(host) for host in fleet.hosts}


def all_of(fleet: Fleet) -> dict[str, Json]:
    """Return of each host all that must be as it was once a drill is over."""
    return {
        host.name: {
            "rules": rules(host),
            "units": units(host),
            "files": files(host),
            "programs": sorted(one.title for one in processes(host) if _ours(one.title)),
            "engines": [one.state == "T" for one in engines(host)],
            "active": host.run(["systemctl", "is-active", layout.UNIT], check=False).stdout.strip(),
        }
        for host in fleet.hosts
    }


def _ours(title: str) -> bool:
    """Whether a process is one that a drill started, and that has to end with it."""
    return " -m drills." in title and " -m drills.lab." not in title and ANSWERS not in title
