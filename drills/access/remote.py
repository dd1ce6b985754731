"""Another machine as a `Host`: each call is one short process there, JSON in, JSON out.

Here `RemoteHost` hands the call to a carrier (an exec into a pod, a command over SSH). There
`python -m drills.access.remote` makes it on its own machine, as `LocalHost` does; with the word `serve` it makes one
for each line that comes, all at the same time, and each answer carries the number `n` of its line. An empty line is a
sign of life: with a number of seconds after `serve` it ends once no line has come for so long and nothing is under way.

What changes something may arrive after whoever asked for it has given it up, and is not done then. It says within which
time it must arrive (`within_s`), and, over a lasting link, how long after that was opened it was sent (`sent_s`); the
process there counts from its own begin, so that no clock is compared with another one. What belongs to a fault says to
which receipt as well, and is done behind that one's fence (`drills.access.fence`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from drills.access import fence
from drills.access.local import LocalHost
from drills.errors import Refused, Unreachable
from drills.plain import Completed, Json

PROGRAM = "drills.access.remote"
SERVE = "serve"
CALL_TIMEOUT_S = 15.0
#: On top of what a command may take: to get there, to start, and to come back.
WAY_S = 10.0
CALLS = ("run", "spawn", "read", "write", "remove", "list", "signal", "alive", "tree")
#: Calls that change nothing, so that they may be made twice, and late.
READS = frozenset({"read", "list", "alive", "tree"})
BEGAN_MONO = time.monotonic()  # of the process that answers

#: Takes the words of a command, its input and its deadline in seconds; returns how it ended. Raises DrillError when
#: it cannot say that. The input is one line: no carrier has to say where it ends.
Carry = Callable[[Sequence[str], str, float], Completed]


class FailedThere(Refused):
    """The machine was reached, and could not do what it was asked for."""


class RemoteHost:
    """Implements Host over a carrier. A call raises Unreachable when there is no answer, Refused when it is no."""

    def __init__(
        self, name: str, carry: Carry, *, python: str = "python3", call_timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self.name, self.python, self._carry, self._call_timeout_s = name, python, carry, call_timeout_s

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        """Run a command to its end; a timeout is a result."""
        found = self._call("run", timeout_s + WAY_S, argv=list(argv), timeout_s=timeout_s, stdin=stdin)
        return Completed(**{**found, "argv": tuple(found["argv"])})

    def spawn(self, argv: Sequence[str], *, log: str) -> None:
        """Start a command that outlives driver and link; its output goes to the file `log`."""
        self._call("spawn", argv=list(argv), log=log)

    def read(self, path: str) -> str | None:
        """Return a file's text, None when it is not there."""
        found: str | None = self._call("read", path=path)
        return found

    def write(self, path: str, text: str, *, mode: int = 0o600) -> None:
        """Write a file in one step."""
        self._call("write", path=path, text=text, mode=mode)

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""
        self._call("remove", path=path)

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; a folder that is not there is empty."""
        return [str(name) for name in self._call("list", folder=folder)]

    def signal(self, pid: int, pid_start: int, signal: str) -> bool:
        """Signal the process that pid + start name; False when it is gone."""
        return bool(self._call("signal", pid=pid, pid_start=pid_start, signal=signal))

    def alive(self, pid: int, pid_start: int) -> bool:
        """Whether that very process still runs."""
        return bool(self._call("alive", pid=pid, pid_start=pid_start))

    def tree(self, pid: int, pid_start: int) -> Sequence[Json]:
        """Return {pid, start, title} of every live descendant of that very process, nearest first."""
        found: Sequence[Json] = self._call("tree", pid=pid, pid_start=pid_start)
        return found

    def _call(self, call: str, timeout_s: float | None = None, /, **arguments: Any) -> Any:
        order: Json = {"call": call, "arguments": arguments}
        if call not in READS:
            order["within_s"] = WAY_S
            if receipt := fence.receipt_for(self.name):
                order["receipt"] = receipt
        asked = json.dumps(order) + "\n"
        done = self._carry([self.python, "-m", PROGRAM], asked, timeout_s or self._call_timeout_s)
        try:
            answer: Json = json.loads(done.out)
        except ValueError:
            why = "timed out" if done.timed_out else (done.err.strip().splitlines() or ["no output"])[-1][:200]
            raise Unreachable(f"{self.name}: {call}: status {done.rc}: {why}") from None
        if answer.get("late"):
            raise Unreachable(f"{self.name}: {call}: {answer['error']}")
        if not answer["ok"]:
            raise FailedThere(f"{self.name}: {call}: {answer['error']}")
        return answer["value"]


def answer(asked: str) -> Json:
    """Make one call on this machine; whatever goes wrong with it is an answer too."""
    order = json.loads(asked)
    if order["call"] not in CALLS:
        return {"ok": False, "error": f"no such call: {order['call']}"}
    late_s = time.monotonic() - BEGAN_MONO - order.get("sent_s", 0.0)
    if late_s > order.get("within_s", float("inf")):
        return {"ok": False, "late": True, "error": f"came {late_s:.0f} s late, and was not carried out"}
    try:
        value = _made(order)
    except fence.Shut as error:
        return {"ok": False, "error": str(error)}
    except Exception as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {"ok": True, "value": asdict(value) if isinstance(value, Completed) else value}


def _made(order: Json) -> Any:
    call = getattr(LocalHost(), order["call"])
    if "receipt" not in order:
        return call(**order["arguments"])
    with fence.behind(Path(order["receipt"])):
        return call(**order["arguments"])


def serve(lines: Iterable[str], out: TextIO, silence_s: float | None = None) -> None:
    """Make calls until no more line comes. What is still being carried out then goes on, and is answered to nobody."""
    server = _Server(out)
    if silence_s is not None:
        threading.Thread(target=server.watch, args=(silence_s,), daemon=True).start()
    for line in lines:
        server.heard_mono = time.monotonic()
        if line.strip():
            server.begin(line)


class _Server:
    def __init__(self, out: TextIO) -> None:
        self.out, self.lock, self.busy, self.heard_mono = out, threading.Lock(), 0, time.monotonic()

    def begin(self, asked: str) -> None:
        with self.lock:
            self.busy += 1
        threading.Thread(target=self._one, args=(asked,), daemon=True).start()

    def _one(self, asked: str) -> None:
        said = json.dumps({"n": json.loads(asked)["n"], **answer(asked)}) + "\n"
        with self.lock, suppress(OSError, ValueError):
            self.busy, self.heard_mono = self.busy - 1, time.monotonic()
            self.out.write(said)
            self.out.flush()

    def watch(self, silence_s: float) -> None:
        """End the process when whoever asked is silent: a link that was cut may not end for hours."""
        while self.busy or time.monotonic() - self.heard_mono < silence_s:
            time.sleep(min(1.0, silence_s / 4))
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(iter(sys.stdin.readline, ""), sys.stdout, *map(float, sys.argv[2:]))
    else:
        print(json.dumps(answer(sys.stdin.readline())))
