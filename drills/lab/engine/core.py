"""The EngineCore process: the scheduler in real time, at the end of a socketpair.

    API server → core   {"add": rid, "max_tokens", "finish"} + token ids · {"abort": [rid]}
    core → API server   {"ready": pid} | {"failed": text} · {"out": [[rid, tokens, finish, preemptions, cached, times]],
                        "stats": [running, waiting, kv_usage, step_tokens, prefix_queries, prefix_hits]}

SIGTERM ends it: at once, with every request aborted, or (drain) when its requests are done. When the API
server dies without a word the core stays, as vLLM's does: an orphan with the GPU device open, idle, until
`orphan_lives_s` are over. Started by `client.py` only, settings as one JSON argument.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass

from setproctitle import setproctitle

from drills.lab.engine import ipc
from drills.lab.engine.clock import Clock
from drills.lab.engine.config import SchedulerConfig
from drills.lab.engine.scheduler import Output, Request, Scheduler, Stats

TITLE = "VLLM::EngineCore"
TEARDOWN_S = 0.6  # what vLLM's core takes to go after an abort
LATE_S = 0.005  # a step that begins later than this after its plan does not catch up


@dataclass(frozen=True)
class CoreConfig:
    """What the core is told at its start; `ready_at` is CLOCK_MONOTONIC."""

    fd: int
    ready_at: float
    gpu_device: str | None
    gpu_state: str | None
    gpu_uuid: str | None
    drain: bool
    drain_teardown_s: float
    orphan_lives_s: float
    seed: int
    scheduler: SchedulerConfig

    def to_json(self) -> str:
        """Return it as the one argument of the core's command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> CoreConfig:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        return CoreConfig(**{**data, "scheduler": SchedulerConfig(**data["scheduler"])})


