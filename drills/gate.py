"""What must be true before anything is touched: limits, headroom, and a steady state shown by completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from drills import abilities, beside, headroom, model, production, stopif, victims, windows
from drills.clock import Clock
from drills.errors import DrillError, Refused
from drills.model import Embedded, Fault, HasRights, Json, Phase, Replica, Shared, SharesMonitoring, Target
from drills.probes import completion, http
from drills.probes.alerts import concerns, is_page
from drills.probes.http import ProbeError
from drills.probes.prometheus import prometheus_of
from drills.watch import model_of

STEADY_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 600.0  # between two drills: an alert resolves, and a real engine loads its weights
SETTLE_POLL_S = 2.0
COMPLETION_TIMEOUT_S = 3.0


def refusals(
    plan: Json, target: Target, replicas: Sequence[Replica], faults: Sequence[Fault], clock: Clock | None = None
) -> list[str]:
    """Return the reasons of the target and its limits to refuse, each one sentence. Reads only."""
    found = [
        f"{fault.name}: {abilities.lacking(need, target.name, target.kind)}"
        for fault in faults
        for need in sorted(fault.needs())
        if not isinstance(target, getattr(model, need))
    ]
    if isinstance(target, HasRights):
        found += target.rights_refusals(faults)
    limits = plan["target"]["limits"]
    found += _closed(plan)
    found += _traffic(plan, target, replicas, faults, clock or Clock())
    found += stopif.refusals(limits.get("stop_if") or (), target)
    if isinstance(target, Shared):
        found += target.others_at_work()
    found += _beside(plan, target, replicas)
    found += firing(target)
    return found


def _beside(plan: Json, target: Target, replicas: Sequence[Replica]) -> list[str]:
    """Return why what goes beside the faults could not be put on; any of the replicas may be a victim."""
    try:
        return [why for one in beside.wanted(plan, target, replicas) for why in one.preflight(target, replicas)]
    except Refused as error:
        return [str(error)]


def _closed(plan: Json) -> list[str]:
    """Return why neither now nor the end of a drill that begins now may be a time for it."""
    limits, now = plan["target"]["limits"], datetime.now(UTC)
    if closed := windows.refusal(now, limits["windows"], limits["freeze"]):
        return [closed]
    lasts_s = sum(float(plan["phases"][f"{phase}_s"]) for phase in Phase) if "phases" in plan else 0.0
    if closed := windows.refusal(now + timedelta(seconds=lasts_s), limits["windows"], limits["freeze"]):
        return [f"the drill may take {lasts_s / 60:.0f} min, and its end would be {closed}"]
    return []


def _traffic(
    plan: Json, target: Target, replicas: Sequence[Replica], faults: Sequence[Fault], clock: Clock
) -> list[str]:
    """Hold what the drill sends against what the replicas can carry, and in production against what users send."""
    fewer = not all(victims.is_route(fault) for fault in faults)  # with all of a route hit nobody has to carry more
    real = production.is_production(plan)
    if not (real or (fewer and headroom.needed(plan, target))):
        return []
    users = headroom.live(plan, target, replicas, clock)
    gone = victims.most_gone(plan["experiment"].get("faults") or (), replicas)
    found = headroom.refusals(plan, target, replicas, users, gone=gone) if fewer else []
    return found + (production.refusals(plan, users) if real else [])


def firing(target: Target) -> list[str]:
    """A page that fires already is an incident, not a drill."""
    server = prometheus_of(target)
    if server is None:
        return []
    try:
        alerts = server.alerts()
    except ProbeError as error:
        return [f"alerts: {target.prometheus} cannot be read ({error}): drills need to know that nothing fires"]
    mine = [a["labels"] for a in alerts if a["state"] == "firing" and _on_the_service(a["labels"], target)]
    names = sorted({labels.get("alertname", "an alert without a name") for labels in mine if is_page(labels)})
    return [f"alerts: {', '.join(names)} fires already: this is an incident, not a drill"] if names else []


def _on_the_service(labels: Json, target: Target) -> bool:
    """Whether an alert may be of the service: one that names another in a label of ours is not."""
    ours = target.alert_labels if isinstance(target, SharesMonitoring) else {}
    return concerns(labels, ours)


def settle(target: Target, clock: Clock, *, stopping: Callable[[], bool], say: Callable[[str], None]) -> bool:
    """Wait, bounded, until another drill could begin; returns whether it could.

    Whether it may is for its own preflight and gate: they say in its journal what this only waits for.
    """
    deadline = clock.mono() + SETTLE_TIMEOUT_S
    if not (why := unsettled(target)):
        return True
    say(f"waiting up to {SETTLE_TIMEOUT_S / 60:.0f} min until the target has settled: {'; '.join(why)}")
    while why and not stopping() and clock.mono() < deadline:
        clock.sleep(SETTLE_POLL_S)
        why = unsettled(target)
    say(f"not settled: {'; '.join(why)}" if why else "settled")
    return not why


def unsettled(target: Target) -> list[str]:
    """Return what is not yet as a drill must find it: a page, a replica not ready or silent, others."""
    try:
        if isinstance(target, Embedded):  # nobody else tells it meanwhile that it is needed
            target.keep_alive()
        replicas, answers = target.replicas(), look_at_replicas(target)
        found = firing(target) + [f"{r.name}: not ready" for r in replicas if not r.ready]
        if isinstance(target, Shared):  # a pod that the last drill evicted is at work until it is gone
            found += target.others_at_work()
    except DrillError as error:
        return [str(error)]
    return found + _missing(target, answers)


def steady_state(target: Target, clock: Clock, *, stopping: Callable[[], bool]) -> Json:
    """Wait, bounded, until every replica answers a completion; returns the `gate` event."""
    deadline = clock.mono() + STEADY_TIMEOUT_S
    while True:
        replicas = look_at_replicas(target)
        ok = not _missing(target, replicas)
        if ok or stopping() or clock.mono() > deadline:
            break
        clock.sleep(0.5)
    return {"ok": ok, "replicas": replicas, "alerts": [], "reason": "; ".join(_missing(target, replicas))}


def _missing(target: Target, answers: Sequence[Json]) -> list[str]:
    """Return which replicas do not answer, or that there are too few."""
    bad = [f"{row['name']}: {row['error']}" for row in answers if not row["ok"]]
    good = sum(row["ok"] for row in answers if row["role"] == "primary")
    too_few = good < target.expected_replicas
    return bad or ([f"{good} of {target.expected_replicas} replicas are there"] if too_few else [])


def look_at_replicas(target: Target) -> list[Json]:
    """Ask every replica for one token; returns {name, role, ok, ttft_ms, error} of each."""
    pool = http.pool_for(target)
    found: list[Json] = []
    for replica in target.replicas():
        row: dict[str, Any] = {"name": replica.name, "role": replica.role, "uid": replica.uid}
        try:
            values = completion.complete(pool, replica.url, model_of(target, replica), timeout_s=COMPLETION_TIMEOUT_S)
            found.append(row | {"ok": True, "ttft_ms": values["ttft_ms"], "error": None})
        except ProbeError as error:
            found.append(row | {"ok": False, "ttft_ms": None, "error": str(error)})
    return found
