"""Build run folders as a real run leaves them, small and without chance, for tests to spoil in one place.

One arrival every 1/rate s, to three replicas in turn. At HIT replica-1 is killed: what was in flight on it is
cut, arrivals of the next second that would have gone there are retried on a neighbour and still in the SLA, and
at BACK it serves again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from drills import evidence
from drills.checks import CHECKS
from drills.evidence import Evidence
from drills.load.workload import place
from drills.model import CheckResult
from tests.unit import probed

Json = dict[str, Any]

RUN = "0a1b2c3d"
START, WALL = 1000.0, 1796005995.0
BASELINE, FAULT, RECOVERY, END = START + 10, START + 70, START + 130, START + 170
HIT, MOVED, READY, BACK = FAULT + 0.03, FAULT + 1.1, FAULT + 20, FAULT + 20.5
VICTIM = "replica-1"
REPLICAS = ("replica-0", VICTIM, "replica-2")
GPU = "GPU-5f0c8a9e-1111-2222-3333-444455556666"
SERVICE_S, TTFT_S = 0.8, 0.1
SLA = {
    "ttft": {"quantile": 0.99, "value_s": 1.0},
    "e2e": {"quantile": 0.99, "value_s": 6.0},
    "max_gap": {"quantile": 0.99, "value_s": 2.0},
    "errors": 0.01,
}
SEEN: list[Json] = [{"what": "process of the victim", "gone": True}]
ALL_CHECKS: list[Json] = [
    {"check": "failover", "params": {"within": 5.0}},
    {"check": "latency", "params": {"metric": "ttft", "quantile": 0.99, "cohort": "fault", "max": "sla"}},
    {"check": "availability", "params": {}},
    {"check": "replica_restart", "params": {"within": 60.0}},
    {"check": "rejoin", "params": {"within": 20.0}},
    {"check": "alert", "params": {"name": "VllmReplicaDown", "within": 20.0, "resolves_within": 40.0}},
    {"check": "streams", "params": {"max_cut": "in_flight_on_victim"}},
    {"check": "recovery", "params": {"within": 40.0}},
    {"check": "accounted", "params": {}},
    {"check": "untouched", "params": {}},
    {"check": "cache_recovery", "params": {"within": 20.0}},
    {"check": "engine_vs_client", "params": {"max": 0.05}},
    {"check": "health_honest", "params": {}},
    {"check": "metrics", "params": {"preset": "serving-minimum"}},
    {"check": "retried", "params": {"min_share": 0.5}},
    {"check": "retry_storm", "params": {}},
    {"check": "sessions", "params": {}},
    {"check": "goodput", "params": {}},
]


@dataclass
class Run:
    """The files of one run, as lists to change before they are written."""

    requests: list[Json] = field(default_factory=list)
    ledger: list[Json] = field(default_factory=list)
    samples: list[Json] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    plan: Json = field(default_factory=dict)
    has_ledger: bool = True

    def tell(self, mono: float, event: str, **data: Any) -> None:
        """Add an event; they are numbered by their time when the run is written."""
        self.events.append({"mono": mono, "event": event, "data": data})

    def of(self, event: str) -> list[Json]:
        """Return the data of the events of a name."""
        return [e["data"] for e in self.events if e["event"] == event]

    def drop(self, event: str, test: Callable[[Json], bool] = lambda _: True) -> None:
        """Remove events."""
        self.events = [e for e in self.events if e["event"] != event or not test(e["data"])]

    def between(self, begin: float, end: float) -> list[Json]:
        """Return the records of arrivals intended in that time."""
        return [r for r in self.requests if begin <= r["intended"] < end]

    def fail(self, records: list[Json], outcome: str = "error", error: str | None = "refused") -> None:
        """Let arrivals fail before their first token."""
        for r in records:
            r |= {"outcome": outcome, "error": error, "first_token": None, "last_token": None, "chunks": []}
            r |= {"finish": None, "done": False, "tokens": None}

    def recount(self) -> None:
        """Have the generator agree with the records."""
        for data in self.of("load.stopped"):
            data |= {"drawn": len(self.requests), "records": len(self.requests), "outcomes": counted(self.requests)}
        for data in self.of("collected"):
            data["lines"] = len(self.ledger)

    def write(self, folder: Path) -> Path:
        """Write the folder and return it."""
        folder.mkdir(parents=True, exist_ok=True)
        lines(folder / "requests.ndjson", self.requests)
        if self.has_ledger:
            lines(folder / "ledger.ndjson", self.ledger)
        lines(folder / "samples.ndjson", self.samples)
        journal = [stamped(n, e) for n, e in enumerate(sorted(self.events, key=lambda e: e["mono"]), 1)]
        lines(folder / "journal.jsonl", journal)
        (folder / "plan.json").write_text(json.dumps(self.plan))
        return folder

    def evidence(self, folder: Path) -> Evidence:
        """Write the folder and read it back."""
        self.recount()
        return evidence.read(self.write(folder))


def judge(run: Run, folder: Path, check: str, **params: Any) -> CheckResult:
    """Judge one check on a run."""
    ev = run.evidence(folder)
    return CHECKS[check].judge(ev, CHECKS[check].Params.model_validate(params))


def healthy(rate: float = 20.0) -> Run:
    """Return a run in which everything went as it should."""
    run = Run(plan=plan())
    for arrival in range(int((END - START) * rate)):
        _arrive(run, arrival, START + arrival / rate)
    run.samples = samples(rate)
    _events(run)
    run.recount()
    return run


def quiet(rate: float = 20.0) -> Run:
    """Return a run that ended in its baseline: nothing was injected."""
    run = healthy(rate)
    run.events = [e for e in run.events if e["mono"] < FAULT]
    run.requests = run.between(START, FAULT)
    return run


def record(arrival: int, at: float, **more: Any) -> Json:
    """Return the record of an arrival that was answered in full."""
    first, last = at + TTFT_S, at + SERVICE_S
    chunks = [round(1000 * (TTFT_S + n * (SERVICE_S - TTFT_S) / 7), 2) for n in range(8)]
    session, turn = place(arrival, 100, 4)
    base: Json = {
        "arrival": arrival, "session": session, "turn": turn, "intended": at, "sent": at + 0.001,
        "headers": at + 0.01, "first_token": first, "last_token": last, "end": last, "wall": WALL + at - START,
        "outcome": "ok", "error": None, "status": 200, "detail": "", "model": "lab-chat", "cached": False,
        "tokens_asked": 32, "tokens": 32, "finish": "length", "done": True, "lag": 0.001, "dup": False,
        "chunks": chunks,
        "attempts": [
            {"attempt": 0, "id": f"{RUN}-{arrival}-0", "sent": at + 0.001, "headers": at + 0.01, "first_token": first,
             "end": last, "outcome": "ok", "error": None, "status": 200},
        ],
    }  # fmt: skip
    return base | more


def attempt(arrival: int, at: float, replica: str, **more: Any) -> Json:
    """Return a ledger line of an attempt that was served."""
    base: Json = {
        "replica": replica, "role": "primary", "id": f"{RUN}-{arrival}-0", "method": "POST",
        "path": "/v1/chat/completions", "start": at + 0.002, "connected": at + 0.001, "first_byte": at + TTFT_S,
        "last_byte": at + SERVICE_S, "end": at + SERVICE_S, "status": 200, "bytes": 900, "close": "complete",
    }  # fmt: skip
    return base | more


def _arrive(run: Run, arrival: int, at: float) -> None:
    replica = f"replica-{arrival % 3}"
    if replica == VICTIM and at < HIT < at + SERVICE_S:
        cut: Json = {
            "outcome": "truncated",
            "end": HIT + 0.002,
            "last_token": HIT,
            "done": False,
            "finish": None,
            "tokens": None,
        }
        lost: Json = {"end": HIT + 0.001, "last_byte": HIT, "close": "upstream_reset"}
        if at + TTFT_S > HIT:
            lost |= {"first_byte": None, "last_byte": None, "status": None, "bytes": 0}
            cut |= {"outcome": "error", "error": "reset", "first_token": None, "last_token": None, "chunks": []}
        run.requests.append(record(arrival, at, **cut))
        run.ledger.append(attempt(arrival, at, replica, **lost))
        return
    run.requests.append(record(arrival, at))
    if replica == VICTIM and HIT <= at < BACK:
        if at < MOVED:
            refused: Json = {"status": None, "first_byte": None, "last_byte": None, "bytes": 0, "close": "refused"}
            run.ledger.append(attempt(arrival, at, replica, end=at + 0.003, **refused))
        replica = f"replica-{2 * (arrival % 2)}"
        at += 0.01
    run.ledger.append(attempt(arrival, at, replica))


def samples(rate: float = 20.0) -> list[Json]:
    """Return what the probes wrote once a second: alerts, router, engines, GPUs and the generator's heartbeat."""
    found: list[Json] = []
    for second in range(int(END - START)):
        mono = START + second + 0.3
        base = {"mono": mono, "time": "", "ok": True}
        down = HIT + 1 <= mono < READY
        found.append(base | {"probe": "alerts", "subject": "prometheus", "values": {"pending": 0, "firing": 0}})
        found.append(
            base | {"probe": "router", "subject": "router", "values": {"vllm_router_active_workers": 3 - down}}
        )
        found.append(base | {"probe": "load", "subject": "generator", "values": {"n": second, "cpu": 0.2}})
        found.append(base | {"probe": "replicas", "subject": "lab", "values": {"ready": 3 - down, "states": {}}})
        for name in REPLICAS:
            found += probed.engine(mono, name, _counters(name, mono, rate / len(REPLICAS)))
        if second % 5 == 0:
            found.append(probed.gpus(mono, [GPU]))
    return found


