"""Recompute the main figures of a run from its files alone: python examples/recompute.py reports/runs/RUN

It imports nothing of the package, so that its word is independent of it.
"""

import json
import math
import sys
from pathlib import Path

folder = Path(sys.argv[1])
journal, requests, ledger = (
    [json.loads(line) for line in (folder / name).read_text().splitlines()]
    for name in ("journal.jsonl", "requests.ndjson", "ledger.ndjson")
)
plan = journal[0]["data"]["plan"]
ttft_s, e2e_s = (plan["target"]["sla"][metric]["value_s"] for metric in ("ttft", "e2e"))
at = {e["data"]["phase"]: e["mono"] for e in journal if e["event"] == "phase"}
hit = next(e["mono"] for e in journal if e["event"] == "inject.hit")
load_off = next(e["mono"] for e in journal if e["event"] == "load.stopping")
victims = {name for e in journal if e["event"] == "inject.hit" for name in e["data"]["victims"]}


def ttft(record):
    """Count from the intended start; whatever was not answered is infinitely slow."""
    good = record["outcome"] in ("ok", "degraded") and record["first_token"] is not None
    return record["first_token"] - record["intended"] if good else math.inf


def cohort(begin, end):
    """Describe the arrivals intended in that time."""
    records = [r for r in requests if begin <= r["intended"] < end]
    times = sorted(map(ttft, records))
    p99 = times[math.ceil(0.99 * len(times) - 1e-9) - 1]
    attempts = sum(len(r["attempts"]) for r in records) / len(records)
    return {"n": len(records), "violations": sum(t > ttft_s for t in times), "p99_s": p99, "attempts": attempts}


tried = {}  # arrival → its attempts in any ledger
for row in ledger:
    run, _, rest = (row["id"] or "").partition("-")
    if run == plan["run"]:
        tried.setdefault(int(rest.split("-")[0]), []).append(row)


def hurt(record):
    """Say whether the fault is why this arrival broke the SLA, or got a degraded answer."""
    if record["intended"] < hit or (ttft(record) <= ttft_s and record["outcome"] != "degraded"):
        return False
    if record["outcome"] == "cancelled" and record["intended"] > load_off - e2e_s:
        return False  # cut off by the end of the run itself
    rows = tried.get(record["arrival"])
    if not rows or any(row["replica"] in victims for row in rows):
        return True
    return min(row["start"] for row in rows) - (record["sent"] or math.inf) > ttft_s


print(
    json.dumps(
        {
            "baseline": cohort(at["baseline"], min(at["fault"], hit - e2e_s)),
            "fault": cohort(hit, at["recovery"]),
            "failover_s": max((r["intended"] - hit for r in requests if hurt(r)), default=0.0),
        },
        indent=2,
    )
)
