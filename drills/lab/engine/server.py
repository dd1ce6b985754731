"""The API server of an emulated replica: `python -m drills.lab.engine.server --port 18100`.

    SIGTERM            requests end with `abort` (or are drained), the port closes, exit 0 about a second later
    the core is dead   running requests get an error, the port closes, exit 0 about a second later
    the core will not start   one line, exit 1
The port is refused until the start-up time has passed. The core is the child titled `VLLM::EngineCore`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from drills.lab.engine.client import EngineClient, spawn
from drills.lab.engine.config import EngineConfig, parse
from drills.lab.engine.http import App
from drills.lab.engine.metrics import Metrics

PORT_CLOSES_S = 0.15  # from SIGTERM or the failure, until no connection is taken any more
TEARDOWN_S = 0.5  # what is left of the API server's life after its core died
WATCHDOG_S = 5.0  # how often a dead core is noticed when no request meets it
CORE_ENDS_S = 5.0  # the most a core may take to end before it is killed
KEEP_ALIVE_S = 5  # idle connections are closed after this
KEEP_ON_DEATH = "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"


class Server(uvicorn.Server):
    """uvicorn without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the replica."""
        yield


class Replica:
    """The life of one replica, from the bound port to the exit status."""

    def __init__(self, config: EngineConfig, sock: socket.socket, core: subprocess.Popen[bytes]) -> None:
        self.config, self.sock, self.core = config, sock, core
        self.stop = asyncio.Event()
        self.metrics = Metrics(config)
        self.engine = EngineClient(config, core, self.metrics)
        app = App(config, self.engine, self.metrics)
        self.server = Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                log_level="error",
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )

    async def live(self, pipe: socket.socket) -> int:
        """Start, serve, end; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
        if _early_signals:
            self.stop.set()
        await loop.connect_accepted_socket(lambda: self.engine, pipe)
        stopped: asyncio.Future[Any] = asyncio.ensure_future(self.stop.wait())
        starting: asyncio.Future[Any] = self.engine.started
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if self.stop.is_set():
            return await self._end_core()
        problem = starting.result()
        if problem:
            say(self.config, f"engine core failed to start: {problem}")
            return 1
        try:
            self.sock.listen(2048)
        except OSError as e:
            say(
                self.config,
                f"cannot listen on {self.config.host}:{self.config.port}: {e.strerror}; choose another port",
            )
            await self._end_core()
            return 1
        say(self.config, self._ready_line())
        serving: asyncio.Future[Any] = asyncio.ensure_future(self.server.serve([self.sock]))
        return await self._until_end(serving, stopped)

    def _ready_line(self) -> str:
        gpu = f", GPU {self.config.gpu_uuid}" if self.config.gpu_uuid else ""
        return f"ready on {self.config.host}:{self.config.port} (pid {os.getpid()}, core {self.core.pid}{gpu})"

    async def _until_end(self, serving: asyncio.Future[Any], stopped: asyncio.Future[Any]) -> int:
        dead: asyncio.Future[Any] = asyncio.ensure_future(self._dead())
        await asyncio.wait({stopped, dead, serving}, return_when=asyncio.FIRST_COMPLETED)
        if self.stop.is_set():
            dead.cancel()
            await self._shut_down(serving)
        else:
            say(self.config, "engine core died; leaving")
            await asyncio.sleep(PORT_CLOSES_S)
            await self._close(serving)
            await asyncio.sleep(TEARDOWN_S)
        return 0

    async def _dead(self) -> None:
        """Return when the server must end because its core is dead: a request met it, or the watchdog did."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.engine.failing.wait(), WATCHDOG_S)
            if self.engine.dead and os.environ.get(KEEP_ON_DEATH) != "1":
                return
            self.engine.failing.clear()

    async def _shut_down(self, serving: asyncio.Future[Any]) -> None:
        self.engine.terminate()
        if self.config.shutdown_timeout_s > 0:
            # Draining: healthy to the eye, refusing requests, until the work is done or the time is up. Streams
            # that are still open then stay open, silent, until their clients leave, and so does this process.
            if await self.engine.drained(self.config.shutdown_timeout_s):
                await self.engine.ended(self.config.drain_teardown_s + CORE_ENDS_S)
            self.core.kill()
            await self._close(serving)
            return
        await asyncio.sleep(PORT_CLOSES_S)
        closing = asyncio.ensure_future(self._close(serving))
        await self._end_core()
        await closing

    async def _close(self, serving: asyncio.Future[Any]) -> None:
        """Close the port, wait for open requests to end."""
        self.server.should_exit = True
        await serving

    async def _end_core(self) -> int:
        self.engine.terminate()
        if not await self.engine.ended(CORE_ENDS_S):
            self.core.kill()
        return 0


_early_signals: list[int] = []


def say(config: EngineConfig, text: str) -> None:
    """Write one log line."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{now} {config.name}: {text}", file=sys.stderr, flush=True)


def bind(config: EngineConfig) -> socket.socket:
    """Bind the port, early, so that a taken one is known before anything starts; raises OSError."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((config.host, config.port))
    return sock


async def _live(config: EngineConfig, sock: socket.socket, core: subprocess.Popen[bytes], pipe: socket.socket) -> int:
    return await Replica(config, sock, core).live(pipe)


def run(config: EngineConfig) -> int:
    """Run a replica to its end; return the exit status."""
    started = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: _early_signals.append(n))
    try:
        sock = bind(config)
    except OSError as e:
        say(config, f"cannot listen on {config.host}:{config.port}: {e.strerror}; choose another port")
        return 1
    core, pipe = spawn(config, started)
    try:
        return asyncio.run(_live(config, sock, core, pipe))
    finally:
        if core.poll() is None:
            core.kill()
            core.wait(timeout=10)


if __name__ == "__main__":
    sys.exit(run(parse()))
