"""The gate of a unit: a lock file that each start of it waits for. Pure.

A drop-in, put there once, makes the unit take a shared lock before it starts; whoever holds the file exclusively holds
the restart back, and lets it go by ending. Without it, or with the folder gone, the unit starts as if there were none.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

FOLDER: Final = "/run/drill-gate"
#: `+`: as root, whatever user the unit has. `-`: a gate that is broken keeps nobody from starting.
DROP_IN: Final = f"""[Service]
ExecStartPre=-+/bin/mkdir -m 0700 -p {FOLDER}
ExecStartPre=-+/usr/bin/flock --shared {FOLDER}/%n /bin/true
"""
_ARGV: Final = re.compile(r"argv\[\]=(.*?) ; ")
_OPTIONS: Final = ("-s", "--shared")


def gate_of(exec_start_pre: str) -> str | None:
    """Return the lock file for which a unit waits, by the property ExecStartPre as `systemctl show` has it."""
    for argv in _ARGV.findall(exec_start_pre):
        words = argv.split()
        if len(words) >= 4 and words[0].rsplit("/", 1)[-1] == "flock" and words[1] in _OPTIONS:
            return str(words[2]) if words[2].startswith("/") else None
    return None


def how_to(unit: str) -> tuple[str, ...]:
    """Return the lines that give the unit its gate: typed once, outside of any drill."""
    folder = f"/etc/systemd/system/{unit}.d"
    made, file = shlex.quote(folder), shlex.quote(f"{folder}/10-drill-gate.conf")
    lines = DROP_IN.splitlines()
    return (
        f"mkdir -p {made}; cat > {file} <<'END'",
        *lines,
        "END",
        f"systemctl daemon-reload; mkdir -m 0700 -p {FOLDER}",
    )
