"""Connections to an engine that are older than the proxy in front of it: they would go past it, so they are let go.

One that is idle is reset from the engine's side, so that its client hears of it at once and makes a new one. One that
carries a request is waited for, bounded; then it is reset as well, and said to be.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drills.errors import DrillError
from drills.plain import Json

#: Idle is who was answered, and has been silent for so long.
IDLE_S: Final = 0.75
WAIT_S, POLL_S, COMMAND_S = 10.0, 0.1, 10.0
_INFO: Final = re.compile(r"\b(lastsnd|lastrcv):(\d+)")
_MAPPED: Final = "::ffff:"


@dataclass(frozen=True)
class Link:
    """A connection as the engine has it: its other end, what waits in its queues, how long it has been silent."""

    address: str
    port: int
    queued: int  # bytes
    sent_s: float  # since the engine sent something
    got_s: float  # since the engine got something

    @property
    def idle(self) -> bool:
        """Whether the last that happened was an answer, some time ago."""
        return not self.queued and IDLE_S <= self.sent_s <= self.got_s


def beside(prefix: Sequence[str], spot: Json) -> list[Link]:
    """Return the connections to the engine that the spot's rules would lead through its proxy. Raises DrillError."""
    out = _ss(prefix, "-tinH", "state", "established", f"( sport = :{spot['port']} )")
    sources, own = spot.get("sources"), (spot["ip"], "127.0.0.1", "::1")
    return [link for link in read(out) if (link.address not in own if sources is None else link.address in sources)]


def let_go(prefix: Sequence[str], spot: Json) -> Json:
    """Wait until none is left, resetting idle ones at once and the others in the end; say how many of each."""
    done = {"idle": 0, "busy": 0}
    deadline = time.monotonic() + WAIT_S
    while left := beside(prefix, spot):
        late = time.monotonic() > deadline
        if time.monotonic() > deadline + COMMAND_S:
            raise DrillError(
                f"{len(left)} connections that were there before cannot be reset (does the kernel have "
                "CONFIG_INET_DIAG_DESTROY?); they would go past the proxy: restart their clients"
            )
        for link in (one for one in left if one.idle or late):
            where = f"( sport = :{spot['port']} and dport = :{link.port} and dst {_quoted(link.address)} )"
            _ss(prefix, "-KtH", "state", "established", where)
            done["idle" if link.idle else "busy"] += 1
        time.sleep(POLL_S)
    return done


def read(out: str) -> list[Link]:
    """Return the connections that `ss -tinH` tells of, each in two lines."""
    found: list[Link] = []
    lines = out.splitlines()
    for first, second in zip(lines, [*lines[1:], ""]):  # noqa: B905 - as long as each other; a host's zip may not know the word
        words = first.split()
        if first[:1].isspace() or len(words) < 4:
            continue
        address, _, port = words[3].rpartition(":")
        info = {name: int(ms) / 1000 for name, ms in _INFO.findall(second)}  # what is 0 is left out
        queued = int(words[0]) + int(words[1])
        plain = address.strip("[]").removeprefix(_MAPPED)
        found.append(Link(plain, int(port), queued, info.get("lastsnd", 0.0), info.get("lastrcv", 0.0)))
    return found


def _quoted(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _ss(prefix: Sequence[str], *words: str) -> str:
    argv = [*prefix, "ss", *words]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DrillError(f"ss: {error}") from None
    if done.returncode:
        raise DrillError(f"ss: {(done.stderr.strip().splitlines() or ['no reason given'])[0]}")
    return done.stdout
