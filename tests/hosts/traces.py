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


def rules(host: Host) -> list[str]:
    """Return rules, chains of users and policies other than ACCEPT of both kinds of iptables, without counters.

    An empty table equals one that is not there: iptables-nft leaves it behind when the last rule goes.
    """
    found, table = [], ""
    for save in SAVES:
        for line in host.run([save]).stdout.splitlines():
            table = f"{save} {line}" if line.startswith("*") else table
            plain = re.sub(r" ?\[\d+:\d+\]", "", line)
            if plain.startswith("-A") or (plain.startswith(":") and not plain.endswith(" ACCEPT")):
                found.append(f"{table} {plain}")
    return found


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
