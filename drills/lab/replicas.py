"""One replica as its controller and supervisor see it: started, watched, buried, started again.

starting → ready → (ends) → backoff → gated → starting        same uid, restarts + 1: the supervisor's restart
           terminating  → (gone) → starting                    new uid, restarts 0: the controller's replacement
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp

from drills.access import procs
from drills.lab import processes
from drills.lab.network import Sandbox
from drills.lab.processes import Child
from drills.model import Json

BACKOFF_S, BACKOFF_MAX_S = 1.0, 10.0
STABLE_S = 10.0  # ready for so long: the next crash starts at the first backoff again
GATE_POLL_S = 0.05
START_POLL_S, WATCH_POLL_S = 0.1, 0.5
HEALTH_TIMEOUT_S = 1.0
COMPLETION_TIMEOUT_S = 10.0
ORPHAN_GRACE_S = 5.0

Tell = Callable[[Json], None]


class WrongUidError(Exception):
    """The replica is not the incarnation that was asked for."""


@dataclass(frozen=True)
class Spec:
    """What does not change over a replica's incarnations."""

    name: str
    role: str
    model: str
    argv: tuple[str, ...]
    log: Path
    gate: Path
    gpus: tuple[str, ...]
    engine: str  # URLs
    proxy: str
    proxy_control: str
    ledger: Path
    faults: Path  # the folder of the proxy's faults
    place: Sandbox | None = None  # the namespace it lives in; None: the main one
    restart: str = "always"  # always | on-failure | never
    restart_args: tuple[str, ...] = ()  # appended from the second start on


