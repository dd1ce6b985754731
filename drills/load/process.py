"""The driver's side of the load: starts the load process, follows its heartbeats, ends it.

Never imports locust: that would replace parts of the driver's standard library. All methods may be called
from any thread, and each has a deadline of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from drills.errors import Refused
from drills.load.plan import FD_VARIABLE
from drills.model import Json

_PING_S = 1.0
_SEND_S = 1.0
_FINAL_S = 10.0  # after the drain: write, fsync, say so
_TERM_S = 5.0
_KILL_S = 5.0
_TAIL_LINES = 5
_TAIL_BYTES = 4096


class LoadFailed(Refused):
    """The load process did not start; load comes before the fault, so nothing was touched."""


class LoadProcess:
    """One load process, in a session and process group of its own.

    It stops by itself 5 s after this object falls silent, and at once when the driver dies.
    """

    def __init__(self, on_beat: Callable[[Json], None] | None = None) -> None:
        self._on_beat = on_beat
        self._lock = threading.Lock()
        self._beats: list[Json] = []
        self._heard = time.monotonic()
        self._final: Json | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(os.devnull)
        self._ready = threading.Event()
        self._closed = threading.Event()  # the load process has closed its end
        self._quiet = threading.Event()  # no more pings
        self._link: socket.socket | None = None

    # ---- start ------------------------------------------------------------------------------------

    def start(self, plan: Path, log: Path, *, ready_s: float = 30.0, env: dict[str, str] | None = None) -> None:
        """Start it and wait until arrivals begin; LoadFailed with the last lines of `log` otherwise.

        `env` is added to the environment. Its output is appended to `log`.
        """
        ours, theirs = socket.socketpair()
        self._link, self._log = ours, log
        ours.settimeout(_SEND_S)
        with theirs, log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "drills.load.generator", str(plan)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **(env or {}), FD_VARIABLE: str(theirs.fileno())},
            )
        threading.Thread(target=self._read, args=(ours.dup(),), name="load-read", daemon=True).start()
        threading.Thread(target=self._ping, name="load-ping", daemon=True).start()
        until = time.monotonic() + ready_s
        while not self._ready.wait(0.02):
            if self._closed.is_set() or time.monotonic() > until:
                self.kill()
                raise LoadFailed(f"the load process did not become ready: {self.death() or 'no reason given'}")

    # ---- what it says -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id, which is also its process group's."""
        return self._started().pid

    @property
    def latest(self) -> Json | None:
        """The newest heartbeat, None before the first."""
        with self._lock:
            return self._beats[-1] if self._beats else None

    @property
    def final(self) -> Json | None:
        """The last message, None while it runs and when it died without one."""
        with self._lock:
            return self._final

    def silent_s(self) -> float:
        """Return for how long nothing was heard of it, on this side's clock; 0 once it has said its last."""
        with self._lock:
            return 0.0 if self._final is not None else time.monotonic() - self._heard

    def beats(self) -> list[Json]:
        """Return all heartbeats so far."""
        with self._lock:
            return list(self._beats)

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._started().poll() is None

    def death(self) -> str | None:
        """Say how it ended and the last lines of its log; None while it runs or after a proper end."""
        code = self._started().poll()
        if code is None or (code == 0 and self.final is not None):
            return None
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = _tail(self._log)
        return f"{how}; {self._log}: {tail}" if tail else f"{how}; nothing in {self._log}"

    # ---- end --------------------------------------------------------------------------------------

    def stop(self, drain_s: float = 5.0) -> Json | None:
        """End it: no new arrivals, `drain_s` for open ones, then its records are whole. Returns `final`.

        Takes at most `drain_s` and 20 s; may be called twice.
        """
        if self.alive():
            self._send({"type": "stop", "drain_s": drain_s})
            self.wait(drain_s + _FINAL_S)
        self.kill()
        return self.final

    def kill(self) -> None:
        """End the process group: SIGTERM (its records are still completed), then SIGKILL."""
        for number, wait_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
            if not self.alive():
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            self.wait(wait_s)
        self._quiet.set()
        self._closed.wait(_SEND_S)  # its last words may still be in the socket
        if self._link is not None:
            self._link.close()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, at most `timeout_s`; it may well run on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._started().wait(timeout_s)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("start() comes first")
        return self._process

    # ---- the link ---------------------------------------------------------------------------------

    def _send(self, message: Json) -> None:
        with contextlib.suppress(OSError):  # its end is noticed by the reader
            if self._link is not None:
                self._link.sendall(json.dumps(message).encode() + b"\n")

    def _ping(self) -> None:
        while not self._quiet.wait(_PING_S) and not self._closed.is_set():
            self._send({"type": "ping"})

    def _read(self, link: socket.socket) -> None:
        link.settimeout(None)
        with link, contextlib.suppress(OSError), link.makefile("rb") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # a torn line: it died in the middle
                    self._take(json.loads(line))
        self._closed.set()

    def _take(self, message: Json) -> None:
        kind = message.get("type")
        with self._lock:
            self._heard = time.monotonic()
        if kind == "ready":
            self._ready.set()
        elif kind == "final":
            with self._lock:
                self._final = message
        elif kind == "beat":
            with self._lock:
                self._beats.append(message)
            if self._on_beat is not None:
                self._on_beat(message)


def _tail(path: Path) -> str:
    """Return the last lines of a file on one line."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return " | ".join(lines[-_TAIL_LINES:])
