"""What a helper pod runs: `python -m drills.access.nodekeeper STATE_DIR [UNDO_S]` waits, and ends with nothing left on.

The timers of the pod die with it. So when it is told to end, by a deletion, a drain or its own deadline, every
timer is told first: it undoes its fault at once. Ledger proxies that it carries, which end once nothing leads to them,
are waited for as well: they answer what is open. Standard library only.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from drills.access import procs

#: Within the grace period of the pod.
UNDO_TIMEOUT_S = 25.0
TOLD = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def main(argv: list[str] | None = None) -> int:
    """Wait for a signal, then have everything undone; status 1 when a timer did not come to its end."""
    state_dir, *given = sys.argv[1:] if argv is None else argv
    undo_timeout_s = float(given[0]) if given else UNDO_TIMEOUT_S
    signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)
    receipts = Path(state_dir) / "receipts"
    receipts.mkdir(parents=True, exist_ok=True)
    print("ready", flush=True)
    signal.sigwait(TOLD)
    for pid, start in watching(receipts):
        procs.signal(pid, start, signal.SIGTERM)
    deadline = time.monotonic() + undo_timeout_s
    while any(watching(receipts)) or any(draining(receipts.parent / "proxies")):
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.05)
    return 0


def watching(receipts: Path) -> Iterator[tuple[int, int]]:
    """Yield pid and start of each timer that still watches over a fault."""
    for state in receipts.glob("*.timer.json"):
        try:
            said = json.loads(state.read_text())
            pid, start = int(said["pid"]), int(said["start"])
        except (OSError, ValueError, LookupError, TypeError, OverflowError):
            continue
        if said.get("state") in ("armed", "released") and procs.alive(pid, start):
            yield pid, start


def draining(proxies: Path) -> Iterator[tuple[int, int]]:
    """Yield pid and start of each ledger proxy that still runs."""
    for file in proxies.glob("*/proxy.json"):
        try:
            said = json.loads(file.read_text())
            pid, start = int(said["pid"]), int(said["start"])
        except (OSError, ValueError, LookupError, TypeError, OverflowError):
            continue
        if procs.alive(pid, start):
            yield pid, start


if __name__ == "__main__":
    sys.exit(main())
