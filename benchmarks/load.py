"""What a stream costs and how right its TTFT is: ours beside Locust's own HTTP users, in one run.

    python benchmarks/load.py [--rates 20,200] [--seconds 10]

One engine (pinned to the first core) serves 50-token streams, TTFT 100 ms, 10 ms a token; each client in turn
(pinned to the last core) gets the same load. Printed: arrivals the engine saw ÷ offered, CPU of the client's
process per stream, and the error of the client's TTFT against the engine's own log, p50 and p99, paired by
request id. Ratios compare numbers of one run on one machine; the absolute ones belong to that machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from drills.load.figures import quantile

ROOT = Path(__file__).resolve().parent.parent
TOKENS = 50
STREAM_S = 0.1 + 0.01 * TOKENS
LEAD_S = 2.0  # start-up, left out of all figures
CORES = sorted(os.sched_getaffinity(0))


# ---- the peers: a Locust process each ------------------------------------------------------------------


def peer(kind: str, url: str, rate: float, out: str) -> None:
    """Offer `rate` streams a second by Locust's own users (a closed loop of staggered users), until SIGTERM."""
    import locust  # first: it replaces parts of the standard library

    # isort: split
    import gevent
    import gevent.event
    from locust.env import Environment

    rows: list[tuple[str, float, float]] = []
    body = {"model": "m", "max_tokens": TOKENS, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    base = locust.HttpUser if kind == "HttpUser" else locust.FastHttpUser
    pace = max(STREAM_S * 1.5, 1.0)
    users = round(rate * pace)

    class Asker(base):  # type: ignore[misc, valid-type] # which base is known at run time only
        host = url
        wait_time = locust.constant_pacing(pace)

        def on_start(self) -> None:
            gevent.sleep(len(started) * pace / users)
            started.append(self)

        @locust.task
        def ask(self) -> None:
            name = f"peer-{len(rows)}-{time.monotonic_ns()}"
            sent, first = time.monotonic(), None
            headers = {"X-Request-Id": name}
            path = "/v1/chat/completions"
            with self.client.post(path, json=body, headers=headers, stream=True, catch_response=True) as answer:
                raw = getattr(answer, "_response", None)
                lines = answer.iter_lines() if raw is None else iter(lambda: raw.readline(b"\n"), b"")
                for line in lines:
                    if not line.startswith(b"data: {"):
                        continue
                    choices = json.loads(line[6:])["choices"]
                    if first is None and choices and choices[0]["delta"].get("content"):
                        first = time.monotonic()
            if first is not None:
                rows.append((name, sent, first))

    started: list[Any] = []
    environment = Environment(user_classes=[Asker])
    runner = environment.create_local_runner()
    stop = gevent.event.Event()
    gevent.signal_handler(signal.SIGTERM, stop.set)
    runner.start(users, spawn_rate=10_000)
    stop.wait(120)
    Path(out).write_text(json.dumps(rows))
    os._exit(0)


# ---- one measurement -----------------------------------------------------------------------------------


def ours(folder: Path, port: int, rate: float) -> list[str]:
    """Write the plan of our own load; return the command."""
    client = {"timeout_s": 30.0, "idle_timeout_s": 10.0, "connect_timeout_s": 3.0, "keepalive": True}
    plan = {
        "run": "be9c4a11",
        "url": f"http://127.0.0.1:{port}/v1",
        "model": "m",
        "seed": 1,
        "arrivals": {"kind": "constant", "rate": rate},
        "workload": {"answer_tokens": TOKENS},
        "client": client,
        "cap": 10_000,
        "max_duration_s": 120.0,
        "records": str(folder / "requests.ndjson"),
    }
    (folder / "load.json").write_text(json.dumps(plan))
    return [sys.executable, "-m", "drills.load.generator", str(folder / "load.json")]


def rows_of(kind: str, folder: Path) -> list[tuple[str, float, float]]:
    """Return (request id, sent, first token) as the client saw them."""
    if kind != "drills":
        rows: list[tuple[str, float, float]] = json.loads((folder / "rows.json").read_text())
        return rows
    records = [json.loads(line) for line in (folder / "requests.ndjson").read_text().splitlines()]
    return [(r["attempts"][0]["id"], r["sent"], r["first_token"]) for r in records if r["first_token"]]


def measure(kind: str, rate: float, seconds: float) -> dict[str, float]:
    """Run one client against a fresh engine and return its figures."""
    engine_argv = [sys.executable, "-m", "tests.load_engine", "--ttft-ms", "100", "--itl-ms", "10"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with subprocess.Popen(engine_argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
            assert engine.stdout is not None
            os.sched_setaffinity(engine.pid, {CORES[0]})
            port = int(engine.stdout.readline())
            me = [
                sys.executable,
                __file__,
                "--peer",
                kind,
                f"http://127.0.0.1:{port}",
                str(rate),
                str(folder / "rows.json"),
            ]
            argv = ours(folder, port, rate) if kind == "drills" else me
            try:
                begin, end, cpu_s, rss = drive(argv, seconds)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/log", timeout=30) as answer:
                    log = json.load(answer)
            finally:
                engine.kill()
        return figures(rows_of(kind, folder), log, begin, end, rate) | {"cpu_s": cpu_s, "rss_mb": rss / 1e6}


def drive(argv: list[str], seconds: float) -> tuple[float, float, float, int]:
    """Run the client; return begin and end of the measured span, its CPU seconds in it, and its peak RSS."""
    with subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as client:
        os.sched_setaffinity(client.pid, {CORES[-1]})
        process = psutil.Process(client.pid)
        time.sleep(LEAD_S)
        begin, before, rss = time.monotonic(), process.cpu_times(), 0
        while time.monotonic() < begin + seconds:
            time.sleep(0.25)
            rss = max(rss, process.memory_info().rss)
        after, end = process.cpu_times(), time.monotonic()
        time.sleep(STREAM_S + 0.5)  # let the streams of the span end
        client.terminate()
        client.wait(20)
    return begin, end, after.user + after.system - before.user - before.system, rss


def figures(
    rows: list[tuple[str, float, float]], log: list[Any], begin: float, end: float, rate: float
) -> dict[str, float]:
    """Return arrivals, their share of the offered ones, and TTFT errors in ms."""
    truth = {entry["id"]: entry for entry in log if begin <= entry["recv"] < end}
    errors = sorted(
        (first - sent - (truth[name]["first"] - truth[name]["recv"])) * 1e3
        for name, sent, first in rows
        if name in truth
    )
    p50, p99 = quantile(errors, 0.5), quantile(errors, 0.99)
    assert p50 is not None and p99 is not None, "no stream of the span could be paired"  # noqa: PT018
    return {"streams": len(truth), "held": len(truth) / (rate * (end - begin)), "p50": p50, "p99": p99}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", default="20,200", help="streams per second, comma-separated")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", default="drills,HttpUser,FastHttpUser")
    options = parser.parse_args()
    for rate in map(float, options.rates.split(",")):
        print(f"\n{rate:g} streams/s for {options.seconds:g} s, {TOKENS} tokens each")
        print(f"{'client':14}{'held':>7}{'CPU ms/stream':>15}{'TTFT error p50 / p99 ms':>26}{'RSS MB':>8}", end="")
        print("   over ours: CPU, p50, p99")
        base: dict[str, float] | None = None
        for kind in options.clients.split(","):
            row = measure(kind, rate, options.seconds)
            row["cpu"] = row["cpu_s"] / row["streams"] * 1e3
            base = base or row
            ratios = "  ".join(f"{row[key] / base[key]:5.1f}" for key in ("cpu", "p50", "p99"))
            errors = f"{row['p50']:.2f} / {row['p99']:.2f}"
            print(
                f"{kind:14}{row['held']:7.1%}{row['cpu']:15.2f}{errors:>26}{row['rss_mb']:8.0f}   {ratios}", flush=True
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5])
    else:
        main()
