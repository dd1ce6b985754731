"""Headroom: what is offered and what users send already must fit into the replicas that the fault leaves.

Declared, by `capacity.per_replica`: asked before anything is touched. Else measured, at the end of the baseline and
under the very load: a queue, or a KV cache that would not fit into fewer replicas, refuses the fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from drills.clock import Clock
from drills.model import Embedded, Json, Replica, Target
from drills.probes import http, promql, traffic
from drills.probes.http import ProbeError
from drills.probes.prometheus import prometheus_of

#: Mean of requests that wait in one engine; more of them is a queue.
WAITING_MAX: Final = 1.0
#: Share of the KV cache that may be in use once the others carry it all.
KV_MAX: Final = 0.9
#: Looks of the baseline that count, one a second.
LOOKS: Final = 20


@dataclass(frozen=True)
class Live:
    """What users send now, per second; None, with the reason, when nobody knows."""

    rate: float | None
    how: str


def live(plan: Json, target: Target, replicas: Sequence[Replica], clock: Clock) -> Live:
    """Return what users send now: by the target's own PromQL, else by the engines' counters, which takes a while."""
    if isinstance(target, Embedded):
        return Live(0.0, "it is there for drills alone")
    query, server = plan["target"].get("live_load"), prometheus_of(target)
    try:
        if query and server is not None:
            return Live(float(promql.ask(server, query)["value"]), "by capacity.live")
        primaries = [r for r in replicas if r.role == "primary"]
        return Live(traffic.rate(http.pool_for(target), primaries, clock), "by the engines' counters")
    except ProbeError as error:
        return Live(None, f"{query or 'the engines'}: {error}")


def needed(plan: Json, target: Target) -> bool:
    """Whether what users send now has to be known for this rule."""
    return target.capacity_per_replica is not None and offered(plan) is not None


def offered(plan: Json) -> float | None:
    """Return what the drill sends per second; None of a closed loop, which slows down with the service."""
    rate = plan["experiment"]["load"]["arrivals"].get("rate")
    return None if rate is None else float(rate)


def refusals(plan: Json, target: Target, replicas: Sequence[Replica], users: Live, *, gone: int) -> list[str]:
    """Return why the load does not fit into `gone` replicas fewer, where the capacity is declared."""
    capacity, rate = target.capacity_per_replica, offered(plan)
    if capacity is None or rate is None:
        return []
    if users.rate is None:
        return [f"headroom: nobody knows what users send now ({users.how}); say it by capacity.live, a PromQL"]
    left = sum(r.role == "primary" for r in replicas) - gone
    fits = capacity * left
    if rate + users.rate <= fits:
        return []
    told = f"{rate:g}/s offered" + (f" and {users.rate:.3g}/s of users" if users.rate else "")
    return [
        f"headroom: {told}, {left} replicas carry {fits:g}/s ({capacity:g}/s each): "
        "lower load.arrivals.rate or add a replica"
    ]


def measured(engines: Mapping[str, Sequence[Json]], primaries: Sequence[str], victims: Sequence[Replica]) -> str:
    """Say why the engines, as they were seen under the load, do not bear the loss of the victims; empty when they do.

    `engines` are the last looks at each engine, by replica; `primaries` those that carry the load.
    """
    kv: dict[str, float] = {}
    for name in primaries:
        waiting, usage = _mean(engines.get(name, ()), "waiting"), _mean(engines.get(name, ()), "kv_usage")
        if waiting is None or usage is None:
            return (
                f"headroom: neither declared nor measured: {name} does not tell its queue and KV cache; "
                "declare capacity.per_replica"
            )
        if waiting > WAITING_MAX:
            return f"headroom: {waiting:.1f} requests wait in {name} though nobody is gone: lower load.arrivals.rate"
        kv[name] = usage
    left = len(primaries) - len(victims)
    if left < 1:
        return "headroom: nobody would be left to carry the load"
    then = sum(kv.values()) / left
    if then > KV_MAX:
        return (
            f"headroom: KV caches are {fmean(kv.values()):.0%} full, in {left} replicas they would be {then:.0%}, "
            f"{KV_MAX:.0%} may be: lower load.arrivals.rate or add a replica"
        )
    return ""


def _mean(looks: Sequence[Json], name: str) -> float | None:
    values: list[Any] = [look[name] for look in list(looks)[-LOOKS:] if isinstance(look.get(name), int | float)]
    return fmean(values) if values else None
