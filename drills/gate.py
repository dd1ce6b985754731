"""What must be true before anything is touched: limits, headroom, and a steady state shown by completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from drills import model, victims, windows
from drills.clock import Clock
from drills.model import Fault, Json, Replica, Target
from drills.probes import completion, http
from drills.probes.alerts import is_page
from drills.probes.http import ProbeError
from drills.probes.prometheus import Prometheus
from drills.watch import model_of

STEADY_TIMEOUT_S = 30.0
COMPLETION_TIMEOUT_S = 3.0


def refusals(plan: Json, target: Target, replicas: Sequence[Replica], faults: Sequence[Fault]) -> list[str]:
    """Return the reasons of the target and its limits to refuse, each one sentence. Reads only."""
    found = [
        f"{fault.name}: a target of kind {target.kind} cannot do this ({need} is missing)"
        for fault in faults
        for need in sorted(fault.needs())
        if not isinstance(target, getattr(model, need))
    ]
    limits = plan["target"]["limits"]
    if closed := windows.refusal(datetime.now(UTC), limits["windows"], limits["freeze"]):
        found.append(closed)
    if not all(victims.is_route(fault) for fault in faults):  # with all of a route hit there is nobody to carry more
        found += headroom(plan, target, replicas)
    found += firing(target)
    return found


def headroom(plan: Json, target: Target, replicas: Sequence[Replica]) -> list[str]:
    """The load must fit into one replica fewer, where the capacity is known."""
    capacity = target.capacity_per_replica
    rate = plan["experiment"]["load"]["arrivals"].get("rate")
    primaries = [r for r in replicas if r.role == "primary"]
    if capacity is None or rate is None:
        return []
    fits = capacity * (len(primaries) - 1)
    if rate <= fits:
        return []
    return [
        f"headroom: {rate:g}/s offered, {len(primaries) - 1} replicas carry {fits:g}/s "
        f"({capacity:g}/s each): lower load.arrivals.rate or add a replica"
    ]


def firing(target: Target) -> list[str]:
    """A page that fires already is an incident, not a drill."""
    if not target.prometheus:
        return []
    try:
        alerts = Prometheus(target.prometheus).alerts()
    except ProbeError as error:
        return [f"alerts: {target.prometheus} cannot be read ({error}): drills need to know that nothing fires"]
    names = sorted({a["labels"]["alertname"] for a in alerts if a["state"] == "firing" and is_page(a["labels"])})
    return [f"alerts: {', '.join(names)} fires already: this is an incident, not a drill"] if names else []


def steady_state(target: Target, clock: Clock, *, stopping: Callable[[], bool]) -> Json:
    """Wait, bounded, until every replica answers a completion; returns the `gate` event."""
    deadline = clock.mono() + STEADY_TIMEOUT_S
    while True:
        replicas = look_at_replicas(target)
        good = sum(r["ok"] for r in replicas if r["role"] == "primary")
        ok = good >= target.expected_replicas and all(r["ok"] for r in replicas)
        if ok or stopping() or clock.mono() > deadline:
            break
        clock.sleep(0.5)
    bad = [f"{r['name']}: {r['error']}" for r in replicas if not r["ok"]]
    reason = "; ".join(bad) or ("" if ok else f"{good} of {target.expected_replicas} replicas are there")
    return {"ok": ok, "replicas": replicas, "alerts": [], "reason": reason}


def look_at_replicas(target: Target) -> list[Json]:
    """Ask every replica for one token; returns {name, role, ok, ttft_ms, error} of each."""
    pool = http.pool()
    found: list[Json] = []
    for replica in target.replicas():
        row: dict[str, Any] = {"name": replica.name, "role": replica.role, "uid": replica.uid}
        try:
            values = completion.complete(pool, replica.url, model_of(target, replica), timeout_s=COMPLETION_TIMEOUT_S)
            found.append(row | {"ok": True, "ttft_ms": values["ttft_ms"], "error": None})
        except ProbeError as error:
            found.append(row | {"ok": False, "ttft_ms": None, "error": str(error)})
    return found
