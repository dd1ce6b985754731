"""Whether the credentials that are used allow what a drill needs, asked before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drills.access.kubernetes import Api
from drills.access.kubetypes import Right
from drills.cluster import rbac
from drills.model import Fault

NO_NAMESPACE: Final = frozenset({"nodes"})


def needed(faults: Sequence[Fault], *, proxy: bool) -> frozenset[Right]:
    """Return the rights that drills with these faults need."""
    return rbac.needed(rbac.names(faults), proxy=proxy)


def everywhere(right: Right) -> bool:
    """Whether it is for objects that are in no namespace."""
    return right[2] in NO_NAMESPACE


def missing(api: Api, namespace: str, rights: Sequence[Right]) -> list[Right]:
    """Return those of the rights that the API server would not grant in that namespace."""
    return [right for right in rights if not api.may(right, namespace)]


def refusals(api: Api, namespace: str, faults: Sequence[Fault], *, proxy: bool) -> list[str]:
    """Return what is missing for these faults as one sentence, none when nothing is."""
    if not (lacking := missing(api, namespace, sorted(needed(faults, proxy=proxy)))):
        return []
    words = ", ".join(f"{verb} {resource}" for verb, _, resource in lacking)
    return [
        f"cluster {api.name}: not allowed in {namespace}: {words}; docs/kubernetes.md has the role that drills need"
    ]
