"""Whether each chosen drill would be carried out now: planned, and asked what its preflight asks without helpers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from drills import gate, victims
from drills.clock import rng
from drills.doctor.finding import Finding, missing, ok, unknown
from drills.doctor.wanted import Wanted, WantedDrill
from drills.errors import DrillError, Refused
from drills.model import Embedded, Fault, Json, Replica, Target

GROUP = "drill"


def look(wanted: Wanted, target: Target | None) -> Iterator[Finding]:
    """Yield a finding for each drill."""
    replicas, why = _replicas(target)
    with ThreadPoolExecutor(max(1, len(wanted.drills))) as pool:  # what users send is counted for ten seconds
        yield from filter(None, pool.map(lambda one: _would_be(one, target, replicas, why), wanted.drills))


def _would_be(one: WantedDrill, target: Target | None, replicas: Sequence[Replica], why: str) -> Finding | None:
    if one.plan is None:
        return missing(GROUP, one.name, f"cannot be planned for this target: {one.problem}", refuses=True)
    if target is None:
        return None
    return unknown(GROUP, one.name, why, refuses=True) if why else _asked(one, one.plan.to_json(), target, replicas)


def _replicas(target: Target | None) -> tuple[list[Replica], str]:
    try:
        return (target.replicas() if target else []), ""
    except DrillError as error:
        return [], str(error)


def _asked(one: WantedDrill, plan: Json, target: Target, replicas: Sequence[Replica]) -> Finding:
    try:
        refusals = gate.refusals(plan, target, replicas, one.faults)
    except DrillError as error:
        return unknown(GROUP, one.name, f"its preflight could not ask: {error}", refuses=True)
    names: list[str] = []
    for number, fault in enumerate(one.faults):
        try:
            picked = _pick(plan, number, fault, replicas)
            names += [replica.name for replica in picked]
            refusals += [] if refusals or not _can_ask(fault, target) else fault.preflight(target, picked)
        except Refused as error:
            refusals.append(str(error))
    if refusals:
        return missing(GROUP, one.name, f"would be refused: {'; '.join(refusals)}", refuses=True)
    return ok(GROUP, one.name, f"would be carried out now, for example on {', '.join(names)}")


def _pick(plan: Json, number: int, fault: Fault, replicas: Sequence[Replica]) -> list[Replica]:
    limits = plan["target"]["limits"]
    if victims.is_route(fault):
        return victims.all_of_route(replicas, allowed=limits["allow_route_faults"], protect=limits["protect"])
    asked = plan["experiment"]["faults"][number]["params"]["victims"]
    return victims.choose(
        replicas,
        asked,
        rng(0, "doctor"),
        max_victims=limits["max_victims"],
        min_healthy=limits["min_healthy"],
        protect=limits["protect"],
    )


def _can_ask(fault: Fault, target: Target) -> bool:
    """Whether its preflight asks nothing that only a helper could answer, or do: looking is all that is done here."""
    return isinstance(target, Embedded) or not ({"NodeAccess", "HasNetwork", "HasProxies", "HasGpus"} & fault.needs())
