"""Limits of the target and headroom: whether they leave a victim, and whether the rest carries the load."""

from __future__ import annotations

from collections.abc import Iterator

from drills import victims
from drills.doctor.finding import Finding, missing, ok, unknown
from drills.doctor.wanted import Wanted
from drills.errors import DrillError
from drills.model import Replica, Target
from drills.target import TargetSpec

GROUP = "limits"


def look(wanted: Wanted, spec: TargetSpec, target: Target) -> Iterator[Finding]:
    """Yield what the limits leave."""
    try:
        primaries = [r for r in target.replicas() if r.role == "primary"]
    except DrillError as error:
        yield unknown(GROUP, "victims", str(error))
        return
    yield _budget(spec, primaries)
    if any(victims.is_route(fault) for fault in wanted.faults):
        yield _route(spec)
    yield _headroom(wanted, target, len(primaries))


def _budget(spec: TargetSpec, primaries: list[Replica]) -> Finding:
    """How many victims there may be, and what keeps others from being one."""
    limits, total = spec.limits, len(primaries)
    most = max(1, int(limits.max_victims * total + 1e-9)) if limits.max_victims > 0 else 0
    room = sum(r.ready for r in primaries) - limits.min_healthy
    said = (
        f"max_victims {limits.max_victims:.0%} of {total} allows {most}, min_healthy {limits.min_healthy} allows {room}"
    )
    if min(most, room) >= 1:
        protected = f", protected: {', '.join(limits.protect)}" if limits.protect else ""
        return ok(GROUP, "victims", f"{said}{protected}")
    lines = [f"in drill.yaml, below targets.{spec.name}:"]
    lines += ["  limits: {max_victims: 34%}"] if most < 1 else []
    lines += [f"  limits: {{min_healthy: {max(0, total - 1)}}}   # or one replica more"] if room < 1 else []
    return missing(GROUP, "victims", f"{said}: nobody is left to be a victim", *lines, refuses=True)


def _route(spec: TargetSpec) -> Finding:
    if spec.limits.allow_route_faults:
        return ok(GROUP, "route", "faults that hit every primary at once are allowed")
    return missing(GROUP, "route", "allow_route_faults is false, so upstream-delay is refused",
                   f"in drill.yaml, below targets.{spec.name}:", "  limits: {allow_route_faults: true}",
                   refuses=True)  # fmt: skip


def _headroom(wanted: Wanted, target: Target, total: int) -> Finding:
    rates = [one.plan.load.arrivals.rate for one in wanted.drills if one.plan and one.plan.load.arrivals.rate]
    most = max(rates, default=0.0)
    if target.capacity_per_replica is None:
        what = f"capacity.per_replica is not declared, so it is measured in each baseline; the drills offer {most:g}/s"
        return ok(GROUP, "headroom", what)
    carried = target.capacity_per_replica * (total - 1)
    said = f"{total - 1} replicas carry {carried:g}/s, the drills offer {most:g}/s"
    if most <= carried:
        return ok(GROUP, "headroom", said)
    return missing(GROUP, "headroom", said, "add a replica, or lower load.arrivals.rate", refuses=True)
