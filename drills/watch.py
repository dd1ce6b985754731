"""What is watched while a drill runs: replicas, completions, metrics, alerts. Wires probes to the journal."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from drills.errors import DrillError
from drills.model import CanDelete, Embedded, HasEvents, HasGpus, Json, Replica, Target
from drills.probes import completion, gpu_host, health, http, notified, promql, router, vllm
from drills.probes.alerts import AlertWatch, concerns, is_page
from drills.probes.answers import wall
from drills.probes.http import ProbeError
from drills.probes.prometheus import alertmanager_of, prometheus_of
from drills.probes.sampler import Job

Tell = Callable[[str, Json], None]
Identity = tuple[str, int | None, int]  # uid, pid where it is known, restarts
COMPLETION_TIMEOUT_S = 2.0
SCRAPE_TIMEOUT_S = 2.0
HEALTH_TIMEOUT_S = 2.0  # longer than a router's, so that an answer that is late for the router is seen for what it is
READINESS_AGE_S = 2.0
GPU_INTERVAL_S = 5.0
PROMQL_INTERVAL_S = 5.0
LOOKS_KEPT = 20  # at each engine


class Watch:
    """The present state of the target as the probes see it, and the jobs that keep it so."""

    def __init__(self, target: Target, tell: Tell, plan: Json) -> None:
        self.target, self.tell, self.plan = target, tell, plan
        self.lock = threading.Lock()
        self.replicas: dict[str, Replica] = {}
        self.looked_mono = 0.0  # when they were last seen so
        self.first: frozenset[str] = frozenset()  # who was there when the load began
        self.served: dict[str, Identity] = {}
        self.disturbed: list[Json] = []  # replica events seen before the fault: somebody else's doing
        self.seen_event = self.seen_note = 0
        self.firing: dict[str, bool] = {}
        self.looks: dict[str, deque[Json]] = {}  # at engines, the last ones
        self.told: notified.Notifications | None = None  # of those that a target's Alertmanager sends past us
        self.hands_off = False  # while a fault is being injected: NVML would be a client of the GPU being reset

    # ---- what the run asks -----------------------------------------------------------------------------

    def ready(self) -> tuple[int, int]:
        """Return how many primaries are ready, and how many there should be."""
        with self.lock:
            return sum(r.ready for r in self.replicas.values() if r.role == "primary"), self.target.expected_replicas

    def all_serve_again(self) -> bool:
        """Whether every primary is ready and its present incarnation has answered a completion."""
        with self.lock:
            primaries = [r for r in self.replicas.values() if r.role == "primary"]
            ready = [r for r in primaries if r.ready and self.served.get(r.name) == identity(r)]
        return len(ready) >= self.target.expected_replicas

    def engines(self) -> tuple[dict[str, list[Json]], list[str]]:
        """Return the last looks at each engine, and the names of the primaries."""
        with self.lock:
            looks = {name: list(seen) for name, seen in self.looks.items()}
            return looks, sorted(r.name for r in self.replicas.values() if r.role == "primary")

    def quiet(self) -> bool:
        """Whether no page that we saw fire still fires; a ticket may stay open for days."""
        with self.lock:
            return not any(self.firing.values())

    def now(self) -> list[Replica]:
        """Return the replicas as they were seen last."""
        with self.lock:
            return list(self.replicas.values())

    # ---- jobs ------------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """Return the probes for this target, each with its rhythm in seconds."""
        self.replicas = {r.name: r for r in self.target.replicas()}
        self.first = frozenset(self.replicas)
        found = [Job("replicas", self.target.name, 0.5, self._look_at_replicas)]
        for replica in self.replicas.values():
            found.append(Job("completion", replica.name, 1.0, self._completion(replica)))
            found.append(Job("vllm", replica.name, 1.0, self._engine(replica)))
        found += self._asked_for()
        if self.target.router_metrics:
            found.append(Job("router", "router", 1.0, _scrape(router.scrape, self.target.router_metrics)))
        alerts = AlertWatch(self._alert)
        if (prometheus := prometheus_of(self.target)) is not None:
            found.append(Job("alerts", "prometheus", 0.5, lambda: alerts.prometheus(prometheus)))
        if (manager := alertmanager_of(self.target)) is not None:
            found.append(Job("alerts", "alertmanager", 1.0, lambda: alerts.alertmanager(manager)))
        if isinstance(self.target, HasEvents):
            found.append(Job("events", self.target.name, 0.25, self._look_at_events))
        if isinstance(self.target, HasGpus):
            hosts = sorted({replica.host for replica in self.replicas.values() if replica.gpus})
            found += [Job("gpu", host, GPU_INTERVAL_S, functools.partial(self._look_at_gpus, host)) for host in hosts]
        return found

    def _asked_for(self) -> list[Job]:
        """Return the probes that cost something and are there only for checks of the plan."""
        found: list[Job] = []
        if any(item["check"] == "health_honest" for item in self.plan["experiment"]["checks"]):
            found += [Job("health", r.name, 1.0, self._health(r)) for r in self.replicas.values()]
            if isinstance(self.target, CanDelete) and not isinstance(self.target, Embedded):
                # A controller says who is ready, and traffic follows.
                found += [Job("readiness", r.name, 1.0, self._readiness(r)) for r in self.replicas.values()]
        if self.told is not None:
            found.append(Job("notifications", "alertmanager", 1.0, self.told.look))
        for name, query in promql.wanted(self.plan).items():
            if (server := prometheus_of(self.target)) is None:
                break
            found.append(Job("promql", name, PROMQL_INTERVAL_S, functools.partial(promql.ask, server, query)))
        return found

    def _counts_notifications(self) -> bool:
        """Whether a check wants to know of notifications that a target's Alertmanager sends past us."""
        wanted = [c for c in self.plan["experiment"]["checks"] if c["check"] == "alert"]
        told = not isinstance(self.target, Embedded)
        return told and any(c["params"].get("notified_within") is not None for c in wanted)

    def skip_past(self) -> None:
        """Forget events and notifications from before this run; those of its own announcement count."""
        if self._counts_notifications() and (manager := alertmanager_of(self.target)) is not None:
            self.told = notified.Notifications(manager, self.tell)
            with suppress(ProbeError):  # the next look is the first, then
                self.told.look()
        if isinstance(self.target, HasEvents):
            events: Any = self.target
            self.seen_event = max((e["n"] for e in events.replica_events(0)), default=0)
            self.seen_note = max((e["n"] for e in events.notifications(0)), default=0)

    def _look_at_replicas(self) -> Json:
        try:
            now = {r.name: r for r in self.target.replicas()}
        except DrillError as error:  # what was seen last stays; the look is written down as a failed one
            raise ProbeError(str(error)) from None
        with self.lock:
            self.replicas, self.looked_mono = now, time.monotonic()
        return {"ready": sum(r.ready for r in now.values()), "states": {r.name: r.state for r in now.values()}}

    def _look_at_events(self) -> None:
        target: Any = self.target
        try:
            events, notes = target.replica_events(self.seen_event), target.notifications(self.seen_note)
        except DrillError as error:
            raise ProbeError(str(error)) from None
        for event in events:
            self.seen_event = event["n"]
            told = {k: v for k, v in event.items() if k not in ("n", "mono", "time")}
            told = {"source": "supervisor", **told, "at_mono": event["mono"]}
            self.tell("replica", told)
            if event.get("change") in ("gone", "started"):
                self.disturbed.append(told)
        for note in notes:
            self.seen_note = note["n"]
            told = {k: note[k] for k in ("alert", "labels", "status")}
            fired = wall(note.get("startsAt"))
            self.tell("notified", told | {"at_mono": note["mono"], "fired_at": fired})

    def _completion(self, replica: Replica) -> Callable[[], Json]:
        pool = http.pool_for(self.target)
        model = model_of(self.target, replica)

        def look() -> Json:
            before = self._identity(replica.name)
            values = completion.complete(pool, self._now(replica).url, model, timeout_s=COMPLETION_TIMEOUT_S)
            if before is not None and before == self._identity(replica.name):
                self._note_served(replica.name, before, values)
            return values

        return look

    def _engine(self, replica: Replica) -> Callable[[], Json]:
        """Scrape an engine; which of vLLM's names were found is told when it changes."""
        pool, seen = http.pool_for(self.target), {"": ""}

        def look() -> Json:
            values, names = vllm.scrape(pool, self._now(replica).url, timeout_s=SCRAPE_TIMEOUT_S)
            if names != seen:
                seen.clear()
                seen.update(names)
                absent = sorted(vllm.NAMES.keys() - names.keys())
                self.tell("metrics.names", {"replica": replica.name, "names": names, "absent": absent})
            with self.lock:
                self.looks.setdefault(replica.name, deque(maxlen=LOOKS_KEPT)).append(values)
            return values

        return look

    def _health(self, replica: Replica) -> Callable[[], Json]:
        pool = http.pool_for(self.target)

        def look() -> Json:
            now = self._now(replica)
            return health.ask(pool, now.health_url or f"{now.url}/health", timeout_s=HEALTH_TIMEOUT_S)

        return look

    def _readiness(self, replica: Replica) -> Callable[[], Json]:
        def look() -> Json:
            with self.lock:
                now, age_s = self.replicas.get(replica.name), time.monotonic() - self.looked_mono
            if age_s > READINESS_AGE_S:
                raise ProbeError("what the controller says of it could not be read")
            return {"endpoint": "its controller's word", "ready": now is not None and now.ready}

        return look

    def _now(self, replica: Replica) -> Replica:
        """Return what has the replica's name now; one that was replaced may have another address."""
        with self.lock:
            return self.replicas.get(replica.name, replica)

    def _identity(self, name: str) -> Identity | None:
        """Return which incarnation runs under that name, None when none does."""
        with self.lock:
            now = self.replicas.get(name)
            return identity(now) if now and (now.pid or now.started_wall) else None

    def _note_served(self, name: str, identity: Identity, values: Json) -> None:
        with self.lock:
            if self.served.get(name) == identity:
                return
            self.served[name] = identity
            gpus = list(self.replicas[name].gpus)
        uid, pid, _ = identity
        told = {"replica": name, "ok": True, "served_by_uid": uid, "pid": pid, "gpus": gpus}
        self.tell("completion", told | {k: values[k] for k in ("ttft_ms", "tokens")})

    def _alert(self, event: str, data: Json) -> None:
        with self.lock:
            key = f"{data['source']} {data['alert']} {data['labels']}"
            mine = concerns(data["labels"], (self.plan["target"].get("alerts") or {}).get("service") or {})
            page = is_page(data["labels"] | {"alertname": data["alert"]})
            self.firing[key] = mine and page and data["state"] in ("firing", "pending")
        self.tell(event, data)

    def _look_at_gpus(self, host: str) -> Json | None:
        if self.hands_off:
            return None
        try:
            return gpu_host.look(self.target, host)
        except DrillError as error:
            raise ProbeError(str(error)) from None


def model_of(target: Target, replica: Replica) -> str:
    """Return the model name that the replica serves."""
    if replica.role == "primary" or not target.fallback_models:
        return target.model
    return target.fallback_models[0]


def identity(replica: Replica) -> Identity:
    """Return what tells one incarnation from the next, be it another process or another pod."""
    return replica.uid, replica.pid, replica.restarts


def _scrape(scraper: Callable[..., Json], url: str) -> Callable[[], Json]:
    pool = http.pool()
    return lambda: scraper(pool, url, timeout_s=SCRAPE_TIMEOUT_S)
