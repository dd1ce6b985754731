"""Experiment + target + seed → Plan: what a run will do, for how long, and why it could decide. Pure.

Refuses (64) what could never be judged: phases too short for their checks, an alert that cannot fire in
time, a p99 of too few requests, a fault that this kind of target cannot do.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from drills import abilities, alerttimes, victims
from drills.clock import rng
from drills.errors import UsageError
from drills.experiment import Experiment, Item, Load
from drills.model import Fault, Json, Replica
from drills.params import Params
from drills.sentences import sentences
from drills.target import TargetSpec
from drills.units import format_duration as seconds
from drills.units import format_rate
from drills.validate import value_at

#: Watched after the last check is due, to see that it stays good.
WATCH_S: Final = 20.0
#: A quantile is claimed at 95 % confidence at best from this share of its own tail on.
CONFIDENCE: Final = 0.95
#: Requests that should fall into a quantile's tail for a claim that can bear violations (p99: 1,000).
TAIL_N: Final = 10


@dataclass(frozen=True)
class PlannedPhases:
    """Seconds. `recovery_s` is the most, counted from the injection, or for held faults from proven off."""

    warmup_s: float
    baseline_s: float
    fault_s: float
    recovery_s: float
    recovery_auto: bool
    recovery_from: str  # injection | off


@dataclass(frozen=True)
class PlannedFault:
    """A fault made for this kind of target, and how many victims it will have, where that is known."""

    item: Item
    fault: Fault
    victims: int | None

    def to_json(self, kind: str) -> Json:
        """Return the fault as plan.json holds it: `how` is the one for this kind of target."""
        entry = self.item.to_json()
        how = entry["params"].get("how")
        if isinstance(how, dict):
            entry["params"]["how"] = how[kind]
        entry |= {"route": True} if victims.is_route(self.fault) else {}
        said = {key: getattr(self.fault, key, "") for key in ("warning", "emulates")}
        return entry | {key: text for key, text in said.items() if text}


@dataclass(frozen=True)
class Plan:
    """Everything a run will do, resolved; `to_json` is plan.json."""

    run: str
    experiment: Experiment
    target: TargetSpec
    seed: int
    defect: str | None
    load: Load
    load_cap: int  # open requests
    phases: PlannedPhases
    faults: tuple[PlannedFault, ...]
    expected: Mapping[str, float]  # requests by cohort
    notes: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """Return what makes runs comparable: the plan without run id and seed, and without its wording."""
        core = {k: v for k, v in self._core().items() if k not in ("run", "seed")}
        return hashlib.sha256(json.dumps(core, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> Json:
        """Return the content of plan.json."""
        return {**self._core(), "hash": self.hash, "notes": list(self.notes), "steps": list(self.steps)}

    def _core(self) -> Json:
        load = self.load.model_dump(mode="json", exclude_none=True)
        resolved = {"load": load, "faults": [fault.to_json(self.target.kind) for fault in self.faults]}
        return {
            "run": self.run,
            "experiment": self.experiment.to_json() | resolved,
            "target": self.target.to_json(),
            "seed": self.seed,
            "phases": asdict(self.phases),
            "defect": self.defect,
            "load_cap": self.load_cap,
            "expected_requests": dict(self.expected),
        }


def make_plan(
    experiment: Experiment,
    target: TargetSpec,
    *,
    run: str,
    seed: int,
    defect: str | None = None,
    client: Mapping[str, Any] | None = None,
) -> Plan:
    """Resolve an experiment for a target. `client` is laid over `load.client` (a planted defect brings one).

    Raises FileProblem (64) that points into the experiment, or Refused (3) where limits forbid the victims.
    """
    load = _laid_over(experiment.load, client or {})
    faults = tuple(_planned(experiment, target, item, seed) for item in experiment.faults)
    held = any(planned.fault.held for planned in faults)
    silenced = target.alerts_mode == "observe"
    checks, why = alerttimes.resolved(experiment.checks, target.alert_times, held=held, silenced=silenced)
    experiment = replace(experiment, checks=checks)
    plan = Plan(
        run=run,
        experiment=experiment,
        target=target,
        seed=seed,
        defect=defect,
        load=load,
        load_cap=_cap(load),
        phases=_phases(experiment, held=held),
        faults=faults,
        expected=_expected(experiment, target, load),
    )
    _provable(plan)
    notes = (*why, *_judgeable(plan), *_guarded(plan), *_ask_the_checks(plan))
    plan = replace(plan, notes=notes)
    return replace(plan, steps=sentences(_as_written(plan), proxies=target.brings_proxies(one.fault for one in faults)))


def load_json(plan: Plan, *, records: str, cpu: int | None = None) -> Json:
    """Return the load process's own plan (load.json); `records` is the file it writes, an absolute path."""
    arrivals, client, workload = _dump(plan.load.arrivals), _dump(plan.load.client), _dump(plan.load.workload)
    retries, degradation = client["retries"], plan.target.degradation
    open_loop, key = plan.load.arrivals.kind != "users", plan.target.api_key
    return {
        "run": plan.run,
        "url": plan.target.url,
        "model": plan.target.model,
        "api_key_file": key.absolute_file() if key else None,
        "api_key_env": key.env if key else None,
        "headers": {"X-Drill-Run": plan.run},
        "user": f"drill-{plan.run}",
        "seed": plan.seed,
        "arrivals": {"kind": arrivals["kind"], "rate": arrivals["rate"]}
        if open_loop
        else {"kind": "users", "users": arrivals["users"], "think_s": arrivals["think"] or 0.0},
        "workload": {k: v for k, v in workload.items() if k != "think"} | {"think_s": workload["think"]},
        "client": {
            "timeout_s": client["timeout"],
            "idle_timeout_s": client["idle_timeout"],
            "connect_timeout_s": client["connect_timeout"],
            "keepalive": client["keepalive"],
            "retries": {k: v for k, v in retries.items() if k != "profile" and not k.startswith("backoff")}
            | {"backoff_s": retries["backoff"], "backoff_max_s": retries["backoff_max"]},
        },
        "fallback_models": list(degradation.fallback_models),
        "cached_header": _dump(degradation.cached) if degradation.cached else None,
        "max_duration_s": total_s(plan) + 120.0,
        "cap": plan.load_cap,
        "records": records,
        "cpu": cpu,
    }


