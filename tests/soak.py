"""`make soak`: the healthy lab is drilled round after round, and no check may fail it.

For each round and drill it says the exit code, the verdict, the p99s, and what was inconclusive and why; it reads them
in verdict.json. The exit code is 0 when no drill of any round failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drills.errors import EXIT_INCONCLUSIVE, EXIT_PASS

DRILLS = ("upstream-delay", "packet-loss", "pod-kill", "gpu-reset")
DRILL_TIMEOUT_S = 900.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("drills", nargs="*", default=list(DRILLS), help=f"default: {' '.join(DRILLS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build/soak"), help="reports, logs and the lab's folder")
    parser.add_argument("--port-base", type=int, default=18000)
    asked = parser.parse_args(argv)
    if os.geteuid() != 0:
        print("soak: packet-loss needs root: run it as root", file=sys.stderr)
        return 2
    verdicts: list[dict[str, Any]] = []
    for number in range(1, asked.rounds + 1):
        verdicts += one_round(number, asked.drills, asked.folder / f"round-{number}", asked.port_base)
    return conclude(verdicts, asked.rounds * len(asked.drills))


def one_round(number: int, drills: Sequence[str], folder: Path, port_base: int) -> list[dict[str, Any]]:
    """Run all drills in one `drill run`, say how each ended, and return the verdicts."""
    folder.mkdir(parents=True, exist_ok=True)
    before, began = set(runs(folder)), time.monotonic()
    argv = [sys.executable, "-m", "drills.cli", "run", *drills, "--plain", f"--port-base={port_base}"]
    with (folder / "log").open("a") as log:
        code = subprocess.run(
            [*argv, f"--reports={folder}"],
            env={**os.environ, "DRILL_LAB_DIR": str(folder.absolute() / "lab")},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=DRILL_TIMEOUT_S * len(drills),
            check=False,
        ).returncode
    took_min = (time.monotonic() - began) / 60
    print(f"round {number}: exit code {code}, {took_min:.1f} min, log {folder / 'log'}", flush=True)
    found = [verdict_of(run) for run in sorted(set(runs(folder)) - before)]
    for verdict in found:
        for line in told(verdict):
            print(f"  {line}", flush=True)
    return found


def runs(folder: Path) -> Iterator[Path]:
    """Return the run folders below `folder`."""
    return (folder / "runs").glob("*-*")


def verdict_of(run: Path) -> dict[str, Any]:
    """Return verdict.json with the experiment's name; of a run without one, that there is none."""
    name = json.loads((run / "plan.json").read_text())["experiment"]["name"]
    try:
        found: dict[str, Any] = json.loads((run / "verdict.json").read_text())
    except FileNotFoundError:
        found = {"exit_code": None, "verdict": "none", "restored": "unknown", "reason": "no verdict.json", "checks": []}
    return {**found, "experiment": name}


def told(verdict: dict[str, Any]) -> list[str]:
    """Return what is worth a line of one drill."""
    rows = verdict["checks"]
    p99s = [f"{row['params']['metric']} p99 {_s(row['value'])}" for row in rows if _is_p99(row)]
    first = f"{verdict['experiment']:16} exit {verdict['exit_code']}  {verdict['verdict']:12} {', '.join(p99s)}"
    reason = [f"    {verdict['reason']}"] if verdict["verdict"] != "pass" else []
    odd = [row for row in rows if row["verdict"] != "pass"]
    return [first.rstrip(), *reason, *(f"    {row['check']}: {row['verdict']}: {row['reason']}" for row in odd)]


def _is_p99(row: dict[str, Any]) -> bool:
    return bool(row["check"] == "latency" and row["params"].get("quantile") == 0.99)


def _s(value: float | None) -> str:
    return "-" if value is None else f"{1000 * value:.0f} ms"


def conclude(verdicts: list[dict[str, Any]], planned: int) -> int:
    """Say the sums; 1 when a drill of a healthy lab failed, was refused, left something, or did not happen."""
    unclear = [v for v in verdicts if v["exit_code"] == EXIT_INCONCLUSIVE]
    wrong = [v for v in verdicts if v["exit_code"] not in (EXIT_PASS, EXIT_INCONCLUSIVE)]
    missing = planned - len(verdicts)
    passed = len(verdicts) - len(unclear) - len(wrong)
    print(f"{planned} drills: {passed} passed, {len(unclear)} inconclusive, {len(wrong)} wrong, {missing} did not run")
    for verdict in unclear:
        print(f"  inconclusive: {verdict['experiment']}: {verdict['reason']}")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
