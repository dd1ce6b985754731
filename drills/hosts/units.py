"""The units of one machine as systemd tells of them, with their processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from drills.access import procs
from drills.access.podprocs import ENGINE_TITLE
from drills.errors import DrillError, Refused
from drills.hosts.gate import gate_of
from drills.model import Host
from drills.unitnames import whole

SHOW_TIMEOUT_S: Final = 10.0
#: Several threads look at the same time: a look that began so recently serves them all.
FRESH_S: Final = 0.2
#: A machine that has just not answered is not asked by each of them in turn.
SILENT_S: Final = 1.0
_SHOWN: Final = (
    "Id", "LoadState", "ActiveState", "SubState", "InvocationID", "MainPID", "NRestarts", "Restart", "ExecStartPre",
)  # fmt: skip
Process = tuple[int, int]  # pid and start


@dataclass(frozen=True)
class Seen:
    """A unit as it was looked at."""

    unit: str
    loaded: str  # systemd's own words
    active: str
    sub: str
    uid: str  # of its present run, or of the last one while it does not run
    restarts: int  # by systemd itself
    policy: str  # Restart=
    gate: str | None  # the lock file that each start waits for
    main: Process | None
    engine: Process | None
    several: bool = False  # processes of that title: which is the engine nobody can say

    @property
    def runs(self) -> bool:
        """Whether its main process is there."""
        return self.main is not None and self.active == "active"


class UnitLooks:
    """Looks at some units of one machine. `look` may be called from several threads."""

    def __init__(self, host: Host, units: Sequence[str]) -> None:
        self.host, self.units = host, tuple(dict.fromkeys(whole(unit) for unit in units))
        self._lock = threading.Lock()
        self._began = self._ended = float("-inf")
        self._last: dict[str, Seen] = {}
        self._problem: DrillError | None = None
        self._starts: dict[tuple[str, int], int | None] = {}
        self._engines: dict[Process, Process] = {}

    def look(self) -> dict[str, Seen]:
        """Return the units as they are now, by their whole names. Raises Unreachable, Refused."""
        with self._lock:
            if self._problem is not None and time.monotonic() - self._ended < SILENT_S:
                raise self._problem
            if self._problem is None and time.monotonic() - self._began < FRESH_S:
                return self._last
            began = time.monotonic()
            try:
                self._last, self._problem = {one.unit: one for one in self._all()}, None
            except DrillError as error:
                self._problem = error
                raise
            finally:
                self._began, self._ended = began, time.monotonic()
            return self._last

    def _all(self) -> Iterator[Seen]:
        argv = ["systemctl", "show", "--no-pager", f"--property={','.join(_SHOWN)}", "--", *self.units]
        done = self.host.run(argv, timeout_s=SHOW_TIMEOUT_S)
        blocks = parsed(done.out)
        if done.rc != 0 or len(blocks) != len(self.units):
            why = "timed out" if done.timed_out else (done.err.strip().splitlines() or ["no answer"])[-1][:200]
            raise Refused(f"{self.host.name}: systemctl show: status {done.rc}: {why}")
        for unit, said in zip(self.units, blocks, strict=True):
            yield self._seen(unit, said)

    def _seen(self, unit: str, said: dict[str, str]) -> Seen:
        main = self._main(said["InvocationID"], int(said["MainPID"] or 0))
        engines = self._found(main) if main else []
        return Seen(
            unit=unit,
            loaded=said["LoadState"],
            active=said["ActiveState"],
            sub=said["SubState"],
            uid=said["InvocationID"],
            restarts=int(said.get("NRestarts") or 0),
            policy=said.get("Restart", ""),
            gate=gate_of(said.get("ExecStartPre", "")),
            main=main,
            engine=engines[0] if len(engines) == 1 else None,
            several=len(engines) > 1,
        )

    def _main(self, uid: str, pid: int) -> Process | None:
        """Return the main process, None when there is none, or it is gone already."""
        if not pid:
            return None
        if (uid, pid) not in self._starts:
            text = self.host.read(f"/proc/{pid}/stat")
            self._starts = {(uid, pid): procs.parse_stat(text)[2] if text else None, **self._starts}
        start = self._starts[uid, pid]
        return None if start is None else (pid, start)

    def _found(self, main: Process) -> list[Process]:
        """Return its EngineCore; of none or several it cannot be said which is meant."""
        known = self._engines.get(main)
        if known is not None and self.host.alive(*known):
            return [known]
        found = [p for p in self.host.tree(*main) if str(p["title"]).startswith(ENGINE_TITLE)]
        engines = [(int(p["pid"]), int(p["start"])) for p in found]
        if len(engines) == 1:
            self._engines[main] = engines[0]
        return engines


def parsed(text: str) -> list[dict[str, str]]:
    """Return what `systemctl show` says of each unit; a property that is there several times is put together."""
    blocks: list[dict[str, str]] = []
    for block in text.strip("\n").split("\n\n"):
        said: dict[str, str] = {}
        for line in block.splitlines():
            key, _, value = line.partition("=")
            said[key] = f"{said[key]} {value}" if key in said else value
        blocks += [said] if said else []
    return blocks
