"""The helper pod that faults on a node need: named, and admitted by the namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from drills.access.kubernetes import Api
from drills.access.kubetypes import ClusterError, Resource
from drills.doctor.finding import Finding, missing, ok, unknown
from drills.doctor.wanted import Wanted
from drills.target import TargetSpec

GROUP: Final = "helper"
NAMESPACES: Final = Resource("", "v1", "namespaces")
ENFORCE: Final = "pod-security.kubernetes.io/enforce"


def look(api: Api, spec: TargetSpec, wanted: Wanted) -> Iterator[Finding]:
    """Yield whether there can be one."""
    assert spec.kubernetes is not None
    where, whose = spec.kubernetes, sorted({*wanted.whose("NodeAccess"), *wanted.whose("HasNetwork")})
    if not whose:
        yield ok(GROUP, "image", "no chosen drill needs a helper on a node")
        return
    if where.helper is None:
        what = f"none is named, and {', '.join(whose)} works on the node of its victim"
        lines = (f"in drill.yaml, targets.{spec.name}.kubernetes:", '  helper: {image: "drills:0.1.0"}')
        yield missing(
            GROUP, "image", what, *lines, "the image is made by examples/kubernetes/Containerfile", refuses=True
        )
        return
    yield ok(GROUP, "image", f"{where.helper.image}; that the nodes can have it is seen when a drill makes a helper")
    planned = [one.name for one in wanted.drills if any(getattr(f, "how", "") == "planned" for f in one.faults)]
    if planned and where.helper.service_account is None:
        yield _no_account(where.namespace, spec.name, planned)
    yield from _admitted(api, where.namespace, whose)


def _no_account(namespace: str, target: str, planned: list[str]) -> Finding:
    what = f"the helper has none, and {', '.join(planned)} has it uncordon the node when no driver does"
    name, role = "drill-node", "drill-nodes"  # as in docs/kubernetes.md
    return missing(
        GROUP,
        "service account",
        what,
        f"kubectl -n {namespace} create serviceaccount {name}",
        f"kubectl create clusterrole {role} --verb=get,patch --resource=nodes",
        f"kubectl create clusterrolebinding {name} --clusterrole={role} --serviceaccount={namespace}:{name}",
        f"in drill.yaml, targets.{target}.kubernetes.helper:",
        f"  service_account: {name}",
        refuses=True,
    )


def _admitted(api: Api, namespace: str, whose: list[str]) -> Iterator[Finding]:
    """Yield whether a privileged pod would be admitted, where the namespace may be read; no drill needs to read it."""
    try:
        labels = api.get(NAMESPACES, None, namespace)["metadata"].get("labels") or {}
    except ClusterError as error:
        if error.status != 403:
            yield unknown(GROUP, "admission", str(error), refuses=True)
        return
    level = labels.get(ENFORCE, "privileged")
    if level == "privileged":
        yield ok(GROUP, "admission", f"namespace {namespace} admits privileged pods")
        return
    what = f"namespace {namespace} enforces {level}, which admits no helper: {', '.join(whose)} is refused"
    command = f"kubectl label namespace {namespace} {ENFORCE}=privileged --overwrite"
    yield missing(GROUP, "admission", what, command, refuses=True)
