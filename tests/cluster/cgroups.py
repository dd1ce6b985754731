"""The node's own cgroup in each hierarchy: a process belongs to the node if and only if it is in there.

Version 1: a child of the cgroup that the command itself is in, so the node obeys what bounds it. Version 2: a child of
the root, because only an empty cgroup may hand controllers on.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cache import ClusterError
from tests.machines.cgroups import Hierarchy, end, enter, hierarchies, make, members, text, version_2_only

__all__ = [
    "DAEMONS",
    "NEEDED",
    "Hierarchy",
    "end",
    "enter",
    "hierarchies",
    "make",
    "members",
    "planned",
    "version_2_only",
]

NEEDED = ("cpu", "cpuset", "memory", "pids")  # by the kubelet
DAEMONS = "daemons"  # version 2: where the node's own programs are, so that the node's root stays empty


def planned(name: str, found: list[Hierarchy]) -> list[Path]:
    """Return the folders that `make` would make (ClusterError where the kubelet would lack a controller)."""
    if version_2_only(found):
        roots = [h.mount for h in found]
        missing = [c for c in NEEDED if c not in text(roots[0] / "cgroup.subtree_control").split()]
        if missing:
            words = " ".join(f"+{c}" for c in missing)
            raise ClusterError(
                f"test cluster: cgroups lack controllers: echo {words} > {roots[0]}/cgroup.subtree_control"
            )
        return [root / name for root in roots]
    there = ",".join(h.options for h in found).split(",")
    if missing := [c for c in NEEDED if c not in there]:
        raise ClusterError(f"test cluster: no cgroup controller {', '.join(missing)} is mounted under /sys/fs/cgroup")
    return [h.here / name for h in found]
