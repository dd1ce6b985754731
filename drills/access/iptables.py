"""Rules of ours in somebody's filter table: how they are made, found again, and told from everybody else's.

Each chain and each rule carries the run id. Both kinds of iptables are known, `nft` and `legacy`: the kernel asks the
rules of both, so both are looked at. IPv4 only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drills.errors import DrillError
from drills.plain import Json

if TYPE_CHECKING:
    from drills.model import Host

TABLE = "filter"
LOCK_WAIT_S = 5
COMMAND_TIMEOUT_S = 15.0
CHAIN_MAX = 28  # characters
#: Prints `PATH VERSION` for each program there is; root's own folders are not on every PATH.
_LOOK = """
PATH="$PATH:/usr/sbin:/sbin"
for name in iptables iptables-nft iptables-legacy; do
  program=$(command -v "$name") && echo "$program $("$program" -V)"
done
true
"""
_COUNTED = re.compile(r" -c (\d+) \d+")


@dataclass(frozen=True)
class Programs:
    """The iptables of a host: path by kind, and which kind the plain command is."""

    paths: dict[str, str]
    default: str | None


@dataclass(frozen=True)
class Rule:
    """A rule of ours, in the words in which `iptables -S` shows it. `what` says what it counts."""

    chain: str
    what: str
    words: tuple[str, ...]


def find(host: Host) -> Programs:
    """Look for the programs on a host."""
    done = host.run(["/bin/sh", "-c", _LOOK], timeout_s=COMMAND_TIMEOUT_S)
    paths: dict[str, str] = {}
    default = None
    for line in done.out.splitlines():
        path, _, version = line.partition(" ")
        kind = "nft" if "nf_tables" in version else "legacy"  # before 1.8 there was no other kind
        paths.setdefault(kind, path)
        default = default or kind
    return Programs(paths, default)


def enter(host: Host, netns: Json | None) -> list[str]:
    """Return the words that run a command in a namespace (DrillError when the process that holds it is gone)."""
    if netns is None:
        return []
    if not host.alive(netns["pid"], netns["start"]):
        raise DrillError(f"{host.name}: the process {netns['pid']} that holds the network namespace is gone")
    return ["nsenter", f"--net=/proc/{netns['pid']}/ns/net"]


def call(host: Host, prefix: Sequence[str], program: str, *words: str, table: str = TABLE) -> str:
    """Run iptables on a table and return what it prints. Raises DrillError."""
    argv = [*prefix, program, "-w", str(LOCK_WAIT_S), "-t", table, *words]
    done = host.run(argv, timeout_s=COMMAND_TIMEOUT_S)
    if done.rc:
        why = "timed out" if done.timed_out else (done.err.strip().splitlines() or ["no reason given"])[0]
        raise DrillError(f"{host.name}: {shlex.join(argv)}: {why}")
    return done.out


def restore(host: Host, prefix: Sequence[str], program: str, rules: Sequence[Rule], *, table: str = TABLE) -> None:
    """Put rules in place, all in one step or none: ours into new chains, what leads there before all others.

    Raises DrillError.
    """
    ours = sorted({rule.chain for rule in rules if rule.what != "jump"})
    lines = [f"*{table}", *(f":{chain} - [0:0]" for chain in ours)]
    for rule in rules:
        where = f"-I {rule.chain} 1" if rule.what == "jump" else f"-A {rule.chain}"
        lines.append(f"{where} {' '.join(rule.words)}")  # no word of ours needs quotes; a shell's would not do here
    argv = [*prefix, f"{program}-restore", "-w", str(LOCK_WAIT_S), "--noflush"]
    done = host.run(argv, timeout_s=COMMAND_TIMEOUT_S, stdin="\n".join([*lines, "COMMIT", ""]))
    if done.rc:
        why = "timed out" if done.timed_out else (done.err.strip().splitlines() or ["no reason given"])[0]
        raise DrillError(f"{host.name}: {shlex.join(argv)}: {why}")


# ---- before and after ----------------------------------------------------------------------------------


def snapshot(host: Host, prefix: Sequence[str], programs: Programs) -> Json:
    """Return what iptables-save says there, by kind, without what changes by itself. Raises DrillError."""
    found = {}
    for kind, path in sorted(programs.paths.items()):
        done = host.run([*prefix, f"{path}-save"], timeout_s=COMMAND_TIMEOUT_S)
        if done.rc:
            raise DrillError(f"{host.name}: {path}-save: {(done.err.strip().splitlines() or ['no reason given'])[0]}")
        found[kind] = normal(done.out)
    return found


def normal(saved: str) -> list[str]:
    """Return rules, chains of users and policies other than ACCEPT, each with its table, without counters.

    A table that has none of these equals one that is not there: iptables-nft leaves an empty one behind.
    """
    found, table = [], ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":"):
            chain, policy = line[1:].split(" ")[:2]
            found += [f"{table} :{chain} {policy}"] if policy != "ACCEPT" else []
        elif "-A " in line:
            found.append(f"{table} {line[line.index('-A ') :]}")
    return found


def difference(before: Json, after: Json) -> list[str]:
    """Return the lines that came or went, each with its kind."""
    found = []
    for kind in sorted({*before, *after}):
        then, now = before.get(kind, []), after.get(kind, [])
        found += [f"{kind}: missing: {line}" for line in then if line not in now]
        found += [f"{kind}: new: {line}" for line in now if line not in then]
        if not found and then != now:
            found.append(f"{kind}: in another order")
    return found


def ours(snap: Json, tag: str) -> list[str]:
    """Return the lines of a snapshot that carry a run's id, or what begins with it."""
    return [line for lines in snap.values() for line in lines if f"-{tag}-" in line]


# ---- counters ------------------------------------------------------------------------------------------


def counters(listed: str, chain: str) -> list[int]:
    """Return the packets of each rule of a chain, in order, from `iptables -v -S`."""
    lines = [line for line in listed.splitlines() if line.startswith(f"-A {chain} ")]
    return [int(found[1]) for line in lines if (found := _COUNTED.search(line))]
