"""Write a run folder as a real run leaves it: a GPU lost and reset, seen by a few thousand requests."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Json = dict[str, Any]

RUN = "0a1b2c3d"
START = 5000.0
WALL = datetime(2026, 11, 30, 2, 16, 35, tzinfo=UTC).timestamp()
UUID = "GPU-5f0c8a9e-1111-2222-3333-444455556666"
BOOT = "7d0a6c1e-0000-4000-8000-000000000001"
VICTIM = "replica-1"
SLA = {
    "ttft": {"quantile": 0.99, "value_s": 1.0},
    "e2e": {"quantile": 0.99, "value_s": 6.0},
    "max_gap": {"quantile": 0.99, "value_s": 2.0},
    "errors": 0.01,
}
# Seconds from the begin of the load.
BASELINE, FAULT, RECOVERY, END = 10.0, 60.0, 120.0, 165.0
HIT, DETECTED, BACK = 60.1, 61.9, 84.0


def build(
    folder: Path,
    *,
    rate: float = 20.0,
    seed: int = 1,
    fault: str = "gpu-reset",
    outage: bool = True,
    victim: str = VICTIM,
    alert: str = "VllmReplicaDown",
    error_text: str = "connection refused",
) -> Path:
    """Write a finished run into `folder` and return it; names and texts may be hostile."""
    folder.mkdir(parents=True, exist_ok=True)
    requests, ledger = traffic(random.Random(seed), rate, victim, error_text, outage)
    lines(folder / "requests.ndjson", requests)
    lines(folder / "ledger.ndjson", ledger)
    lines(folder / "samples.ndjson", samples(victim))
    events = journal(requests, len(ledger), fault, victim, alert, outage)
    lines(folder / "journal.jsonl", events)
    write(folder / "plan.json", plan(fault, alert))
    write(folder / "verdict.json", verdict(requests, alert, outage))
    return folder


def lines(path: Path, rows: list[Json]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def traffic(rng: random.Random, rate: float, victim: str, text: str, outage: bool) -> tuple[list[Json], list[Json]]:
    """Return request records and ledger lines of three replicas in turn, one of them down for a while."""
    names = ["replica-0", victim, "replica-2"]
    requests: list[Json] = []
    ledger: list[Json] = []
    at, arrival = 0.0, 0
    while (at := at + rng.expovariate(rate)) < END:
        name = names[arrival % 3]
        down = outage and name == victim and HIT <= at < BACK
        if down and at >= DETECTED:
            name, down = rng.choice(["replica-0", "replica-2"]), False
        record, attempts = one(rng, arrival, at, name, down, text, outage and name == victim)
        requests.append(record)
        ledger.extend(attempts)
        arrival += 1
    return requests, ledger


def one(
    rng: random.Random, arrival: int, at: float, name: str, down: bool, text: str, on_victim: bool
) -> tuple[Json, list[Json]]:
    """Return one arrival and its attempts: a dead replica refuses, a retry elsewhere saves most."""
    mono = START + at
    slow = 1.6 if HIT <= at < BACK else 1.0
    ttft = rng.lognormvariate(-2.4, 0.35) * slow
    service = 0.75 * slow + rng.random() * 0.2
    ok, retried = not down or rng.random() < 0.6, down
    wait = rng.uniform(0.05, 0.25) if retried else 0.0
    degraded = bool(slow > 1 and rng.random() < 0.04)
    cut = on_victim and at < HIT < at + service
    record: Json = {
        "arrival": arrival, "session": arrival // 4, "turn": arrival % 4, "intended": mono, "sent": mono + 0.001,
        "wall": WALL + at, "outcome": "degraded" if degraded else "ok", "error": None, "status": 200, "detail": "",
        "model": "lab-small" if degraded else "lab-chat", "cached": False, "tokens_asked": 32, "tokens": 32,
        "finish": "length", "done": True, "lag": 0.001, "dup": False,
        "headers": mono + wait + 0.01, "first_token": mono + wait + ttft, "last_token": mono + wait + service,
        "end": mono + wait + service,
    }  # fmt: skip
    if cut:
        record |= {
            "outcome": "truncated",
            "end": START + HIT + 0.03,
            "last_token": START + HIT,
            "done": False,
            "finish": None,
        }
        if record["first_token"] > START + HIT:
            record |= {"outcome": "error", "error": "reset", "first_token": None, "last_token": None}
    if not ok:
        record |= {"outcome": "error", "error": "refused", "status": None, "detail": text, "headers": None}
        record |= {"first_token": None, "last_token": None, "end": mono + 0.6, "done": False, "finish": None}
    record["chunks"] = [round((ttft + wait) * 1000, 2)] if record["first_token"] else []
    tries = ["refused", "complete"] if retried and ok else ["refused"] * 3 if not ok else ["complete"]
    record["attempts"] = [
        {"attempt": n, "id": f"{RUN}-{arrival}-{n}", "sent": mono + n * 0.2, "headers": None, "first_token": None,
         "end": mono + n * 0.2 + 0.1, "outcome": "ok" if kind == "complete" else "error",
         "error": None if kind == "complete" else "refused", "status": None}
        for n, kind in enumerate(tries)
    ]  # fmt: skip
    other = "replica-2" if retried else name
    attempts = [
        {"replica": name if kind == "refused" else other, "role": "primary", "id": f"{RUN}-{arrival}-{n}",
         "method": "POST", "path": "/v1/chat/completions", "start": mono + n * 0.2, "connected": None,
         "first_byte": record["headers"], "last_byte": record["end"],
         "end": START + HIT + 0.02 if cut else record["end"], "status": 200, "bytes": 900,
         "close": "upstream_reset" if cut else kind}
        for n, kind in enumerate(tries)
    ]  # fmt: skip
    return record, attempts


def samples(victim: str) -> list[Json]:
    """Return a completion probe's samples each second; the victim's fail while it is down."""
    rows: list[Json] = []
    for second in range(int(END)):
        down = HIT <= second < BACK
        healthy = 2 if DETECTED <= second < BACK else 3
        rows.append({"mono": START + second, "probe": "router", "subject": "router", "ok": True,
                     "values": {"healthy": healthy}})  # fmt: skip
        base: Json = {"mono": START + second, "probe": "completion", "subject": victim}
        rows.append(base | ({"ok": False, "error": "refused"} if down else {"ok": True, "values": {"ttft_ms": 80.0}}))
    return rows


def plan(fault: str, alert: str) -> Json:
    """Return the resolved plan."""
    checks: list[Json] = [
        {"check": "failover", "params": {"within": 5.0}},
        {"check": "alert", "params": {"name": alert, "within": 20.0}},
    ]
    experiment = {
        "drill": 1, "name": fault, "title": "A replica loses its GPU", "playbook": fault,
        "hypothesis": "The other replicas take the traffic, and the replica comes back by itself.",
        "load": {"arrivals": {"kind": "poisson", "rate": 20.0}, "workload": "chat", "client": {"timeout": 30.0}},
        "phases": {"warmup": 10.0, "baseline": 50.0, "fault": 60.0, "recovery": "auto"},
        "faults": [{"fault": fault, "params": {"victims": 1, "how": "crash"}}], "guards": [], "checks": checks,
    }  # fmt: skip
    target = {
        "name": "lab", "kind": "lab", "endpoint": "http://127.0.0.1:18000/v1", "model": "lab-chat", "sla": SLA,
        "expected_replicas": 3,
    }  # fmt: skip
    phases = {"warmup_s": 10.0, "baseline_s": 50.0, "fault_s": 60.0, "recovery_s": 110.0, "recovery_auto": True}
    return {
        "run": RUN, "experiment": experiment, "target": target, "seed": 7, "phases": phases, "defect": None,
        "hash": "ab" * 32, "steps": ["load on", "inject", "revert"],
    }  # fmt: skip


def journal(requests: list[Json], attempts: int, fault: str, victim: str, alert: str, outage: bool) -> list[Json]:
    """Return the journal's lines."""
    receipt: Json = {
        "id": "r1", "run": RUN, "fault": fault, "target": "lab", "host": "local",
        "victims": [{"name": victim, "uid": "u1", "pid": 100, "pid_start": 5, "gpus": [UUID]}],
        "prior": {"gpus": {UUID: {"uptime_s": 8000.0}}, "boot_id": BOOT}, "holds": [], "undo": [], "deadline_s": 90.0,
        "params": {"how": "crash", "victims": 1},
    }  # fmt: skip
    steps: list[tuple[float, str, Json]] = [
        (-3.0, "header", header(fault, alert)),
        (-2.9, "lock.taken", {"by": "lab"}),
        (-2.5, "preflight", {"ok": True, "refusals": [], "facts": ["no foreign holder"]}),
        (-1.5, "gate", gate(victim)),
        (0.0, "load.started", {"pid": 4242}),
        (0.0, "phase", {"phase": "warmup", "planned_s": 10.0}),
        (BASELINE, "phase", {"phase": "baseline", "planned_s": 50.0}),
        (FAULT, "phase", {"phase": "fault", "planned_s": 60.0}),
        (FAULT, "receipt", {"receipt": receipt}),
        (FAULT + 0.05, "timer.armed", {"receipt": "r1", "pid": 77, "start": 9, "deadline_s": 90.0, "host": "local"}),
        (FAULT + 0.06, "inject.begin", {"receipt": "r1", "fault": fault}),
    ]
    if outage:
        steps += deed(fault, victim, alert)
    steps += [
        (RECOVERY, "phase", {"phase": "recovery", "planned_s": 110.0}),
        (END, "load.stopping", {}),
        (END + 1, "load.stopped", stopped(requests)),
        (END + 1.5, "collected", {"file": "ledger.ndjson", "lines": attempts}),
        (END + 2, "left", {"left": "healthy", "replicas": gate(victim)["replicas"]}),
        (END + 2.1, "lock.released", {"by": "lab"}),
        (END + 2.2, "end", {"status": "completed", "reason": ""}),
    ]
    steps.sort(key=lambda step: step[0])
    return [entry(n, at, event, data) for n, (at, event, data) in enumerate(steps, 1)]


