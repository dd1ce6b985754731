"""What the job runs that resets a GPU: `python -m drills.access.resetrun NODE LIMIT_S COMMAND...`.

Runs the command once, for LIMIT_S seconds at most, and says as JSON how it ended: on stdout, in the container's
termination message, and its exit status on the node object, where the on-target timer finds it.

    {"rc", "text", "began_s", "ended_s"}     on the node's own uptime clock, seconds

It ends with status 0 whatever the command did: a second pod must never be made because the first one failed.
Standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from drills.access import nodemarks

KILL_AFTER_S = 10  # a command that ignores TERM
TEXT_LIMIT = 2000  # a termination message holds 4,096 bytes
MESSAGE = Path("/dev/termination-log")
TELLS = 5  # times


def main(argv: list[str]) -> int:
    """Run it; status 0 when there is an end to tell of."""
    node, limit_s, *command = argv
    began_s = _uptime_s()
    bounded = ["timeout", "-k", str(KILL_AFTER_S), limit_s, *command]
    done = subprocess.run(
        bounded,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    ended = {"rc": done.returncode, "text": done.stdout[:TEXT_LIMIT], "began_s": began_s, "ended_s": _uptime_s()}
    print(json.dumps(ended), flush=True)
    MESSAGE.write_text(json.dumps(ended))
    _note(node, done.returncode)
    return 0


def _uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def _note(node: str, rc: int) -> None:
    """Write the status on the node; whoever puts it back without that knows no end, and keeps it cordoned."""
    body = {"metadata": {"annotations": {nodemarks.ENDED: str(rc)}}}
    for _ in range(TELLS):
        try:
            nodemarks.InCluster().patch(node, body)
        except nodemarks.Problem as problem:
            print(problem, file=sys.stderr)
            time.sleep(1.0)
        else:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
