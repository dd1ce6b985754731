"""Which versions are at work: ours, the engines', the router's, the cluster's."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

import drills
from drills.doctor import service
from drills.doctor.finding import Finding, missing, ok, unknown
from drills.errors import DrillError
from drills.model import Target

GROUP = "versions"
#: Of ours, those whose version decides what a run can do.
PACKAGES = ("locust", "kubernetes", "prometheus-api-client", "vllm-router")


def ours() -> Finding:
    """Return what this command is made of."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            if name != "vllm-router":  # wheels for Linux only; it is for the lab
                return missing(GROUP, "drill", f"the package {name} is not installed", "make setup")
    return ok(GROUP, "drill", f"{drills.__version__}, Python {platform.python_version()}, {', '.join(found)}")


def theirs(target: Target) -> Iterator[Finding]:
    """Yield what the target says of itself."""
    try:
        said = target.facts().get("versions") or {}
        replicas = [r for r in target.replicas() if r.ready and r.role == "primary"]
    except DrillError as error:
        yield unknown(GROUP, "target", str(error))
        return
    words = [f"{key} {', '.join(value) if isinstance(value, list) else value}" for key, value in said.items() if value]
    yield ok(GROUP, "target", "; ".join(words) or "it says none")
    yield from _engines({replica.name: service.version(target, replica) for replica in replicas})


def _engines(found: dict[str, str | None]) -> Iterator[Finding]:
    named = sorted({one for one in found.values() if one})
    if len(named) > 1:
        each = ", ".join(f"{name} {one or '?'}" for name, one in sorted(found.items()))
        yield missing(GROUP, "vLLM", f"the replicas are not alike: {each}", "finish the rollout before a drill")
    elif named:
        yield ok(GROUP, "vLLM", f"{named[0]} on all {len(found)} replicas")
    elif found:
        yield unknown(GROUP, "vLLM", "no replica says its version at /version")
