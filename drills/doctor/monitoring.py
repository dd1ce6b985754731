"""Prometheus, Alertmanager and the router: reachable, and with what the checks of the chosen drills ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import drills
from drills.doctor.finding import Finding, missing, ok, unknown
from drills.doctor.wanted import Wanted
from drills.probes import http, promql, router
from drills.probes.http import ProbeError
from drills.probes.prometheus import Alertmanager, Prometheus

GROUP, ALERTS = "metrics", "alerts"
RULES: Final = Path(drills.__file__).parent / "data" / "alerts" / "vllm.rules.yml"
ROUTER_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True)
class Places:
    """Where they are; None: nobody said."""

    prometheus: Prometheus | None = None
    alertmanager: Alertmanager | None = None
    router: str | None = None


def look(wanted: Wanted, places: Places, target: str) -> Iterator[Finding]:
    """Yield what is found of them. `target` is the name under which drill.yaml has it."""
    alerts = wanted.checks("alert")
    if places.prometheus is None:
        yield _not_declared(target, "prometheus", "http://prometheus:9090", needed=bool(alerts))
    else:
        yield from _prometheus(wanted, places.prometheus)
    if places.alertmanager is None:
        yield _not_declared(target, "alertmanager", "http://alertmanager:9093", needed=bool(alerts))
    else:
        yield _alertmanager(places.alertmanager)
    yield _router(places.router, target)


def _not_declared(target: str, key: str, example: str, *, needed: bool) -> Finding:
    lines = ("in drill.yaml, below targets." + target + ":", f"  {key}: {{url: {example}}}")
    if not needed:
        return ok(GROUP, key, "not declared, and no chosen drill asks it")
    return missing(GROUP, key, "not declared, so no check on an alert is decided", *lines)


def _prometheus(wanted: Wanted, server: Prometheus) -> Iterator[Finding]:
    url = server.url
    try:
        rules = {str(rule["name"]): rule for rule in server.rules()}
    except ProbeError as error:
        what = f"{url} cannot be read ({error})"
        yield missing(GROUP, "prometheus", what, f"curl --max-time 3 {url}/api/v1/rules", refuses=True)
        return
    yield ok(GROUP, "prometheus", f"{url} answers")
    yield from _rules(wanted, rules, url)
    yield from _queries(wanted, server)
    yield _sends(server)


def _rules(wanted: Wanted, rules: dict[str, dict[str, object]], url: str) -> Iterator[Finding]:
    asked: dict[str, list[str]] = {}
    for drill, params in wanted.checks("alert"):
        asked.setdefault(str(params.name), []).append(drill)
    for name, whose in asked.items():
        rule = rules.get(name)
        if rule is None:
            what = f"{url} has no such rule; {', '.join(whose)} would wait for it in vain"
            yield missing(ALERTS, name, what, "add to rule_files of Prometheus, and reload it:", f"  {RULES}")
        elif rule.get("health") not in ("ok", "unknown"):
            why = " ".join(str(rule.get("lastError") or rule.get("health")).split())[:160]
            yield missing(ALERTS, name, f"its rule cannot be evaluated: {why}", f"promtool check rules {RULES}")
        else:
            yield ok(ALERTS, name, f"its rule is there ({', '.join(whose)})")


def _queries(wanted: Wanted, server: Prometheus) -> Iterator[Finding]:
    queries: dict[str, str] = {}
    for one in wanted.drills:
        queries |= promql.wanted(one.plan.to_json()) if one.plan else {}
    for name, query in queries.items():
        try:
            value = promql.ask(server, query)["value"]
        except ProbeError as error:
            yield missing(
                GROUP, name, f"its query has no value: {error}", f"promtool query instant {server.url} '{query}'"
            )
        else:
            yield ok(GROUP, name, f"its query is {value:g} now")


def _sends(server: Prometheus) -> Finding:
    url = server.url
    try:
        there = server.managers()
    except ProbeError as error:
        return unknown(ALERTS, "delivery", f"whom {url} tells of alerts cannot be read ({error})")
    if there:
        return ok(ALERTS, "delivery", f"{url} tells {', '.join(there)}")
    what = f"{url} has no Alertmanager, so nobody would be notified"
    return missing(ALERTS, "delivery", what, "in prometheus.yml:",
                   "  alerting: {alertmanagers: [{static_configs: [{targets: ['alertmanager:9093']}]}]}")  # fmt: skip


def _alertmanager(server: Alertmanager) -> Finding:
    url = server.url
    try:
        ways = server.ways()
    except ProbeError as error:
        return missing(
            ALERTS, "alertmanager", f"{url} cannot be read ({error})", f"curl --max-time 3 {url}/api/v2/status"
        )
    if not any(ways.values()):
        return missing(ALERTS, "alertmanager", f"{url} notifies nobody: no receiver has a way", "in alertmanager.yml:",
                       "  receivers: [{name: team, webhook_configs: [{url: 'http://pager:8080/'}]}]")  # fmt: skip
    told = ", ".join(name for name, count in ways.items() if count)
    return ok(ALERTS, "alertmanager", f"{url} answers; it has a way to notify {told}")


def _router(url: str | None, target: str) -> Finding:
    if url is None:
        lines = ("in drill.yaml, below targets." + target + ":",
                 "  router: {kind: vllm-router, metrics: http://router:29000/metrics}")  # fmt: skip
        return missing(GROUP, "router", "its metrics are not declared, so what it saw stays unknown", *lines)
    try:
        found = router.scrape(http.pool(), url, timeout_s=ROUTER_TIMEOUT_S)
    except ProbeError as error:
        return missing(GROUP, "router", f"{url} cannot be read ({error})", f"curl --max-time 3 {url}")
    return ok(GROUP, "router", f"{url} answers with {len(found)} series")
