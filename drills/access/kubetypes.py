"""What is asked of the Kubernetes API, and how it says no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from drills.errors import Refused, Unreachable
from drills.model import Json

#: (verb, API group, resource): what a role must allow.
Right = tuple[str, str, str]
BUDGET: Final = "DisruptionBudget"  # the cause of a 429 that is no turning away


class ClusterError(Refused):
    """The API server did not do what it was asked; `status` 0: it did not answer.

    `reason` is the server's own word (Forbidden, Conflict, Expired, ...), `causes` its details.
    """

    def __init__(
        self, text: str, *, status: int = 0, reason: str = "", message: str = "", causes: tuple[Json, ...] = ()
    ) -> None:
        super().__init__(text)
        self.status, self.reason, self.message, self.causes = status, reason, message, causes


class ClusterAway(ClusterError, Unreachable):
    """The API server cannot be asked at this moment: silent, busy, or our credentials have run out."""


class PlanMode(RuntimeError):
    """A plan tried to change something: a bug of ours."""


@dataclass(frozen=True)
class Resource:
    """A kind of object: where it is in the API, and its name in RBAC rules."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
        """Return the path of an object, or of all of a kind."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        parts = [self.plural, *(quote(part, safe=":") for part in (name, sub) if part)]
        return f"{base}{where}/{'/'.join(parts)}"


PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes")
CONFIGMAPS = Resource("", "v1", "configmaps")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
REPLICASETS = Resource("apps", "v1", "replicasets")
STATEFULSETS = Resource("apps", "v1", "statefulsets")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers")


def causes_of(data: Json) -> tuple[Json, ...]:
    """Return the details of a refusal."""
    details = data.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return tuple(cause for cause in causes or () if isinstance(cause, dict))


def what_of(verb: str, resource: Resource, namespace: str | None, name: str | None = None, sub: str = "") -> str:
    """Return what was asked, for people."""
    kind = f"{resource.plural}/{sub}" if sub else resource.plural
    return " ".join(part for part in (verb, kind, name, f"in {namespace}" if namespace else None) if part)
