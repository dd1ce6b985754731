"""Lines (`drills.access.lateness`) that begin on another machine, for servers that only it can reach as users do.

Here `FarLine` stands for one; there a keeper holds it, a process that lives as long as that machine's helper. Where
there is none it is `passing`, and ends once it has nothing to hold:

    python -m drills.access.farlines serve SOCKET [passing]    hold lines, and take orders on a Unix socket
    python -m drills.access.farlines tell SOCKET               pass one order on, JSON on one line; print the answer

Orders: {"do": "ask", "lines": [{id, name, url, since}], "patience_s", "wait_s"}, {"do": "look", "ids", "wait_s"},
{"do": "send", "lines"}, {"do": "give_up", "ids"}, {"do": "close", "ids"}. Each is answered with what is known of its
lines: {id: {took_s, error, since, done}}.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drills.access.lateness import HURRY_S, Line
from drills.errors import DrillError
from drills.plain import Json

if TYPE_CHECKING:
    from drills.model import Host

START_S, POLL_S, LOOK_S = 10.0, 0.1, 1.0
COMMAND_S = 15.0
#: A passing keeper ends when it has held nothing for so long, or has heard nothing: nobody comes any more.
IDLE_S, SILENT_S = 3.0, 600.0
#: The machine's own network: from there its pods are reached whatever the policies say.
PROGRAM = ("nsenter", "--net=/proc/1/ns/net")


class FarLine:
    """One line that begins on another machine; the same words as `Line`."""

    def __init__(self, host: Host, folder: str, name: str, url: str, since: str, *, passing: bool = False) -> None:
        self.host, self.folder, self.passing = host, folder, passing
        self.id, self.name, self.url, self.since = uuid.uuid4().hex, name, url, since
        self.took_s: float | None = None
        self.error = ""
        self._held = False

    def send(self) -> bool:
        """Put a request on its way; False, with `error`, when that is not possible."""
        send_all([self])
        return not self.error

    def close(self) -> None:
        """Close the connection."""
        close_all([self])

    def order(self) -> Json:
        """Return what a keeper must know of it."""
        self._held = True
        return {"id": self.id, "name": self.name, "url": self.url, "since": self.since}

    def take(self, said: Json | None, problem: str) -> None:
        """Take in what the keeper says, or why it says nothing."""
        if said is None:
            self.took_s, self.error = None, problem or "its connection is not held any more"
        else:
            self.took_s, self.error, self.since = said["took_s"], said["error"], said["since"]

    @property
    def held(self) -> bool:
        """Whether a keeper was told of it."""
        return self._held


# ---- here ----------------------------------------------------------------------------------------------


def ask_all(lines: Sequence[FarLine], patience_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
    """Measure one answer on each line, all at once. Once `hurry` says so, it waits for a moment more only."""
    deadline = time.monotonic() + patience_s + COMMAND_S
    asked: Json = {"do": "ask", "patience_s": patience_s}
    waits = _ordered(lines, asked, of=lambda mine: {"lines": [line.order() for line in mine]})
    given_up = False
    while waits and time.monotonic() < deadline:
        if hurry() and not given_up:
            given_up, deadline = True, time.monotonic() + HURRY_S + COMMAND_S
            _ordered(waits, {"do": "give_up"}, of=_ids)
        waits = _ordered(waits, {"do": "look"}, of=_ids)


def send_all(lines: Sequence[FarLine]) -> None:
    """Put a request on its way on each line."""
    _ordered(lines, {"do": "send"}, of=lambda mine: {"lines": [line.order() for line in mine]})


def close_all(lines: Sequence[FarLine]) -> None:
    """Close the connections; one that cannot be closed ends with its keeper."""
    with suppress(DrillError):
        _ordered([line for line in lines if line.held], {"do": "close"}, of=_ids)


def _ids(lines: Sequence[FarLine]) -> Json:
    return {"ids": [line.id for line in lines]}


def _ordered(lines: Sequence[FarLine], order: Json, *, of: Callable[[Sequence[FarLine]], Json]) -> list[FarLine]:
    """Give each machine its order; returns the lines whose answers are still awaited."""
    waits = []
    for name in sorted({line.host.name for line in lines}):
        mine = [line for line in lines if line.host.name == name]
        said, problem = _told(mine[0], order | {"wait_s": LOOK_S} | of(mine))
        for line in mine:
            line.take(said.get(line.id), problem)
            waits += [line] if line.id in said and not said[line.id]["done"] else []
    return waits


def _told(line: FarLine, order: Json) -> tuple[Json, str]:
    """Return what the keeper of a line's machine says, and why it says nothing."""
    host, path = line.host, f"{line.folder}/lines"
    argv = [host.python, "-m", "drills.access.farlines"]
    done = host.run([*argv, "tell", path], timeout_s=COMMAND_S, stdin=json.dumps(order) + "\n")
    if done.rc == NOBODY:
        serving = [*PROGRAM, *argv, "serve", path, *(["passing"] if line.passing else [])]
        host.spawn(serving, log=f"{path}.log")
        done = host.run([*argv, "tell", path], timeout_s=COMMAND_S, stdin=json.dumps(order) + "\n")
    try:
        found: Json = json.loads(done.out)
        return found, ""
    except ValueError:
        return {}, "timed out" if done.timed_out else (done.err.strip().splitlines() or ["no answer"])[-1][:200]