def entry(n: int, at: float, event: str, data: Json) -> Json:
    """Return one journal line."""
    time = datetime.fromtimestamp(round(WALL + at, 6), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"n": n, "time": time, "mono": START + at, "event": event, "data": data}


def header(fault: str, alert: str) -> Json:
    """Return the header's data."""
    return {
        "run": RUN, "experiment": fault, "tool": {"version": "0.1.0", "git": "d9cbe0f", "dirty": False},
        "python": "3.11.9", "seed": 7, "command": f"drill run {fault} --seed 7", "plan": plan(fault, alert),
        "target": "lab", "facts": {"notes": ["no C compiler: nvidia-smi alone stands in for NVML"]},
        "versions": {"router": "0.1.17", "engine": "emulator of vLLM 0.32"}, "clock": {"offsets": {"local": 0.0}},
    }  # fmt: skip


def gate(victim: str) -> Json:
    """Return a passing steady-state gate."""
    replicas = [{"name": n, "ok": True, "ttft_ms": 70.0, "error": None} for n in ("replica-0", victim, "replica-2")]
    return {"ok": True, "replicas": replicas, "alerts": [], "reason": ""}


def deed(fault: str, victim: str, alert: str) -> list[tuple[float, str, Json]]:
    """Return what happens from the hit until everything is back."""
    labels = {"alertname": alert, "severity": "page", "replica": victim}
    base: Json = {"replica": victim, "role": "primary", "uid": "u1", "by": "supervisor", "source": "supervisor"}
    firing: Json = {"alert": alert, "labels": labels, "source": "prometheus", "value": 2.0}

    def at(offset: float) -> float:
        return START + offset

    def step(offset: float, name: str, **more: Any) -> tuple[float, str, Json]:
        return (offset, "inject.step", {"receipt": "r1", "step": name, "ok": True, **more})

    gpu = [
        step(HIT + 0.01, "gate.held"), step(HIT + 0.1, "engine.killed"), step(HIT + 1.0, "holders.gone"),
        step(HIT + 1.1, "reset.begin", uuid=UUID),
        step(HIT + 4.3, "reset.end", outcome="ok", rc=0, text=f"GPU {UUID} was successfully reset."),
        step(HIT + 4.8, "device.verified", uptime_s=0.6, uuid=UUID, boot_id=BOOT),
        step(HIT + 4.9, "gate.opened"),
    ]  # fmt: skip
    return [
        (HIT, "inject.hit", {"receipt": "r1", "victims": [victim]}),
        *(gpu if fault == "gpu-reset" else []),
        (HIT + 5, "inject.end", {"receipt": "r1"}),
        (HIT + 5.2, "proof.on", {"receipt": "r1", "fault": fault, "held": False, "ok": True,
                                 "evidence": [{"what": "uptime fell"}], "bystanders_ok": True}),
        (HIT + 0.3, "replica", base | {"change": "gone", "pid": 100, "at_mono": at(HIT + 0.2)}),
        (HIT + 5.4, "replica", base | {"change": "started", "pid": 200, "restarts": 1, "at_mono": at(HIT + 5.0)}),
        (BACK - 1.5, "replica", base | {"change": "ready", "pid": 200, "restarts": 1}),
        (BACK - 1.2, "completion", {"replica": victim, "ok": True, "ttft_ms": 90.0, "served_by_uid": "u1",
                                    "tokens": 1, "error": None, "gpu": UUID}),
        (HIT + 2.0, "alert", firing | {"state": "pending", "at_mono": at(HIT + 1.8)}),
        (HIT + 7.2, "alert", firing | {"state": "firing", "at_mono": at(HIT + 7.0)}),
        (HIT + 7.9, "notified", {"alert": alert, "labels": labels, "status": "firing", "at_mono": at(HIT + 7.6)}),
        (BACK + 1.0, "alert", firing | {"state": "inactive", "at_mono": at(BACK + 0.8)}),
        (BACK + 3.0, "notified", {"alert": alert, "labels": labels, "status": "resolved", "at_mono": at(BACK + 2.9)}),
        (RECOVERY - 0.5, "revert.begin", {"receipt": "r1", "by": "driver"}),
        (RECOVERY - 0.4, "revert.end", {"receipt": "r1", "restored": "clean", "manual": [], "by": "driver"}),
        (RECOVERY - 0.3, "timer.disarmed", {"receipt": "r1"}),
        (RECOVERY - 0.2, "proof.off", {"receipt": "r1", "fault": fault, "held": False, "ok": True, "evidence": []}),
    ]  # fmt: skip