def total_s(plan: Plan) -> float:
    """Return the longest time the load may be on, in seconds."""
    p = plan.phases
    after = max(p.fault_s, p.recovery_s) if p.recovery_from == "injection" else p.fault_s + p.recovery_s
    return p.warmup_s + p.baseline_s + after + WATCH_S


def _as_written(plan: Plan) -> Json:
    """Return plan.json with the parameters in the words of the file: `5s` tells a person more than 5.0.

    Without those that mean nothing here, and with where the replicas are.
    """
    content, experiment = plan.to_json(), plan.experiment
    for entry, planned in zip(content["experiment"]["faults"], plan.faults, strict=True):
        for name in getattr(planned.fault, "unused", ()):
            del entry["params"][name]
    if plan.target.kubernetes:
        content["target"]["kubernetes"] = plan.target.kubernetes.model_dump(mode="json")
    if plan.target.hosts:
        shown = ("name", "address", "unit", "port")
        content["target"]["hosts"] = [{key: getattr(host, key) for key in shown} for host in plan.target.hosts]
        content["target"]["router_addresses"] = plan.target.router_addresses
    for items, place in ((experiment.faults, "faults"), (experiment.guards, "guards"), (experiment.checks, "checks")):
        for entry, item in zip(content["experiment"][place], items, strict=True):
            written = value_at(experiment.document.data, item.key)
            if isinstance(written, dict):
                times, given = plan.target.alert_times, entry["params"]
                plain = {k: v for k, v in written.items() if not isinstance(v, dict | list)}
                autos = {k: alerttimes.shown(k, given[k], times) for k, v in plain.items() if v == alerttimes.AUTO}
                entry["params"] |= plain | autos
    return content


def _dump(model: Params) -> Json:
    return model.model_dump(mode="json")


def _laid_over(load: Load, client: Mapping[str, Any]) -> Load:
    if not client:
        return load
    merged = _dump(load)
    merged["client"] = _merged(merged["client"], client)
    return Load.model_validate(merged)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Json:
    # What names a profile is not laid over the values of another one: it says all of them.
    nested = {k: _merged(below[k], v) for k, v in above.items() if isinstance(v, Mapping) and "profile" not in v}
    return {**below, **above, **nested}


