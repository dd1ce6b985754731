"""Whether the credentials that are used allow what a drill needs, asked before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drills.access.kubernetes import Api
from drills.access.kubetypes import Right
from drills.cluster import rbac
from drills.model import Fault

NO_NAMESPACE: Final = frozenset({"nodes"})


def needed(faults: Sequence[Fault], *, proxy: bool, ledger: bool = False) -> frozenset[Right]:
    """Return the rights that drills with these faults need; ledger proxies stand on nodes, as faults there do."""
    return rbac.needed(rbac.names(faults), proxy=proxy) | (rbac.HELPER if ledger else frozenset())


def everywhere(right: Right) -> bool:
    """Whether it is for objects that are in no namespace."""
    return right[2].partition("/")[0] in NO_NAMESPACE


def missing(api: Api, namespace: str, rights: Sequence[Right]) -> list[Right]:
    """Return those of the rights that the API server would not grant in that namespace."""
    return [right for right in rights if not api.may(right, "" if everywhere(right) else namespace)]


def refusals(api: Api, namespace: str, faults: Sequence[Fault], *, proxy: bool, ledger: bool = False) -> list[str]:
    """Return what is missing for these faults as one sentence, none when nothing is."""
    wanted = needed(faults, proxy=proxy, ledger=ledger)
    if not (lacking := missing(api, namespace, sorted(wanted))):
        return []
    words = ", ".join(f"{verb} {resource}" for verb, _, resource in lacking)
    return [
        f"cluster {api.name}: not allowed in {namespace}: {words}; docs/kubernetes.md has the role that drills need"
    ]