class Core:
    """One event loop: socket in and out, signals, and the end of the step that is under way."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config.scheduler, seed=config.seed)
        self.clock = Clock(config.gpu_state, config.gpu_uuid, config.gpu_device)
        self.peer: socket.socket | None = socket.socket(fileno=config.fd)
        self.peer.setblocking(False)
        self.unpacker = ipc.Unpacker()
        self.backlog = bytearray()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.peer, selectors.EVENT_READ)
        self.step_ends: float | None = None
        self.leave_at: float | None = None  # when the process ends by itself
        self.stopping = False
        self._watch_signals()

    def _watch_signals(self) -> None:
        # The handlers only set a flag; the wake-up descriptor is what ends a wait, which PEP 475 would restart.
        self._wake, write = socket.socketpair()
        self._wake.setblocking(False)
        write.setblocking(False)
        self._wake_write = write
        signal.set_wakeup_fd(write.fileno())
        self.selector.register(self._wake, selectors.EVENT_READ)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self.stopping = True

    # ---- life -----------------------------------------------------------------------------------------

    def run(self) -> int:
        """Open the GPU, load (sleep), serve until told to end; return the exit status."""
        problem = self._open_gpu()
        if problem:
            self._send({"failed": problem})
            return 1
        if not self._load():
            return 0
        self._send({"ready": os.getpid()})
        while self.leave_at is None or time.monotonic() < self.leave_at:
            self._wait(self._next_deadline())
            self._turn(time.monotonic())
        return 0

    def _open_gpu(self) -> str | None:
        path = self.config.gpu_device
        if path is None:
            return None
        try:
            os.open(path, os.O_RDWR | os.O_CLOEXEC)  # held open for as long as this process lives
        except OSError as e:
            return f"cannot open GPU device {path}: {e.strerror}; does the GPU exist, and is --gpu-device right?"
        return None

    def _load(self) -> bool:
        """Pass the start-up time; False when told to end meanwhile."""
        while (now := time.monotonic()) < self.config.ready_at and not self.stopping and self.leave_at is None:
            self._wait(min(self.config.ready_at, now + 60))
        if self.leave_at is not None:  # the API server is already dead: stay, an orphan
            return True
        return not self.stopping

    def _next_deadline(self) -> float | None:
        times = [t for t in (self.step_ends, self.leave_at) if t is not None]
        return min(times) if times else None

    def _turn(self, now: float) -> None:
        if self.step_ends is not None and now >= self.step_ends:
            outputs, stats = self.scheduler.end_step(now)
            self._tell(outputs, stats)
            self._begin(now if now - self.step_ends > LATE_S else self.step_ends)
        elif self.step_ends is None:
            self._begin(now)
        if self.stopping and self.leave_at is None:
            self._stop(now)

    def _begin(self, at: float) -> None:
        step_s = self.scheduler.begin_step(at)
        self.step_ends = None if step_s is None else at + step_s * self.clock.slowdown(at)

    def _stop(self, now: float) -> None:
        if not self.config.drain:
            outputs = self.scheduler.abort_all(now)
            self._tell(outputs, self.scheduler.stats())
            self.leave_at, self.step_ends = now + TEARDOWN_S, None
        elif self.scheduler.unfinished == 0:
            self.leave_at = now + self.config.drain_teardown_s

    def _orphaned(self) -> None:
        """Live on after the API server: no work, no peer, the GPU still held."""
        if self.peer is not None:
            self.selector.unregister(self.peer)
            self.peer.close()
            self.peer = None
        now = time.monotonic()
        self.scheduler.abort_all(now)
        self.step_ends = None
        self.leave_at = now + (0.0 if self.stopping else self.config.orphan_lives_s)

    # ---- messages -------------------------------------------------------------------------------------

    def _wait(self, until: float | None) -> None:
        timeout = None if until is None else max(0.0, until - time.monotonic())
        for key, events in self.selector.select(timeout):
            if key.fileobj is self._wake:
                self._on_wake()
                continue
            if events & selectors.EVENT_WRITE:
                self._flush()
            if events & selectors.EVENT_READ:
                self._receive()

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(64)
        if self.stopping and self.peer is None:
            self.leave_at = time.monotonic()

    def _receive(self) -> None:
        if self.peer is None:
            return
        try:
            data = self.peer.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._orphaned()
            return
        for message, blob in self.unpacker.feed(data):
            if "add" in message:
                self._add(message, blob)
            else:
                self._abort(message["abort"])

    def _add(self, message: dict[str, object], blob: bytes) -> None:
        self.scheduler.add(
            Request(
                rid=int(str(message["add"])),
                ids=bytearray(blob),
                max_tokens=int(str(message["max_tokens"])),
                finish=str(message["finish"]),
                queued_at=time.monotonic(),
            )
        )

    def _abort(self, rids: list[int]) -> None:
        gone = [rid for rid in rids if self.scheduler.abort(rid)]
        if gone:
            self._tell([], self.scheduler.stats())

    def _tell(self, outputs: list[Output], stats: Stats) -> None:
        self._send(
            {
                "out": [(o.rid, o.tokens, o.finish, o.preemptions, o.cached, o.times) for o in outputs],
                "stats": (
                    stats.running,
                    stats.waiting,
                    stats.kv_usage,
                    stats.step_tokens,
                    stats.prefix_queries,
                    stats.prefix_hits,
                ),
            }
        )

    def _send(self, value: object) -> None:
        """Send, or keep for later: a stopped API server must not stop the engine."""
        if self.peer is not None:
            self.backlog += ipc.pack(value)
            self._flush()

    def _flush(self) -> None:
        if self.peer is None:
            return
        try:
            while self.backlog:
                del self.backlog[: self.peer.send(self.backlog)]
        except BlockingIOError:
            pass
        except OSError:
            self._orphaned()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.backlog else 0)
        self.selector.modify(self.peer, events)


def main() -> None:
    """Run the core of the settings in the one argument."""
    config = CoreConfig.from_json(sys.argv[1])
    setproctitle(TITLE)
    sys.exit(Core(config).run())


if __name__ == "__main__":
    main()