def _cap(load: Load) -> int:
    if load.arrivals.rate is None:
        return load.arrivals.users or 1
    return math.ceil(1.5 * load.arrivals.rate * load.client.timeout)


def _planned(experiment: Experiment, target: TargetSpec, item: Item, seed: int) -> PlannedFault:
    """Make the fault for this kind of target, and count its victims where the replicas are known."""
    from drills.faults import FAULTS

    try:
        fault: Fault = FAULTS[item.name](item.params, target.kind)
    except UsageError as exc:
        raise experiment.problem(item.key, str(exc).removeprefix(f"{item.name}: ")) from None
    for need in sorted(fault.needs() - target.abilities()):
        raise experiment.problem(item.key, abilities.lacking(need, target.name, target.kind))
    if target.expected_replicas is None:
        return PlannedFault(item, fault, None)
    # Stand-ins, all of them ready: the limits refuse now what they would refuse at the target.
    replicas = [Replica(f"replica-{i}", str(i), "primary", "", ready=True) for i in range(target.expected_replicas)]
    if victims.is_route(fault):
        allowed = target.limits.allow_route_faults
        return PlannedFault(item, fault, len(victims.all_of_route(replicas, allowed=allowed)))
    chosen = victims.choose(
        replicas,
        getattr(item.params, "victims", 1),
        rng(seed, "plan"),
        max_victims=target.limits.max_victims,
        min_healthy=target.limits.min_healthy,
    )
    return PlannedFault(item, fault, len(chosen))


def _phases(experiment: Experiment, *, held: bool) -> PlannedPhases:
    """Resolve `recovery: auto`, and refuse a fixed one that cannot hold the checks."""
    from drills.checks import CHECKS

    phases = experiment.phases
    longest = max(experiment.checks, key=lambda item: CHECKS[item.name].window_s(item.params))
    needed = CHECKS[longest.name].window_s(longest.params) + WATCH_S
    origin = "off" if held else "injection"
    given = phases.recovery
    if given == "auto":
        return PlannedPhases(phases.warmup, phases.baseline, phases.fault, needed, True, origin)
    watched = given if held else phases.fault + given
    if watched < needed:
        what = (
            f"{seconds(given)} is too short: the check {longest.name} and {seconds(WATCH_S)} of watch need "
            f"{seconds(needed)} from the {'end of the fault' if held else 'injection'}; "
            f"write at least {seconds(needed - watched + given)}, or auto"
        )
        raise experiment.problem(("phases", "recovery"), what)
    return PlannedPhases(phases.warmup, phases.baseline, phases.fault, watched, False, origin)


def _cohorts_s(experiment: Experiment, target: TargetSpec) -> Json:
    """Return the seconds in which a cohort's requests begin; the baseline's ends one E2E SLA before the fault."""
    return {"baseline": experiment.phases.baseline - target.sla.e2e.value_s, "fault": experiment.phases.fault}


def _expected(experiment: Experiment, target: TargetSpec, load: Load) -> dict[str, float]:
    cohorts = _cohorts_s(experiment, target)
    if cohorts["baseline"] <= 0:
        what = (
            f"{seconds(experiment.phases.baseline)} is too short: the last {seconds(target.sla.e2e.value_s)} "
            "(the e2e SLA) before the fault do not count, so nothing would be left to compare with"
        )
        raise experiment.problem(("phases", "baseline"), what)
    rate = _rate(load, target)
    return {cohort: round(rate * length, 3) for cohort, length in cohorts.items()}


def _rate(load: Load, target: TargetSpec) -> float:
    """Return requests per second; of a closed loop those that come at least while the SLA holds."""
    if load.arrivals.rate is not None:
        return load.arrivals.rate
    return (load.arrivals.users or 0) / ((load.arrivals.think or 0.0) + target.sla.e2e.value_s)


def _provable(plan: Plan) -> None:
    """Refuse a fault that is over before its proof is."""
    for planned in plan.faults:
        needed_s = float(getattr(planned.fault, "proof_s", 0.0))
        if plan.phases.fault_s <= needed_s:
            what = (
                f"its proof alone takes {seconds(needed_s)}, and the fault phase lasts {seconds(plan.phases.fault_s)}: "
                "make that longer"
            )
            raise plan.experiment.problem(planned.item.key, what)


