"""Start a unit again that a planned reset of a GPU has stopped; runs on the target, may run twice.

    gpu_units --note NOTE --unit UNIT [--unless BASE ...]

NOTE is written before the unit is stopped, and removed here once it is up or on its way up: without it the unit was
not stopped by us, or is back, and is left alone. BASE.* are the notes of the resets of its GPUs (`gpu_restore`): while
one of them is for a person to look at, or went wrong and nobody has judged it, the unit stays stopped and the status
is 1. A unit is started by its name and by nothing else: never enabled, and nothing is loaded anew. Standard library
only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

try:
    from drills.access import gpu_restore
except ImportError:  # copied to a host, beside gpu_restore.py
    import gpu_restore  # type: ignore[import-not-found, no-redef] # there only on a host

UP_TIMEOUT_S = 40.0  # until it is on its way up
AGAIN_S = 0.2
COMMAND_TIMEOUT_S = 20.0
UP = ("active", "reloading")


def main(argv: list[str] | None = None) -> int:
    """Start it; status 1 with a sentence on stderr when it is not on its way up."""
    parser = argparse.ArgumentParser(description="start a unit again that a planned reset of a GPU has stopped")
    parser.add_argument("--note", type=Path, required=True)
    parser.add_argument("--unit", required=True)
    parser.add_argument("--unless", nargs="*", default=[])
    asked = parser.parse_args(argv)
    if not asked.note.exists():
        return 0
    why = _not_well(asked.unless) or _start(asked.unit)
    if why:
        print(f"unit {asked.unit}: {why}", file=sys.stderr)
        return 1
    asked.note.unlink(missing_ok=True)
    return 0


def _not_well(bases: list[str]) -> str | None:
    """Say which GPU keeps the unit stopped."""
    for base in bases:
        if why := gpu_restore.open_question(base):
            return f"stays stopped: {why}"
    return None


def _start(unit: str) -> str | None:
    """Have it started; returns what keeps it from coming up."""
    told = _systemctl("--no-block", "start", unit)
    if told.returncode != 0:
        return f"cannot be started: {' '.join(told.stderr.split())[:200]}"
    deadline, state = time.monotonic() + UP_TIMEOUT_S, ""
    while time.monotonic() < deadline:
        said = _systemctl("show", "--property=ActiveState,Job", unit).stdout
        found = dict(line.partition("=")[::2] for line in said.splitlines())
        state, job = found.get("ActiveState", "unknown"), found.get("Job", "")
        queued = job not in ("", "0")
        # Systemd itself starts one that is still being stopped once it has stopped, however long that takes.
        if state == "activating" or (queued and state == "deactivating") or (not queued and state in UP):
            return None
        if state == "failed" and not queued:
            break
        time.sleep(AGAIN_S)
    return f"was told to start and is {state}; look at it: systemctl status {unit}"


def _systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    argv = ["systemctl", *words]
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 127, "", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
