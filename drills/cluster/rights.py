"""Whether the credentials that are used allow what a drill needs, asked before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence

from drills.access.kubernetes import Api
from drills.access.kubetypes import Right
from drills.cluster import rbac
from drills.model import Fault


def missing(api: Api, namespace: str, rights: Sequence[Right]) -> list[Right]:
    """Return those of the rights that the API server would not grant in that namespace."""
    return [right for right in rights if not api.may(right, namespace)]


def refusals(api: Api, namespace: str, faults: Sequence[Fault], *, proxy: bool) -> list[str]:
    """Return what is missing for these faults as one sentence, none when nothing is."""
    names = {f"{fault.name} {fault.how}" if hasattr(fault, "how") else fault.name for fault in faults}
    needed = rbac.needed(sorted(names & rbac.FAULTS.keys()), proxy=proxy)
    if not (lacking := missing(api, namespace, sorted(needed))):
        return []
    words = ", ".join(f"{verb} {resource}" for verb, _, resource in lacking)
    return [
        f"cluster {api.name}: not allowed in {namespace}: {words}; docs/kubernetes.md has the role that drills need"
    ]
