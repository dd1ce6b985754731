"""What judging and reporting a run cost as it grows: seconds and peak memory, and how they grow with the records.

    python benchmarks/judge.py [--records 10000,100000]

The run is made up: one arrival every 20 ms, 50 chunks each, one attempt of each in the ledger; at 40 % of it a
replica is killed. Each size is judged and reported in a process of its own, so that the peak is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RATE = 50.0
CHUNKS = 50
SERVICE_S = 0.8
TIMEOUT_S = 60.0


def build(folder: Path, records: int) -> None:
    """Write a run of that many records: the run of the unit tests, longer, and thicker."""
    sys.path.insert(0, str(ROOT))
    from tests.unit import runs

    run = runs.healthy(rate=1.0)
    scale = records / RATE / (runs.END - runs.START)

    def stretched(mono: float) -> float:
        """Return an instant of the small run in the long one: the phases grow, the deed and its end do not."""
        if mono <= runs.BASELINE or scale <= 1:
            return mono
        return mono + (scale - 1) * (runs.END - runs.START) * (0.4 if mono < runs.RECOVERY else 1.0)

    for event in run.events:
        event["mono"] = stretched(event["mono"])
        if "at_mono" in event["data"]:
            event["data"]["at_mono"] = stretched(event["data"]["at_mono"])
    end = next(e["mono"] for e in run.events if e["event"] == "load.stopping")
    run.requests, run.ledger = [], []
    run.samples = _samples(runs.START, end)
    chunks = [round(100 + n * 14.0, 2) for n in range(CHUNKS)]
    with (folder / "requests.ndjson").open("w") as out, (folder / "ledger.ndjson").open("w") as ledger:
        count = int((end - runs.START) * RATE)
        for arrival in range(count):
            at = runs.START + arrival / RATE
            out.write(json.dumps(runs.record(arrival, at, chunks=chunks)) + "\n")
            ledger.write(json.dumps(runs.attempt(arrival, at, f"replica-{arrival % 3}")) + "\n")
    for data in run.of("load.stopped"):
        data |= {"drawn": count, "records": count, "outcomes": {"ok": count}}
    for data in run.of("collected"):
        data["lines"] = count
    journal = [runs.stamped(n, e) for n, e in enumerate(sorted(run.events, key=lambda e: float(e["mono"])), 1)]
    runs.lines(folder / "journal.jsonl", journal)
    runs.lines(folder / "samples.ndjson", run.samples)
    (folder / "plan.json").write_text(json.dumps(run.plan))


def _samples(begin: float, end: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for second in range(int(end - begin)):
        base: dict[str, Any] = {"mono": begin + second + 0.3, "ok": True}
        values = (("alerts", "prometheus", {"firing": 0}), ("router", "router", {"healthy": 3}))
        found += [base | {"probe": p, "subject": s, "values": v} for p, s, v in values]
        found.append(base | {"probe": "load", "subject": "generator", "values": {"n": second, "cpu": 0.2}})
    return found


def measure(folder: Path) -> None:
    """Judge and report one run; print seconds and peak memory as JSON."""
    from drills import report, verdict
    from drills.report import run as _loaded  # noqa: F401 - what is imported once is not the run's cost

    began = time.perf_counter()
    judged = verdict.write(folder)
    middle = time.perf_counter()
    report.write(folder)
    ended = time.perf_counter()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = {"judge_s": middle - began, "report_s": ended - middle, "peak_mb": peak_mb, "verdict": judged.verdict}
    print(json.dumps(told | {"reason": judged.reason}))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", default="10000,100000", help="sizes, comma-separated")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'records':>9} {'judge s':>9} {'report s':>9} {'peak MB':>9}  verdict")
    for records in map(int, options.records.split(",")):
        with tempfile.TemporaryDirectory() as name:
            build(Path(name), records)
            argv = [sys.executable, __file__, "--measure", name]
            done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        row = json.loads(done.stdout) | {"records": records}
        rows.append(row)
        print(f"{records:9,} {row['judge_s']:9.2f} {row['report_s']:9.2f} {row['peak_mb']:9.0f}  {row['verdict']}"
              f" {row['reason']}", flush=True)  # fmt: skip
    first, last = rows[0], rows[-1]
    growth = last["records"] / first["records"]
    figures = ", ".join(f"{key} x{last[key] / first[key]:.1f}" for key in ("judge_s", "report_s", "peak_mb"))
    print(f"x{growth:g} records: {figures}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        sys.path.insert(0, str(ROOT))
        measure(Path(sys.argv[2]))
    else:
        sys.exit(main())