@dataclass
class Replica:
    """The slot, and the incarnation that is in it now. `tell` gets each change as an event."""

    spec: Spec
    http: aiohttp.ClientSession
    tell: Tell
    uid: str = field(default_factory=lambda: str(uuid4()))
    state: str = "backoff"
    ready: bool = False
    restarts: int = 0
    child: Child | None = None
    engine: tuple[int, int] | None = None
    ready_mono: float | None = None
    exits: list[Json] = field(default_factory=list)
    _deleting: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _backoff_s: float = BACKOFF_S
    _by: str = "controller"  # who started this incarnation's process
    _terminator: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Keep the replica running until cancelled."""
        by = "controller"
        while True:
            await self._wait_for_gate_and_start(by)
            await self._watch()
            await self._bury()
            if not self._comes_back():
                self.state = "stopped"
                return
            if self._deleting:
                self._renew()
                by = "controller"
                continue
            by = "supervisor"
            self.restarts += 1
            if await self._back_off():
                self._renew()
                by = "controller"

    def _comes_back(self) -> bool:
        """Whether what has just ended is started again. Restart policies are about crashes, not about deletions."""
        if self.spec.restart == "on-failure":
            return self._deleting or self.exits[-1]["code"] != 0
        return self.spec.restart != "never"

    def delete(self, uid: str, grace_s: float) -> None:
        """Begin to delete that incarnation (WrongUidError when it is not there any more)."""
        if uid != self.uid:
            raise WrongUidError(f"{self.spec.name} is now {self.uid}, not {uid}")
        if self._deleting or self.state == "stopped":
            return
        self._deleting = True
        self._wake.set()
        if self.child is not None:
            self.state = "terminating"
            self._change_ready(False, "controller")
            self._terminator = asyncio.get_running_loop().create_task(self._terminate(self.child, grace_s))

    @property
    def took_s(self) -> float:
        """How long the present process took to become ready; 0 when it is not."""
        return self.ready_mono - self.child.started_mono if self.child and self.ready_mono else 0.0

    def as_json(self) -> Json:
        """Return the replica as the control API shows it."""
        child, spec = self.child, self.spec
        return {
            "name": spec.name,
            "role": spec.role,
            "model": spec.model,
            "uid": self.uid,
            "state": self.state,
            "ready": self.ready,
            **self._identity(),
            "started_wall": child.started_wall if child else None,
            "started_mono": child.started_mono if child else None,
            "ready_mono": self.ready_mono,
            "restarts": self.restarts,
            "exits": self.exits,
            "gpus": list(spec.gpus),
            "gate": str(spec.gate),
            "engine": spec.engine,
            "proxy": spec.proxy,
            "proxy_control": spec.proxy_control,
            "ledger": str(spec.ledger),
            "netns": spec.place.netns if spec.place else None,
            "faults_dir": str(spec.faults),
        }

    def _identity(self) -> Json:
        pid, start = (self.child.pid, self.child.start) if self.child else (None, None)
        engine_pid, engine_start = self.engine or (None, None)
        return {"pid": pid, "pid_start": start, "engine_pid": engine_pid, "engine_start": engine_start}

    def _say(self, change: str, by: str, **more: Any) -> None:
        identity = self._identity()
        identity["start"] = identity.pop("pid_start")
        self.tell(
            {
                "replica": self.spec.name,
                "role": self.spec.role,
                "change": change,
                "uid": self.uid,
                "restarts": self.restarts,
                **identity,
                "gpus": list(self.spec.gpus),
                "by": by,
                **more,
            }
        )

    def _renew(self) -> None:
        self.uid, self.restarts, self._deleting, self._backoff_s = str(uuid4()), 0, False, BACKOFF_S

    async def _back_off(self) -> bool:
        """Wait before the restart; True when the replica was deleted meanwhile."""
        if self.ready_mono is not None and time.monotonic() - self.ready_mono > STABLE_S:
            self._backoff_s = BACKOFF_S
        self.state = "backoff"
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
        return self._deleting

    async def _wait_for_gate_and_start(self, by: str) -> None:
        """Start once a shared lock on the gate can be had, as `flock -s` in ExecStartPre does.

        The lock is let go only after the start: who takes it exclusively then knows which of the two came first.
        """
        fd = os.open(self.spec.gate, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self.state = "gated"
                    await asyncio.sleep(GATE_POLL_S)
            if self._deleting:
                self._renew()
                by = "controller"
            self._start(by)
        finally:
            os.close(fd)

    def _start(self, by: str) -> None:
        argv = (*self.spec.argv, *(self.spec.restart_args if self.exits else ()))
        self.child = processes.spawn(self.spec.name, argv, self.spec.log, place=self.spec.place)
        self.state, self.engine, self.ready_mono, self._by = "starting", None, None, by
        self._say("started", by)

    async def _watch(self) -> None:
        """Wait for the replica's main process to end, probing it meanwhile."""
        assert self.child is not None
        probing = asyncio.create_task(self._probe())
        try:
            status = await processes.ended(self.child)
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        by = "controller" if self._deleting else "supervisor"
        self._change_ready(False, by)
        code, sig = (status, None) if status >= 0 else (None, signal.Signals(-status).name)
        self.exits.append({"code": code, "signal": sig, "mono": time.monotonic()})
        self._say("gone", by, code=code, signal=sig)

    async def _bury(self) -> None:
        """End what the main process left behind: an API server killed alone orphans its EngineCore."""
        assert self.child is not None
        await processes.end_session(self.child.pid, grace_s=0.0 if self._deleting else ORPHAN_GRACE_S)
        self.child, self.engine = None, None

    async def _terminate(self, child: Child, grace_s: float) -> None:
        """SIGTERM to the main process, as a container runtime does; SIGKILL for the whole session after the grace."""
        if grace_s > 0:
            procs.signal(child.pid, child.start, signal.SIGTERM)
            await processes.until(lambda: not procs.alive(child.pid, child.start), grace_s)
        await processes.end_session(child.pid, grace_s=0.0)

    async def _probe(self) -> None:
        """Look for the engine, and keep `ready` true to /health; the first time a completion must work as well."""
        while True:
            if self.engine is None:
                self.engine = self._find_engine()
            if not self._deleting:
                healthy = await self._healthy() and (self.ready_mono is not None or await self._completes())
                if not self._deleting:
                    self._change_ready(healthy, self._by if healthy else "supervisor")
            await asyncio.sleep(WATCH_POLL_S if self.ready else START_POLL_S)

    def _change_ready(self, ready: bool, by: str) -> None:
        if ready == self.ready:
            return
        self.ready = ready
        if ready:
            self.ready_mono = self.ready_mono or time.monotonic()
        if not self._deleting:
            self.state = "ready" if ready else "notready"
        self._say("ready" if ready else "notready", by)

    def _find_engine(self) -> tuple[int, int] | None:
        """Return the EngineCore among the processes of the replica's own session."""
        assert self.child is not None
        for pid, start in processes.session(self.child.pid):
            if pid != self.child.pid and procs.title(pid).startswith(processes.ENGINE_TITLE):
                return pid, start
        return None

    async def _healthy(self) -> bool:
        try:
            async with self.http.get(
                f"{self.spec.engine}/health", timeout=aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
            ) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def _completes(self) -> bool:
        body = {
            "model": self.spec.model,
            "messages": [{"role": "user", "content": "ready?"}],
            "max_tokens": 1,
            "ignore_eos": True,
        }
        timeout = aiohttp.ClientTimeout(total=COMPLETION_TIMEOUT_S)
        try:
            async with self.http.post(f"{self.spec.engine}/v1/chat/completions", json=body, timeout=timeout) as answer:
                return answer.status == 200 and bool((await answer.json())["choices"])
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError):
            return False