def stopped(requests: list[Json]) -> Json:
    """Return the generator's last words."""
    outcomes: dict[str, int] = {}
    for record in requests:
        outcomes[record["outcome"]] = outcomes.get(record["outcome"], 0) + 1
    return {
        "drawn": len(requests), "records": len(requests), "outcomes": outcomes, "errors": {}, "lag_p99_ms": 3.1,
        "cpu_max": 0.31, "died": False, "reason": "",
    }  # fmt: skip


def verdict(requests: list[Json], alert: str, outage: bool) -> Json:
    """Return a verdict: most pass, one by a hair, one fails, one is inconclusive."""
    begun = sum(1 for record in requests if START + HIT <= record["intended"] < START + RECOVERY)

    def row(check: str, word: str, value: Any, bound: Any, unit: str, **more: Any) -> Json:
        base: Json = {"params": {}, "n": None, "interval": None, "reason": "", "events": [], "detail": {}}
        return base | {"check": check, "verdict": word, "value": value, "bound": bound, "unit": unit} | more

    checks = [
        row("failover", "pass", 1.8, 5.0, "s", events=[12, 18]),
        row("latency", "fail", 1.31, 1.0, "s", n=begun, interval=[0.9, None], params={"cohort": "fault"},
            reason="9 of 1200 requests broke the bound"),
        row("replica_restart", "pass", 23.7, 60.0, "s", events=[20, 21]),
        row("alert", "pass", 19.0, 20.0, "s", params={"name": alert}, events=[22]),
        row("streams", "inconclusive", None, "in_flight_on_victim", "count", reason="no stream was in flight"),
    ]  # fmt: skip
    return {
        "run": RUN, "verdict": "fail" if outage else "inconclusive", "restored": "clean", "left": "healthy",
        "exit_code": 1 if outage else 2, "reason": "", "checks": checks,
    }  # fmt: skip
