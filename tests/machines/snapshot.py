"""What test machines could leave on this one, to compare: rules, links, routes, mounts, cgroups, settings, files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RULES = ("iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save")
#: Names only, so that what writes there anyway does not count.
FOLDERS = ("/", "/etc", "/opt", "/run", "/usr/libexec", "/usr/libexec/kubernetes", "/var", "/var/lib", "/var/log")
SETTINGS = ("kernel", "kernel/keys", "net/bridge", "net/core", "net/ipv4", "net/ipv6", "net/netfilter", "vm")
SETTINGS_OF_LINKS = tuple(f"net/{family}/conf/{link}" for family in ("ipv4", "ipv6") for link in ("all", "default"))
#: They change by themselves, or do something when they are read.
NOT_SETTINGS = (
    "ns_last_pid",
    "pty",
    "nf_conntrack_count",
    "stat_refresh",
    "compact_memory",
    "drop_caches",
    "hung_task_detect_count",
)
#: Labs and hosts that are up at the same time come and go.
LAB_LINKS, HOSTS_CGROUPS = "drill-", "drills-hosts-"
TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Traces:
    """How to tell what is of the machines in question."""

    folder: Path  # their programs and mounts are below
    module: str  # in the command line of their processes
    cgroups: str  # a pattern of cgroups that they would make
    gone: tuple[str, ...] = ()  # places that only they make


def snapshot(of: Traces) -> dict[str, list[str]]:
    """Return everything by kind, sorted."""
    found = {
        **{command: _rules(command) for command in RULES},
        "links": [link["ifname"] for link in _shown("link")],
        "routes": [json.dumps(route) for route in _shown("route", "show", "table", "all")],
        "mounts": list(_mounts(of.folder)),
        "cgroups": list(_cgroups(of.cgroups)),
        "settings": list(_settings()),
        "files": [f"{folder}/{name}" for folder in FOLDERS for name in _names(folder)],
        "places of their own": [place for place in of.gone if Path(place).exists()],
        "processes": list(_processes(of)),
    }
    return {kind: sorted(lines) for kind, lines in found.items()}


def difference(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Return what came and what went, by kind; empty when nothing did."""
    return {
        kind: {"came": [x for x in after[kind] if x not in old], "went": [x for x in old if x not in after[kind]]}
        for kind, old in before.items()
        if old != after[kind]
    }


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout


def _shown(*what: str) -> list[dict[str, Any]]:
    """Return what `ip` shows, without what belongs to a lab."""
    entries: list[dict[str, Any]] = json.loads(_run("ip", "-j", *what) or "[]")
    return [entry for entry in entries if not str(entry.get("ifname", entry.get("dev"))).startswith(LAB_LINKS)]


def _rules(command: str) -> list[str]:
    """Return tables, chains and rules in their order, without counters and remarks."""
    lines = [re.sub(r"\[\d+:\d+\]", "", line) for line in _run(command).splitlines() if not line.startswith("#")]
    return [f"{number:05} {line}" for number, line in enumerate(lines)]


def _mounts(own: Path) -> Iterator[str]:
    """Yield the mounts; other tests have theirs in temporary folders."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        place = Path(fields[4])
        if place.is_relative_to(own) or not place.is_relative_to(tempfile.gettempdir()):
            yield " ".join(fields[3:])  # without its ids


def _cgroups(own: str) -> Iterator[str]:
    """Yield the first folders of each hierarchy, and below them whatever the machines would have made."""
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        top = len(Path(folder).parts) <= 5
        for path in (f"{folder}/{name}" for name in names if top or re.search(own, name)):
            if HOSTS_CGROUPS not in path or re.search(own, path):
                yield path


def _settings() -> Iterator[str]:
    for folder in (*SETTINGS, *SETTINGS_OF_LINKS):
        for file in sorted(Path("/proc/sys", folder).glob("*")):
            if file.is_file() and file.name not in NOT_SETTINGS and "random" not in file.parts:
                yield f"{file} = {_text(file)}"


def _processes(of: Traces) -> Iterator[str]:
    """Yield the processes that run from the machines' folder, or one of their modules."""
    for folder in Path("/proc").glob("[0-9]*"):
        title = _text(folder / "cmdline").replace("\0", " ")
        try:
            program = str((folder / "exe").readlink())
        except OSError:
            continue
        if program.startswith(f"{of.folder}/") or of.module in title:
            yield title


def _names(folder: str) -> list[str]:
    return [entry.name for entry in os.scandir(folder)] if Path(folder).is_dir() else []


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""
