"""Pods that may die: who replaces them, how they are restarted, what their probes ask, and which budgets hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from drills.access.kubernetes import Api
from drills.access.kubetypes import PODS, ClusterError, Resource
from drills.cluster import pods
from drills.doctor.finding import Finding, missing, ok, unknown
from drills.doctor.wanted import Wanted
from drills.errors import DrillError
from drills.model import Json
from drills.target import TargetSpec

GROUP, PROBES, BUDGET = "pods", "probes", "budget"
BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets")
#: Paths that say nothing of the engine, whatever they answer.
SAY_NOTHING: Final = ("/ping", "/version", "/v1/models", "/metrics")


@dataclass(frozen=True)
class Looked:
    """What of a pod matters here."""

    pod: pods.Pod
    readiness: Json
    liveness: Json
    host_network: bool


def look(api: Api, spec: TargetSpec, wanted: Wanted) -> Iterator[Finding]:
    """Yield what would keep a replica from dying well, or from coming back."""
    assert spec.kubernetes is not None
    where = spec.kubernetes

    def keep(item: Json) -> Looked:
        pod = pods.slim(item, role="primary", container=where.container)
        named = pod.facts["container"]
        mine: Json = next((c for c in item["spec"]["containers"] if c.get("name") == named), {})
        return Looked(pod, mine.get("readinessProbe") or {}, mine.get("livenessProbe") or {},
                      bool(item["spec"].get("hostNetwork")))  # fmt: skip

    try:
        found, _ = api.list_all(PODS, where.namespace, labels=where.selector, keep=keep)
    except DrillError as error:
        yield unknown(GROUP, "pods", str(error))
        return
    live = [one for one in found if one.pod.live]
    if not live:
        return
    yield from _replaced(live, wanted)
    yield from _probes(live, wanted)
    if spec.router and spec.router.selector:
        yield from _router(api, where.namespace, spec.router.selector)
    yield _budgets(api, where.namespace, [one.pod for one in live], wanted)


def _replaced(live: Sequence[Looked], wanted: Wanted) -> Iterator[Finding]:
    alone = sorted(one.pod.name for one in live if one.pod.owner is None)
    never = sorted(one.pod.name for one in live if one.pod.facts["restart_policy"] != "Always")
    shared = sorted(one.pod.name for one in live if one.host_network)
    if alone:
        what = f"{', '.join(alone)}: no controller would replace it, so it is never a victim"
        yield missing(GROUP, "controller", what, "run the replicas as a Deployment or StatefulSet",
                      refuses=len(alone) == len(live))  # fmt: skip
    if never:
        what = f"{', '.join(never)}: restartPolicy is not Always, so a container that dies stays dead"
        yield missing(GROUP, "restart policy", what, "in the pod template: restartPolicy: Always")
    if shared and (whose := wanted.whose("HasNetwork")):
        what = f"{', '.join(shared)}: uses the network of its node, so {', '.join(whose)} is refused"
        yield missing(GROUP, "network", what, "in the pod template: hostNetwork: false", refuses=True)
    if not (alone or never):
        owners = sorted({f"{one.pod.owner.kind} {one.pod.owner.name}" for one in live if one.pod.owner})
        yield ok(GROUP, "controller", f"{', '.join(owners)} replaces pods, and their containers restart always")


# ---- probes ----------------------------------------------------------------------------------------------


def _probes(live: Sequence[Looked], wanted: Wanted) -> Iterator[Finding]:
    one = live[0]  # all of one template, or a rollout is going on
    name = f"container {one.pod.facts['container']}"
    weak = _weakness(one.readiness)
    if not one.readiness:
        yield missing(PROBES, "readiness", f"{name} has none: it is Ready, and gets traffic, as soon as it runs",
                      *_lines("readinessProbe"))  # fmt: skip
    elif weak:
        yield missing(PROBES, "readiness", f"{name}: {weak}, so it says Ready of an engine that serves nobody",
                      *_lines("readinessProbe"))  # fmt: skip
    else:
        yield ok(PROBES, "readiness", f"{name}: {_asks(one.readiness)}, unready within {_within_s(one.readiness):g} s")
    yield _liveness(name, one.liveness, wanted)


def _liveness(name: str, probe: Json, wanted: Wanted) -> Finding:
    hangs = [d.name for d in wanted.drills if any(f.name == "engine-hang" for f in d.faults)]
    if probe and (weak := _weakness(probe)):
        return missing(PROBES, "liveness", f"{name}: {weak}, so a dead engine is never restarted",
                       *_lines("livenessProbe"))  # fmt: skip
    if probe:
        return ok(PROBES, "liveness", f"{name}: {_asks(probe)}, restarted within {_within_s(probe):g} s")
    if hangs:
        what = f"{name} has none: after {', '.join(hangs)} nobody restarts it"
        return missing(PROBES, "liveness", what, *_lines("livenessProbe"))
    return ok(PROBES, "liveness", f"{name} has none: what ends is restarted, what hangs is not")


def _weakness(probe: Json) -> str:
    """Return why a probe cannot see that the engine is dead; empty: it may."""
    if "tcpSocket" in probe:
        return "it asks only whether the port is open"
    path = (probe.get("httpGet") or {}).get("path", "")
    if path in SAY_NOTHING:
        return f"it asks {path}, which answers without the engine"
    command = (probe.get("exec") or {}).get("command") or []
    return "it runs `true`" if command[-1:] in (["true"], ["/bin/true"]) else ""


def _asks(probe: Json) -> str:
    if "httpGet" in probe:
        return f"GET {probe['httpGet'].get('path', '/')}"
    return "a command" if "exec" in probe else "a call of grpc"


def _within_s(probe: Json) -> float:
    return float(probe.get("periodSeconds", 10)) * float(probe.get("failureThreshold", 3))


def _lines(kind: str) -> tuple[str, ...]:
    return (
        "in the pod template:",
        f"  {kind}: {{httpGet: {{path: /health, port: 8000}}, periodSeconds: 5, failureThreshold: 2}}",
    )


def _router(api: Api, namespace: str, selector: str) -> Iterator[Finding]:
    """vllm-router's /health says 503 as soon as one worker is missing: as readiness it takes the router itself away."""
    try:
        found, _ = api.list_all(PODS, namespace, labels=selector, keep=lambda item: item)
    except DrillError as error:
        yield unknown(PROBES, "router", str(error))
        return
    if not found:
        yield missing(PROBES, "router", f"no pod matches router.selector {selector}", "mend router.selector",
                      refuses=True)  # fmt: skip
        return
    asked = {(c.get("readinessProbe") or {}).get("httpGet", {}).get("path") for c in found[0]["spec"]["containers"]}
    if "/health" in asked:
        what = "the router is ready by /health, which fails as soon as one replica is missing: one becomes an outage"
        yield missing(PROBES, "router", what, "in the router's template:",
                      "  readinessProbe: {httpGet: {path: /readiness, port: 8090}}")  # fmt: skip
    else:
        yield ok(PROBES, "router", f"{selector} matches {len(found)}, ready by {', '.join(sorted(map(str, asked)))}")


