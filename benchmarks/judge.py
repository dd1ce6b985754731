"""What judging and reporting a run cost as it grows: seconds and peak memory, and how they grow with the records.

    python benchmarks/judge.py [--records 10000,100000,1000000]

The run is made up: records as the load generator writes them, 50 chunks each, one attempt of each in the ledger, and
all that probes see each second; a replica is killed in the middle of it. Ten times the records come in about three
times the time, so both the rate and the length of the run grow. Each size is judged and reported in a process of its
own, so that the peak is its own.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHUNKS = 50
LEAST_S = 200.0
LEAST_RECORDS = 10_000
TIMEOUT_S = 300.0
#: What one million records may take on two cores.
PROMISED = {"records": 1_000_000, "s": 20.0, "peak_mib": 1536.0}


def build(folder: Path, records: int) -> None:
    """Write a run of that many records: the run of the unit tests, longer, and thicker."""
    sys.path.insert(0, str(ROOT))
    from tests.unit import runs

    run = runs.healthy(rate=20.0)
    short_s = runs.END - runs.START
    long_s = LEAST_S * math.sqrt(records / LEAST_RECORDS)
    grown: float = max(0.0, long_s - short_s)

    def stretched(mono: float) -> float:
        """Return an instant of the small run in the long one: the phases grow, the deed and its end do not."""
        if mono <= runs.BASELINE:
            return mono
        share = 0.4 if mono < runs.RECOVERY else 1.0
        return mono + grown * share

    for event in run.events:
        event["mono"] = stretched(event["mono"])
        if "at_mono" in event["data"]:
            event["data"]["at_mono"] = stretched(event["data"]["at_mono"])
    end = next(float(e["mono"]) for e in run.events if e["event"] == "load.stopping")
    hit = stretched(runs.HIT)
    count = _requests(folder, records, runs.START, end, hit)
    run.samples = _samples(run.samples, runs.START, end, stretched)
    for data in run.of("load.stopped"):
        data |= {"drawn": count, "records": count, "outcomes": {"ok": count}}
    for data in run.of("collected"):
        data["lines"] = count
    journal = [runs.stamped(n, e) for n, e in enumerate(sorted(run.events, key=lambda e: float(e["mono"])), 1)]
    runs.lines(folder / "journal.jsonl", journal)
    runs.lines(folder / "samples.ndjson", run.samples)
    (folder / "plan.json").write_text(json.dumps(run.plan))


def _requests(folder: Path, records: int, begin: float, end: float, hit: float) -> int:
    """Write request records and the ledger, evenly spread; returns how many."""
    from tests.unit import runs

    step = (end - begin) / records
    with (folder / "requests.ndjson").open("w") as out, (folder / "ledger.ndjson").open("w") as ledger:
        for arrival in range(records):
            at = begin + arrival * step
            # Times of one answer after another differ a little, as real ones do.
            first = 0.08 + 0.05 * ((arrival * 7919) % 1000) / 1000
            gap = 0.0130 + 0.0004 * ((arrival * 104729) % 100) / 100
            last = round(at + first + (CHUNKS - 1) * gap, 6)
            token, at = round(at + first, 6), round(at, 6)
            chunks = ",".join([f"{1000 * (first + n * gap):.2f}" for n in range(CHUNKS)])
            sent = round(at + 0.001, 6)
            out.write(
                f'{{"arrival":{arrival},"session":{arrival // 4},"turn":{arrival % 4 + 1},"intended":{at},'
                f'"wall":{runs.WALL + at - begin:.6f},"outcome":"ok","tokens_asked":{CHUNKS},"sent":{sent},'
                f'"headers":{token},"first_token":{token},"last_token":{last},"end":{last},"error":null,"status":200,'
                f'"detail":"","model":"lab-chat","cached":false,"tokens":{CHUNKS},"finish":"length","done":true,'
                f'"lag":0.001,"attempts":[{{"attempt":0,"id":"{runs.RUN}-{arrival}-0","sent":{sent},'
                f'"headers":{token},"first_token":{token},"last_token":{last},"end":{last},"outcome":"ok",'
                f'"error":null,"status":200}}],"chunks":[{chunks}],"dup":false}}\n'
            )
            name = runs.REPLICAS[arrival % 3]
            if name == runs.VICTIM and at < runs.BACK - runs.HIT + hit and last > hit:
                name = runs.REPLICAS[0]
            ledger.write(
                f'{{"replica": "{name}", "role": "primary", "id": "{runs.RUN}-{arrival}-0", '
                f'"method": "POST", "path": "/v1/chat/completions", "start": {at + 0.002:.6f}, '
                f'"connected": {at:.6f}, "first_byte": {token}, "last_byte": {last}, "end": {last}, "status": 200, '
                f'"bytes": 7798, "close": "complete"}}\n'
            )
    return records


def _samples(
    small: list[dict[str, Any]], begin: float, end: float, stretched: Callable[[float], float]
) -> list[dict[str, Any]]:
    """Return what the probes saw, each second, of the long run: what each saw last at that stage of the small one."""
    waiting = sorted(small, key=lambda sample: float(sample["mono"]))
    last: dict[tuple[str, str], dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    for second in range(int(end - begin)):
        now = begin + second + 0.3
        while waiting and stretched(waiting[0]["mono"]) <= now + 0.01:
            sample = waiting.pop(0)
            last[sample["probe"], sample["subject"]] = sample
        found += [sample | {"mono": now} for sample in last.values()]
    return found


def measure(folder: Path) -> None:
    """Judge and report one run as a run itself does at its end; print seconds and peak memory as JSON."""
    from drills import report, verdict
    from drills.report import run as _loaded  # noqa: F401 - what is imported once is not the run's cost

    began, began_cpu = time.perf_counter(), time.process_time()
    judged, seen = verdict.written(folder)
    middle = time.perf_counter()
    report.write(folder, seen)
    ended = time.perf_counter()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = {"judge_s": middle - began, "report_s": ended - middle, "cpu_s": time.process_time() - began_cpu}
    print(json.dumps(told | {"peak_mib": peak_mib, "verdict": judged.verdict, "reason": judged.reason}))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", default="10000,100000,1000000", help="sizes, comma-separated")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'records':>9} {'judge s':>9} {'report s':>9} {'CPU s':>9} {'peak MiB':>9}  verdict")
    for records in map(int, options.records.split(",")):
        with tempfile.TemporaryDirectory() as name:
            build(Path(name), records)
            argv = [sys.executable, __file__, "--measure", name]
            done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        row = json.loads(done.stdout) | {"records": records}
        rows.append(row)
        print(f"{records:9,} {row['judge_s']:9.2f} {row['report_s']:9.2f} {row['cpu_s']:9.2f} {row['peak_mib']:9.0f}"
              f"  {row['verdict']} {row['reason'][:60]}", flush=True)  # fmt: skip
    first, last = rows[0], rows[-1]
    growth = last["records"] / first["records"]
    figures = ", ".join(f"{key} x{last[key] / first[key]:.1f}" for key in ("judge_s", "report_s", "peak_mib"))
    print(f"x{growth:g} records: {figures}")
    for row in rows:
        if row["records"] == PROMISED["records"]:
            took = f"{row['judge_s'] + row['report_s']:.1f} s and {row['peak_mib']:,.0f} MiB"
            promised = f"{PROMISED['s']:g} s and {PROMISED['peak_mib']:,.0f} MiB on two cores that do nothing else"
            print(f"{PROMISED['records']:,} records: {took}; promised: {promised}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        sys.path.insert(0, str(ROOT))
        measure(Path(sys.argv[2]))
    else:
        sys.exit(main())
