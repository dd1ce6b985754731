"""What a drill could leave in a cluster, and what it must not change; looked at without the code under test."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubernetes.client import BatchV1Api, CoordinationV1Api

from drills.model import Json
from tests.cluster import layout, node
from tests.cluster.emulator import Emulator
from tests.cluster.kube import REQUEST_TIMEOUT_S

COMMAND_TIMEOUT_S = 20.0
#: What the cluster itself writes into every namespace.
ITS_OWN = frozenset({"kube-root-ca.crt"})
#: Counters and time of a saved set of rules.
PASSING = re.compile(r"\[\d+:\d+\]|^#.*$", re.MULTILINE)


def objects(service: Emulator) -> dict[str, Json]:
    """Return each object of the namespace that a drill could make or change, but for what a victim's death changes."""
    core, name = service.namespace.core, service.namespace.name
    kinds: dict[str, Any] = {
        "lease": CoordinationV1Api(service.namespace.api).list_namespaced_lease,
        "configmap": core.list_namespaced_config_map,
        "secret": core.list_namespaced_secret,
        "serviceaccount": core.list_namespaced_service_account,
        "job": BatchV1Api(service.namespace.api).list_namespaced_job,
        "deployment": service.namespace.apps.list_namespaced_deployment,
        "service": core.list_namespaced_service,
    }
    found = {
        f"{kind} {one.metadata.name}": {
            "uid": one.metadata.uid,
            "labels": one.metadata.labels,
            "annotations": one.metadata.annotations,
            "generation": one.metadata.generation,
        }
        for kind, listed in kinds.items()
        for one in listed(name, _request_timeout=REQUEST_TIMEOUT_S).items
        if one.metadata.name not in ITS_OWN
    }
    return found | ({f"node {layout.NODE}": _node(service)} if alone(service) else {})


def alone(service: Emulator) -> bool:
    """Whether no other test has a namespace now: what changes on the node is of this one's drills then."""
    names = [one.metadata.name for one in service.namespace.core.list_namespace().items]
    return [name for name in names if name.startswith("drills-test-")] == [service.namespace.name]


def _node(service: Emulator) -> Json:
    found: Any = service.namespace.core.read_node(layout.NODE, _request_timeout=REQUEST_TIMEOUT_S)
    notes = {key: value for key, value in (found.metadata.annotations or {}).items() if not key.startswith("node.")}
    taints = sorted(f"{taint.key}:{taint.effect}" for taint in found.spec.taints or ())
    labels = found.metadata.labels
    return {"labels": labels, "annotations": notes, "taints": taints, "cordoned": bool(found.spec.unschedulable)}


def pods(service: Emulator) -> dict[str, Json]:
    """Return every pod by UID: its name, labels, how often its containers restarted, and ephemeral containers."""
    return {
        pod.metadata.uid: {
            "name": pod.metadata.name,
            "labels": pod.metadata.labels,
            "annotations": pod.metadata.annotations,
            "restarts": sum(status.restart_count for status in pod.status.container_statuses or ()),
            "ephemeral": [one.name for one in pod.spec.ephemeral_containers or ()],
        }
        for pod in service.namespace.pods()
        if pod.metadata.deletion_timestamp is None
    }


def rules(uids: Iterable[str]) -> dict[int, str]:
    """Return the rules of iptables, of both kinds, in the networks of these pods, by the network's number."""
    found: dict[int, str] = {}
    uids = [uid.replace("-", "_") for uid in uids]
    for pid in sorted(node.members()):
        try:
            number = Path(f"/proc/{pid}/ns/net").stat().st_ino
            group = Path(f"/proc/{pid}/cgroup").read_text().replace("-", "_")
        except OSError:  # it has just ended
            continue
        mine = any(uid in group for uid in uids)
        if mine and number not in found and (saved := _saved(pid)) is not None:
            found[number] = saved
    return found


def everywhere() -> str:
    """Return the rules in every network on the node: of other drills, too."""
    seen: dict[int, str | None] = {}
    for pid in sorted(node.members()):
        with suppress(OSError):  # it has just ended
            number = Path(f"/proc/{pid}/ns/net").stat().st_ino
            if number not in seen:
                seen[number] = _saved(pid)
    return "\n".join(text for text in seen.values() if text)


def _saved(pid: int) -> str | None:
    parts = []
    for kind in ("nft", "legacy"):
        argv = ["nsenter", f"--net=/proc/{pid}/ns/net", f"iptables-{kind}-save"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
        if done.returncode:
            return None
        parts += [f"{kind} {line}" for line in _meant(PASSING.sub("", done.stdout))]
    return "\n".join(parts)


def _meant(saved: str) -> Iterator[str]:
    """Yield rules, chains and policies; a table that was looked at and holds nothing means nothing."""
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line
        elif line.strip() not in ("", "COMMIT") and not (line.startswith(":") and line.split()[1] == "ACCEPT"):
            yield f"{table} {line.strip()}"


def ours(saved: dict[int, str]) -> list[str]:
    """Return the lines of rules and chains that drills make."""
    return [line for text in saved.values() for line in text.splitlines() if "DRILL-" in line or "drill:" in line]


def processes(word: str) -> list[str]:
    """Return the command lines on the node that hold a word, such as a run's id."""
    found = []
    for pid in sorted(node.members()):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line.strip())
    return found