# ---- there ---------------------------------------------------------------------------------------------

#: Exit status of `tell` when no keeper is there: at first it is not, after that it has START_S to come up.
NOBODY = 3


class Keeper:
    """Holds lines by id; each answer is waited for by a thread of its own."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._asked: dict[str, threading.Thread] = {}
        self._heard_mono = time.monotonic()

    def done(self) -> bool:
        """Whether nobody needs it any more."""
        silent_s = time.monotonic() - self._heard_mono
        return silent_s > (SILENT_S if self._lines else IDLE_S)

    def carry_out(self, order: Json) -> Json:
        """Carry out one order and say what is known of its lines."""
        self._heard_mono = time.monotonic()
        ids = [one["id"] for one in order.get("lines", ())] or list(order.get("ids", ()))
        for one in order.get("lines", ()):
            self._lines.setdefault(one["id"], Line(one["name"], one["url"], one["since"]))
        known = [name for name in ids if name in self._lines]
        do = order["do"]
        for name in known:
            if do == "ask":
                self._ask(name, float(order["patience_s"]))
            elif do == "send":
                self._lines[name].send()
            elif do == "give_up":
                self._lines[name].give_up()
            elif do == "close":
                self._lines.pop(name).close()
        if do == "close":
            return {}
        self._wait(known, float(order.get("wait_s", 0.0)))
        return {name: self._said(name) for name in known}

    def _ask(self, name: str, patience_s: float) -> None:
        thread = threading.Thread(target=self._lines[name].ask, args=(patience_s,), daemon=True)
        self._asked[name] = thread
        thread.start()

    def _wait(self, names: Sequence[str], wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        for name in names:
            if (thread := self._asked.get(name)) is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _said(self, name: str) -> Json:
        line, thread = self._lines[name], self._asked.get(name)
        done = thread is None or not thread.is_alive()
        return {"took_s": line.took_s, "error": line.error, "since": line.since, "done": done}


def serve(path: str, *, passing: bool = False) -> None:
    """Take orders for ever, or until nobody needs it; where a keeper takes them already, end at once."""
    if _reachable(path):
        return
    Path(path).unlink(missing_ok=True)  # of a keeper that is gone
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(path)
        server.listen(16)
        server.settimeout(POLL_S if passing else None)
        keeper = Keeper()
        while not (passing and keeper.done()):
            with suppress(TimeoutError, socket.timeout):  # two classes before Python 3.10
                link, _ = server.accept()
                threading.Thread(target=_answer, args=(keeper, link), daemon=True).start()
        for left in (f"{path}.log", path):  # the log first: who finds no socket then waits for no keeper
            Path(left).unlink(missing_ok=True)


def _reachable(path: str) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as link:
        return link.connect_ex(path) == 0


def _answer(keeper: Keeper, link: socket.socket) -> None:
    with closing(link), suppress(OSError, ValueError), link.makefile("rw") as file:
        file.write(json.dumps(keeper.carry_out(json.loads(file.readline()))) + "\n")


def tell(path: str, order: str) -> int:
    """Pass an order on and print the answer; status 3 when no keeper takes it."""
    deadline = time.monotonic() + (START_S if Path(f"{path}.log").exists() else 0.0)
    while True:
        with closing(socket.socket(socket.AF_UNIX)) as link:
            try:
                link.connect(path)
            except OSError:
                if time.monotonic() >= deadline:
                    return NOBODY
                time.sleep(POLL_S)
                continue
            with link.makefile("rw") as file:
                file.write(order)
                file.flush()
                said = file.readline()
            print(said, end="")
            return 0 if said else NOBODY  # it was ending at this moment


def main(argv: list[str]) -> int:
    """Serve or tell."""
    command, path, *how = argv
    if command == "serve":
        serve(path, passing="passing" in how)
        return 0
    return tell(path, sys.stdin.readline())


def any_line(found: Json, host_of: Callable[[str], Host], name: str, since: str) -> Line | FarLine:
    """Return a line to a proxy: from here, or from its own machine where it has one."""
    if found.get("host") is None:
        return Line(name, found["listen"], since)
    passing = bool(found.get("passing"))
    return FarLine(host_of(found["host"]), found["folder"], name, found["listen"], since, passing=passing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