def _judgeable(plan: Plan) -> list[str]:
    """Refuse checks that this plan could never decide; return what is worth knowing of the others."""
    notes = []
    for item in plan.experiment.checks:
        notes += _enough_requests(plan, item)
        if item.name == "alert":
            notes += _alert_in_time(plan, item)
    return notes


def _enough_requests(plan: Plan, item: Item) -> list[str]:
    """A quantile near 1 needs requests beyond it: for p99 1,000, and below 299 nothing can be claimed."""
    quantile, cohort = getattr(item.params, "quantile", None), getattr(item.params, "cohort", "fault")
    if quantile is None or cohort not in plan.expected:
        return []
    expected = plan.expected[cohort]
    wanted = math.ceil(round(TAIL_N / (1 - quantile), 6))
    least = math.ceil(math.log(1 - CONFIDENCE) / math.log(quantile))
    name = f"p{quantile * 100:g}"
    if expected >= wanted:
        return []
    if not getattr(item.params, "allow_small_n", False):
        rate = _rate(plan.load, plan.target)
        lost_s = plan.target.sla.e2e.value_s if cohort == "baseline" else 0.0
        what = (
            f"{name} needs {wanted} requests in the cohort {cohort}, {expected:.0f} are expected "
            f"at {format_rate(rate)}; "
            f"make phases.{cohort} at least {seconds(math.ceil(wanted / rate + lost_s))}, raise the rate, "
            "or write allow_small_n: true"
        )
        raise plan.experiment.problem(item.key, what)
    if expected < least:
        return [f"{item.name}: {expected:.0f} requests expected, {least} needed at least: {name} will not be claimed"]
    return [f"{item.name}: {expected:.0f} requests expected for a {name}: a few violations make it inconclusive"]


def _alert_in_time(plan: Plan, item: Item) -> list[str]:
    """An alert has to have a chance: scrape, ramp, evaluation and `for` come before it."""
    latency_s, within = plan.target.alert_latency_s, getattr(item.params, "within", None)
    if latency_s is None:
        return [f"alert: the target '{plan.target.name}' names no prometheus: this check will not be decided"]
    why = f"an alert takes {seconds(latency_s)} at this target (scrape + ramp + evaluation + for)"
    if within is not None and within < latency_s:
        raise plan.experiment.problem((*item.key, "within"), f"{seconds(within)} is too short: {why}")
    if plan.phases.recovery_from == "off" and plan.phases.fault_s < latency_s:
        what = f"{seconds(plan.phases.fault_s)} is too short for the check alert: {why}"
        raise plan.experiment.problem(("phases", "fault"), what)
    return []


def _guarded(plan: Plan) -> list[str]:
    """Refuse a guard that the fault itself trips."""
    total = plan.target.expected_replicas
    takers = [f for f in plan.faults if f.fault.effect and not victims.is_route(f.fault)]  # a route takes nobody away
    gone = max((f.victims or 0 for f in takers), default=0)
    for item in plan.experiment.guards:
        least = getattr(item.params, "min", None)
        if item.name == "ready_replicas" and total is not None and least is not None and total - gone < least:
            what = f"{least} would stop every run: the fault leaves {total - gone} of {total} replicas"
            raise plan.experiment.problem((*item.key, "min"), what)
    return []


def _ask_the_checks(plan: Plan) -> list[str]:
    """Refuse what a check says it could never decide; return what may keep it from deciding."""
    from drills.checks import CHECKS

    content, notes = plan.to_json(), []
    for item in plan.experiment.checks:
        if item.name == "availability" and getattr(item.params, "min", None) == "sla" and not plan.target.sla.errors:
            what = (
                "the SLA allows no error: that can be refuted by a sample but never shown; write for example min: 99%"
            )
            raise plan.experiment.problem(item.key, what)
        notes += CHECKS[item.name].plan_notes(item.params, content)
        for error in CHECKS[item.name].plan_errors(item.params, content):
            raise plan.experiment.problem(item.key, error)
    return notes
