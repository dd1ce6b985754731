"""`make bench`: every benchmark in turn, each printing ratios within one run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 7


def main() -> int:
    """Run them all; the worst exit status is ours."""
    print(f"drill --help: {help_s() * 1e3:.0f} ms (median of {ROUNDS}), an empty python: {empty_s() * 1e3:.0f} ms")
    here = Path(__file__).parent
    worst = 0
    for path in sorted(p for p in here.glob("*.py") if not p.name.startswith("_")):
        print(f"\n--- {path.stem}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, "-m", f"benchmarks.{path.stem}"], check=False).returncode)
    return worst


def help_s() -> float:
    """Return the median seconds of `drill --help`."""
    return _median([sys.executable, "-m", "drills.cli", "--help"])


def empty_s() -> float:
    """Return the median seconds of an interpreter that does nothing."""
    return _median([sys.executable, "-c", "pass"])


def _median(command: list[str]) -> float:
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - began)
    return sorted(taken)[ROUNDS // 2]


if __name__ == "__main__":
    sys.exit(main())