def _counters(name: str, mono: float, rate: float) -> Json | None:
    """Return an engine's counters; the victim's are away until READY and then begin again."""
    away = name == VICTIM and HIT <= mono < READY
    since = BACK if name == VICTIM and mono >= READY else START
    served = max(0.0, mono - since) * rate
    if name != VICTIM:  # and what the victim could not take
        served += max(0.0, min(mono, BACK) - HIT) * rate / 2
    return None if away else probed.counters(served, int(mono - since), TTFT_S, SERVICE_S, since)


def plan(checks: list[Json] | None = None) -> Json:
    """Return the resolved plan."""
    experiment = {
        "drill": 1, "name": "pod-kill", "title": "t", "hypothesis": "h", "playbook": "pod-kill",
        "load": {"arrivals": {"kind": "poisson", "rate": 20.0}}, "phases": {}, "guards": [],
        "faults": [{"fault": "pod-kill", "params": {}}], "checks": ALL_CHECKS if checks is None else checks,
    }  # fmt: skip
    phases: Json = {"warmup_s": 10.0, "baseline_s": 60.0, "fault_s": 60.0, "recovery_s": 100.0, "recovery_auto": True}
    target = {"name": "lab", "kind": "lab", "sla": SLA, "expected_replicas": 3}
    phases["recovery_from"] = "injection"
    return {"run": RUN, "experiment": experiment, "target": target, "seed": 7, "phases": phases}


