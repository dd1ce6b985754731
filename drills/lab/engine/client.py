"""The API server's side of the engine: starts the core process, talks to it, notices its end."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from typing import Any, cast

from drills.lab.engine import ipc
from drills.lab.engine.config import EngineConfig
from drills.lab.engine.core import CoreConfig
from drills.lab.engine.errors import ApiError, busy, engine_dead, shutting_down
from drills.lab.engine.metrics import Clocked, Metrics
from drills.lab.engine.requests import Ask

NOTICE_S = 0.06  # from the core's end to the moment the API server says so


class Generation:
    """One request at the engine. Tokens that come while its reader is slow merge into the next chunk."""

    def __init__(self, rid: int, ask: Ask, arrived: float) -> None:
        self.rid, self.ask = rid, ask
        self.clock = Clocked(len(ask.ids) // 4, ask.max_tokens, arrived)
        self.received = 0
        self.finish: str | None = None
        self.error: ApiError | None = None
        self.left = False  # the client hung up
        self._waiter: asyncio.Future[None] | None = None
        self._changed = False

    def wake(self) -> None:
        """Tell the reader that something changed."""
        self._changed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def leave(self, *_: object) -> None:
        """Note that the client hung up."""
        self.left = True
        self.wake()

    async def changed(self) -> None:
        """Wait until something changed since the last call."""
        if not self._changed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        self._changed = False


def spawn(config: EngineConfig, started: float) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the core process; return it and our end of the socketpair. `started` is CLOCK_MONOTONIC."""
    ours, theirs = socket.socketpair()
    core = CoreConfig(
        fd=theirs.fileno(),
        ready_at=started + config.startup_s,
        gpu_device=config.gpu_device,
        gpu_state=config.gpu_state,
        gpu_uuid=config.gpu_uuid,
        drain=config.shutdown_timeout_s > 0,
        drain_teardown_s=config.drain_teardown_s,
        orphan_lives_s=config.orphan_lives_s,
        seed=config.seed,
        scheduler=config.scheduler,
    )
    python = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]  # the same import path as ours
    command = [*python, "-m", "drills.lab.engine.core", core.to_json()]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    return process, ours


class EngineClient(asyncio.Protocol):
    """The engine as the handlers see it."""

    def __init__(self, config: EngineConfig, process: subprocess.Popen[bytes], metrics: Metrics) -> None:
        self.config, self.process, self.metrics = config, process, metrics
        self.generations: dict[int, Generation] = {}
        self.closing = False  # told to end: the core's end is no error
        self.dead = False  # the core ended by itself
        self.failing = asyncio.Event()  # a request met the dead core
        self.started: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._unpacker = ipc.Unpacker()
        self._rid = 0

    # ---- handlers -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the ApiError of an engine that takes no request now."""
        if self.dead:
            self.failing.set()
            raise engine_dead()
        if self.closing:
            raise shutting_down()
        most = self.config.max_num_queued_reqs
        if most is not None and len(self.generations) >= most:
            self.metrics.rejected()
            raise busy()

    def submit(self, ask: Ask, arrived: float) -> Generation:
        """Give a request to the core."""
        self.check()
        self._rid += 1
        generation = Generation(self._rid, ask, arrived)
        self.generations[self._rid] = generation
        self._send({"add": self._rid, "max_tokens": ask.max_tokens, "finish": ask.finish}, ask.ids)
        return generation

    def abort(self, generation: Generation) -> None:
        """Drop a request whose client hung up; nothing to do for one that has ended."""
        if self.generations.pop(generation.rid, None) is not None:
            self._send({"abort": [generation.rid]})

    def _send(self, value: object, blob: bytes = b"") -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(ipc.pack(value, blob))

    # ---- messages from the core -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take what the core tells."""
        for message, _ in self._unpacker.feed(data):
            if "out" in message:
                self._step(message)
            elif not self.started.done():
                self.started.set_result(message.get("failed"))

    def _step(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        self.metrics.step(message["stats"])
        for rid, tokens, finish, preemptions, cached, times in message["out"]:
            g = self.generations.get(rid)
            if g is None:  # its client left while this was under way
                continue
            if cached is not None:
                self.metrics.admitted(g.clock, cached, now)
            if preemptions:
                self.metrics.preempted(preemptions)
            if tokens:
                self.metrics.generated(g.clock, tokens, now)
            g.received += tokens
            if finish:
                g.finish = finish
                self.metrics.finished(g.clock, finish, times, now)
                del self.generations[rid]
            g.wake()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Notice the core's end; unless it was told to end, its requests fail a moment later."""
        if not self.started.done():
            self.started.set_result("the core ended during start-up; see its output above")
        elif not self.closing:
            asyncio.get_running_loop().call_later(NOTICE_S, self._declare_dead)

    def _declare_dead(self) -> None:
        if self.closing:
            return
        self.dead = True
        if self.generations:
            self.failing.set()
        for generation in self.generations.values():
            generation.error = engine_dead()
            generation.wake()
        self.generations.clear()

    # ---- the process ----------------------------------------------------------------------------------

    def terminate(self) -> None:
        """Tell the core to end (abort or drain, as it was started)."""
        self.closing = True
        if self.process.poll() is None:
            self.process.terminate()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no request is left; False when the time is up."""
        deadline = time.monotonic() + timeout_s
        while self.generations:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def ended(self, timeout_s: float) -> bool:
        """Wait for the core's end; False when the time is up."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True
