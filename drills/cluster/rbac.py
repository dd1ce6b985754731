"""The rights that drills of a cluster need: as data, and as the Role that grants exactly them.

`Api.asked` holds what was really needed; a test holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from drills.access.kubetypes import Right
from drills.model import Fault, Json

APPS, COORDINATION = "apps", "coordination.k8s.io"

#: Looking at the service, from a plan to the end of a run.
LOOK: Final[frozenset[Right]] = frozenset(
    {
        ("list", "", "pods"),
        ("watch", "", "pods"),
        ("get", APPS, "replicasets"),
        ("get", APPS, "statefulsets"),
        ("get", APPS, "deployments"),  # whether somebody else changes the service
        ("list", "autoscaling", "horizontalpodautoscalers"),
    }
)
#: Whether a node is cordoned. Nodes are in no namespace: without this right a cordon is not seen, and that is said.
GET_NODES: Final[Right] = ("get", "", "nodes")
#: Who drills, and what is to be put back.
CUSTODY: Final[frozenset[Right]] = frozenset(
    {
        *((verb, COORDINATION, "leases") for verb in ("get", "create", "update", "delete")),
        *((verb, "", "configmaps") for verb in ("list", "create", "delete")),
    }
)
#: `drill stop`, by whoever presses it; the run itself takes the note away.
STOP: Final[frozenset[Right]] = frozenset({("get", COORDINATION, "leases"), ("patch", COORDINATION, "leases")})
#: Completions and metrics of pods through the API server, where their addresses cannot be reached.
PROXY: Final[frozenset[Right]] = frozenset({("get", "", "pods/proxy"), ("create", "", "pods/proxy")})
#: A helper pod on the node of a victim: to make it, to work through it, to end it.
HELPER: Final[frozenset[Right]] = frozenset(
    {
        *((verb, "", "pods") for verb in ("get", "list", "create", "delete")),
        *((verb, "", "pods/exec") for verb in ("get", "create")),  # which of the two: by the server's version
    }
)
#: A node whose GPU is reset: cordoned, labelled and put back. Nodes are in no namespace: this is for a ClusterRole.
NODE: Final[frozenset[Right]] = frozenset({("get", "", "nodes"), ("patch", "", "nodes")})
#: The job that resets the GPU, in the namespace of the pods.
RESET_JOB: Final[frozenset[Right]] = frozenset((verb, "batch", "jobs") for verb in ("get", "create", "delete"))
#: What each way to break something needs on top.
FAULTS: Final[dict[str, frozenset[Right]]] = {
    "pod-kill delete": frozenset({("delete", "", "pods")}),
    "pod-kill delete-now": frozenset({("delete", "", "pods")}),
    "pod-kill evict": frozenset({("create", "", "pods/eviction")}),
    **dict.fromkeys(
        ("pod-kill kill-process", "noop", "engine-kill", "engine-hang", "packet-loss", "upstream-delay"), HELPER
    ),
    "gpu-reset planned": HELPER | NODE | RESET_JOB | {("create", "", "pods/eviction")},
}


def names(faults: Iterable[Fault]) -> list[str]:
    """Return what these faults are called here: `pod-kill evict`."""
    found = {f"{fault.name} {fault.how}" if hasattr(fault, "how") else fault.name for fault in faults}
    return sorted(found & FAULTS.keys())


def needed(faults: Iterable[str], *, proxy: bool) -> frozenset[Right]:
    """Return the rights for drills with these faults ("pod-kill evict"). Raises KeyError for one that is not known."""
    found = LOOK | CUSTODY | STOP | (PROXY if proxy else frozenset())
    for fault in faults:
        found |= FAULTS[fault]
    return found


def rules(rights: Iterable[Right]) -> list[Json]:
    """Return the rules of a Role that grants exactly these rights, in a fixed order."""
    verbs: dict[tuple[str, str], set[str]] = {}
    for verb, group, resource in rights:
        verbs.setdefault((group, resource), set()).add(verb)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": sorted(allowed)}
        for (group, resource), allowed in sorted(verbs.items())
    ]


def role(name: str, namespace: str, rights: Iterable[Right]) -> Json:
    """Return the Role; what is in no namespace is not for it to grant (`cluster_role`)."""
    meta = {"name": name, "namespace": namespace}
    kept = rules(set(rights) - NODE)
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": kept}


def cluster_role(name: str, rights: Iterable[Right] = NODE) -> Json:
    """Return the ClusterRole for what of these rights is in no namespace: for the driver and for its helpers."""
    meta, kept = {"name": name}, rules(set(rights) & NODE)
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": meta, "rules": kept}


def render(document: Json) -> str:
    """Return an object as YAML; a rule takes one line."""
    lines = [f"apiVersion: {document['apiVersion']}", f"kind: {document['kind']}"]
    lines += [f"metadata: {_flow(document['metadata'])}", "rules:"]
    return "\n".join([*lines, *(f"  - {_flow(rule)}" for rule in document["rules"])]) + "\n"


def _flow(value: Json) -> str:
    inside = ", ".join(f"{key}: {json.dumps(part)}" for key, part in value.items())
    return f"{{{inside}}}"