def _events(run: Run) -> None:
    names = list(REPLICAS)
    pinned = {
        "name": VICTIM,
        "uid": "u1",
        "pid": 100,
        "pid_start": 5,
        "engine_pid": 101,
        "engine_start": 6,
        "gpus": [GPU],
    }
    bystanders = [{"name": name, "uid": f"u-{name}"} for name in names if name != VICTIM]
    receipt = {"id": "r1", "run": RUN, "fault": "pod-kill", "victims": [pinned], "prior": {"bystanders": bystanders}}
    proof = {"receipt": "r1", "fault": "pod-kill", "held": False, "effect": True, "ok": True, "bystanders_ok": True}
    run.tell(START - 3, "header", run=RUN, experiment="pod-kill", seed=7, plan=run.plan)
    run.tell(START - 2, "gate", ok=True, replicas=[{"name": n, "ok": True} for n in names], alerts=[], reason="")
    run.tell(START, "load.started", pid=1)
    for name in names:
        run.tell(START + 0.3, "metrics.names", replica=name, names=probed.NAMES, absent=["swapped"])
    for at, phase in ((START, "warmup"), (BASELINE, "baseline"), (FAULT, "fault"), (RECOVERY, "recovery")):
        run.tell(at, "phase", phase=phase, planned_s=60.0)
    run.tell(FAULT + 0.005, "receipt", receipt=receipt)
    run.tell(FAULT + 0.02, "inject.begin", receipt="r1", fault="pod-kill")
    run.tell(HIT, "inject.hit", receipt="r1", victims=[VICTIM])
    run.tell(HIT + 0.1, "inject.end", receipt="r1")
    run.tell(HIT + 0.2, "proof.on", evidence=SEEN, **proof)
    run.tell(HIT + 0.25, "proof.off", evidence=SEEN, **proof)
    run.tell(HIT + 0.3, "revert.end", receipt="r1", restored="clean", manual=[], by="driver")
    _life(run)
    labels = {"severity": "page", "replica": VICTIM}
    alert = {"alert": "VllmReplicaDown", "labels": labels, "source": "prometheus"}
    for at, state in ((HIT + 2, "pending"), (HIT + 7, "firing"), (READY + 1, "inactive")):
        run.tell(at, "alert", state=state, **alert)
    for at, status in ((HIT + 7.6, "firing"), (READY + 3, "resolved")):
        run.tell(at, "notified", alert="VllmReplicaDown", labels=labels, status=status, at_mono=at)
    run.tell(END, "load.stopping")
    run.tell(END + 1, "load.stopped", errors={}, lag_p99_ms=1.0, cpu_max=0.3, died=False, reason="")
    run.tell(END + 1.5, "collected", file="ledger.ndjson")
    run.tell(END + 2, "left", left="healthy", replicas=[])
    run.tell(END + 3, "end", status="completed", reason="")


def _life(run: Run) -> None:
    """The old process goes; the supervisor starts a new one with the same uid, which becomes ready and answers."""
    new = {"replica": VICTIM, "role": "primary", "uid": "u1", "by": "supervisor", "source": "supervisor"}
    run.tell(HIT + 0.15, "replica", change="gone", pid=100, start=5, at_mono=HIT + 0.02, **new)
    run.tell(HIT + 1.2, "replica", change="started", pid=200, start=9, restarts=1, at_mono=HIT + 1.0, **new)
    run.tell(READY + 0.2, "replica", change="ready", pid=200, start=9, restarts=1, at_mono=READY, **new)
    run.tell(READY + 0.4, "completion", replica=VICTIM, ok=True, ttft_ms=90.0, served_by_uid="u1", pid=200, tokens=1)


def counted(records: list[Json]) -> dict[str, int]:
    """Return how many records have each outcome."""
    outcomes: dict[str, int] = {}
    for r in records:
        outcomes[r["outcome"]] = outcomes.get(r["outcome"], 0) + 1
    return outcomes


def lines(path: Path, rows: list[Json]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def stamped(n: int, event: Json) -> Json:
    """Return a journal line."""
    time = datetime.fromtimestamp(WALL + event["mono"] - START, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"n": n, "time": time, **event}