# ---- budgets ---------------------------------------------------------------------------------------------


def _budgets(api: Api, namespace: str, live: Sequence[pods.Pod], wanted: Wanted) -> Finding:
    evicting = [d.name for d in wanted.drills if any(_evicts(fault) for fault in d.faults)]
    try:
        listed, _ = api.list_all(BUDGETS, namespace, keep=lambda item: item)
    except ClusterError as error:
        if not evicting:
            return ok(BUDGET, "disruption", "no chosen drill evicts, and others ask no budget")
        what = f"{', '.join(evicting)} evicts, and whether a budget allows it is not known: {error}"
        return unknown(BUDGET, "disruption", what, f"kubectl -n {namespace} get poddisruptionbudgets")
    over = [one for one in listed if any(selects(one, pod.labels) for pod in live)]
    named = ", ".join(f"{one['metadata']['name']} allows {_allowed(one)}" for one in over)
    if evicting and (tight := [one for one in over if _allowed(one) < 1]):
        name = tight[0]["metadata"]["name"]
        what = f"{named}: {', '.join(evicting)} would wait and be refused"
        return missing(BUDGET, "disruption", what, f"kubectl -n {namespace} describe poddisruptionbudget {name}",
                       refuses=True)  # fmt: skip
    if evicting and len(over) > 1:
        what = f"{named}: the API server evicts no pod that several budgets select"
        return missing(BUDGET, "disruption", what, "leave one of them", refuses=True)
    return ok(BUDGET, "disruption", named or "no budget holds these pods")


def _evicts(fault: Any) -> bool:
    return "CanEvict" in fault.needs() or getattr(fault, "how", "") in ("evict", "planned")


def _allowed(budget: Json) -> int:
    return int((budget.get("status") or {}).get("disruptionsAllowed") or 0)


def selects(budget: Json, labels: Any) -> bool:
    """Whether a budget's selector matches a pod with these labels."""
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return False
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(_expression(one, labels) for one in selector.get("matchExpressions") or ())


def _expression(one: Json, labels: Any) -> bool:
    value, values = labels.get(one["key"]), one.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(str(one["operator"]), False)
