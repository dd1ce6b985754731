"""Opening a service in a cluster: it is there already, so connecting and looking at it is all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from drills.access.kubernetes import Api, connect
from drills.access.kubetypes import ClusterError
from drills.cluster.custody import ClusterCustody
from drills.cluster.target import KubernetesTarget
from drills.errors import Refused, UsageError
from drills.model import Fault, Json, Target
from drills.options import Options
from drills.target import TargetSpec

if TYPE_CHECKING:
    from drills.doctor.finding import Finding
    from drills.doctor.wanted import Wanted

Echo = Callable[[str], None]


def settled(spec: TargetSpec, _options: Options) -> TargetSpec:
    """Return the target as it is declared."""
    return spec


def client_overlay(_options: Options) -> Json:
    """Return no change of the client."""
    return {}


def refuse_impossible(_spec: TargetSpec, _faults: Sequence[Fault]) -> None:
    """Refuse nothing: what this target can do is known from what is declared."""


@contextmanager
def opened(spec: TargetSpec, _options: Options, echo: Echo) -> Iterator[Target]:
    """Connect and look at the pods; nothing is changed by that."""
    spec.require_secrets()
    target = _target(spec)
    try:
        echo(f"cluster {target.api.name}: {state_of(target)}")
        yield target
    finally:
        target.close()


def found(spec: TargetSpec) -> Target | None:
    """Return the target, to put things back on it: nobody may serve now, as when a node is worked on."""
    return _target(spec, drilled=False)


def custody(spec: TargetSpec) -> ClusterCustody:
    """Return the target's custody."""
    return _custody(spec, _api(spec))


def state(spec: TargetSpec) -> str:
    """Say how many of its pods are ready, or why nobody can be drilled. Changes nothing, and could not."""
    api = _api(spec, read_only=True)
    try:
        target = _target(spec, api)
    except ClusterError:
        raise
    except (Refused, UsageError) as error:  # what is to be put back is said all the same
        api.close()
        return str(error).removeprefix(f"target {spec.name}: ")
    try:
        return state_of(target)
    finally:
        target.close()


@contextmanager
def examined(spec: TargetSpec, wanted: Wanted) -> Iterator[tuple[list[Finding], Target | None]]:
    """Look at the cluster by a client that cannot write."""
    from drills.doctor import cluster

    api = _api(spec, read_only=True)
    with cluster.examined(spec, wanted, api, _custody(spec, api), lambda: _target(spec, api)) as found:
        yield found


def tidied(_spec: TargetSpec) -> str | None:
    """Return None: no run starts a cluster."""
    return None


def state_of(target: KubernetesTarget) -> str:
    """Say how many of a target's pods are ready."""
    primaries = [r for r in target.replicas() if r.role == "primary"]
    ready = sum(r.ready for r in primaries)
    return (
        f"{ready} of {target.expected_replicas} pods of {target.where.selector} in {target.where.namespace} are ready"
    )


def _api(spec: TargetSpec, *, read_only: bool = False) -> Api:
    assert spec.kubernetes is not None
    return connect(spec.kubernetes.context, read_only=read_only)


def _custody(spec: TargetSpec, api: Api) -> ClusterCustody:
    assert spec.kubernetes is not None
    k = spec.kubernetes
    return ClusterCustody(api, k.namespace, k.selector, spec.name, k.helper)


def _target(spec: TargetSpec, api: Api | None = None, *, drilled: bool = True) -> KubernetesTarget:
    """Connect. Slots that a run which was cut short has told of are kept."""
    api = api or _api(spec)
    keeper = _custody(spec, api)
    slots: dict[str, str] = {}
    receipts, _ = keeper.receipts.found()  # what their timers say takes commands on nodes, and is not asked
    for receipt in receipts:
        keeper.run = receipt.run  # its nodes are reached through its helpers, to put it back
        beside = receipt.prior.get("bystanders")
        pinned = [*receipt.victims, *(beside if isinstance(beside, list) else ())]
        slots |= {str(one["uid"]): str(one["name"]) for one in pinned if {"uid", "name"} <= set(one)}
    return KubernetesTarget(spec, api, keeper, slots, drilled=drilled)
