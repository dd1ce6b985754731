"""What a node could leave on the machine, to compare: rules, links, routes, mounts, cgroups, settings, files."""

from __future__ import annotations

from tests.cluster.cache import cache
from tests.machines import snapshot as snapshots
from tests.machines.snapshot import RULES, difference

__all__ = ["RULES", "difference", "snapshot"]

GONE = ("/etc/cni", "/opt/cni", "/run/containerd", "/run/netns", "/var/lib/cni", "/var/lib/kubelet", "/var/log/pods")
CGROUPS = r"drills-(?!hosts-)|kubepods|k8s\.io"


def snapshot() -> dict[str, list[str]]:
    """Return everything by kind, sorted."""
    return snapshots.snapshot(snapshots.Traces(cache(), "tests.cluster.inside", CGROUPS, GONE))
