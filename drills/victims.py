"""Choosing victims: select, filter, and only then count. Pure.

Whoever counts before filtering kills fewer than asked, or none, and calls it a success.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from drills.errors import Refused
from drills.model import Fault, Json, NodeAccess, Replica, Target


def choose(
    replicas: Sequence[Replica],
    asked: int | str,
    random_: random.Random,
    *,
    max_victims: float,
    min_healthy: int,
    protect: Sequence[str] = (),
) -> list[Replica]:
    """Return the victims among ready primaries that are not spared and carry none of the labels `protect` ("a=b").

    `asked` is a number or a share such as "34%" (of the eligible, rounded down); `max_victims` is a share
    of all primaries (0..1, rounded down, but above 0 one victim is possible where min_healthy allows it). Refused
    when nobody is eligible, the share rounds to nobody, or too few healthy ones would be left.
    """
    primaries = [r for r in replicas if r.role == "primary"]
    healthy = [r for r in primaries if r.ready]
    eligible = sorted((r for r in healthy if not (r.spared or _protected(r, protect))), key=lambda r: r.name)
    if not eligible:
        states = ", ".join(f"{r.name} {_why_not(r, protect)}" for r in primaries)
        raise Refused(f"victims: no eligible replica ({states or 'the target has no replica'})")
    count = wanted(asked, len(eligible))
    if count == 0:
        raise Refused(
            f"victims: {asked} of {len(eligible)} eligible replicas is none; ask for a number or a larger share"
        )
    if count > len(eligible):
        raise Refused(f"victims: {count} asked, {len(eligible)} eligible; ask for fewer")
    most = max(1, int(max_victims * len(primaries) + 1e-9)) if max_victims > 0 else 0
    if count > most:
        raise Refused(f"victims: {count} asked, limits.max_victims allows {most} of {len(primaries)} replicas")
    left = len(healthy) - count
    if left < min_healthy:
        raise Refused(f"victims: {left} healthy replicas would be left, limits.min_healthy is {min_healthy}")
    return sorted(random_.sample(eligible, count), key=lambda r: r.name)


def most_gone(faults: Sequence[Json], replicas: Sequence[Replica]) -> int:
    """Return how many replicas the faults of a plan take away together at most, at least one."""
    healthy = sum(r.role == "primary" and r.ready for r in replicas)
    asked = [item["params"]["victims"] for item in faults if "victims" in item["params"]]
    return max([1, *(wanted(one, healthy) for one in asked)])


def off_own_node(fault: Fault, target: Target, replicas: Sequence[Replica]) -> list[Replica]:
    """Return the replicas; those on the node of this drill are spared by a fault that works on the node itself.

    Such a fault says so with `on_node: ClassVar[bool] = True`, and a target knows its driver's node as `own_node`.
    """
    own = getattr(target, "own_node", None)
    if not own or not getattr(fault, "on_node", False):
        return list(replicas)
    why = "is spared: this drill runs in a pod on that very node"
    return [replace(r, spared=r.spared or why) if r.host == own else r for r in replicas]


def is_route(fault: Fault) -> bool:
    """Whether the fault aims at the route to all primaries, and not at some of them."""
    return bool(getattr(fault, "route", False))


def all_of_route(replicas: Sequence[Replica], *, allowed: bool, protect: Sequence[str] = ()) -> list[Replica]:
    """Return every primary, ready or not. Refused where the limits do not allow it, or one of them is protected.

    `allowed` is limits.allow_route_faults; it stands in for max_victims and min_healthy, which none could keep.
    """
    if not allowed:
        raise Refused("route: this fault hits every primary at once; limits.allow_route_faults is false")
    primaries = sorted((r for r in replicas if r.role == "primary"), key=lambda r: r.name)
    if not primaries:
        raise Refused("route: the target has no primary replica")
    if protected := [r.name for r in primaries if _protected(r, protect)]:
        raise Refused(f"route: {', '.join(protected)} on it: protected by limits.protect")
    return primaries


def with_processes(
    target: Target, fault: Fault, picked: Sequence[Replica], tell: Callable[[str, Json], None]
) -> list[Replica]:
    """Return the victims with their processes, where the fault works on their machines. Raises Refused."""
    if "NodeAccess" in fault.needs() and isinstance(target, NodeAccess):
        return target.reach(picked, tell)
    return list(picked)


def _protected(replica: Replica, protect: Sequence[str]) -> bool:
    return any(f"{key}={value}" in protect for key, value in replica.labels.items())


def _why_not(replica: Replica, protect: Sequence[str]) -> str:
    if _protected(replica, protect):
        return "protected by limits.protect"
    if replica.spared:
        return replica.spared
    return replica.state or ("ready" if replica.ready else "not ready")


def wanted(asked: int | str, eligible: int) -> int:
    """Return how many victims that is; a share rounds down."""
    if isinstance(asked, int):
        return asked
    return int(float(asked.rstrip("%")) / 100 * eligible + 1e-9)
