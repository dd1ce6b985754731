"""Runs the probes, each on a thread and a rhythm of its own, and writes every sample down.

One slow probe does not delay another. A failure to measure is a sample with `ok: false` and the reason.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drills.clock import utc
from drills.model import Json
from drills.probes.http import ProbeError


@dataclass(frozen=True)
class Job:
    """One probe of one subject. `look` returns values or raises ProbeError."""

    probe: str
    subject: str
    interval_s: float
    look: Callable[[], Json | None]  # None: looked, nothing worth a line


class Sampler:
    """Runs jobs until closed. `failed` is called with our own bugs, which end the run."""

    def __init__(self, path: Path, failed: Callable[[BaseException], None]) -> None:
        self.out = path.open("a", buffering=1)
        self.failed = failed
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, jobs: list[Job]) -> None:
        """Start one thread a job."""
        for job in jobs:
            name = f"{job.probe}:{job.subject}"
            self.threads.append(threading.Thread(target=self._loop, args=(job,), name=name, daemon=True))
            self.threads[-1].start()

    def write(self, probe: str, subject: str, values: Json | None, error: str | None = None) -> None:
        """Write one sample. Never raises: what cannot be written ends the run through `failed`, not the way back."""
        line: Json = {"mono": time.monotonic(), "time": utc(time.time()), "probe": probe, "subject": subject}
        line |= {"ok": True, "values": values} if error is None else {"ok": False, "error": error}
        try:
            with self.lock:
                if not self.out.closed:
                    self.out.write(json.dumps(line) + "\n")
        except OSError as full:
            self.failed(full)

    def close(self) -> None:
        """End all threads (bounded: each request has its own deadline) and the file."""
        self.stop.set()
        deadline = time.monotonic() + 6
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self.lock, suppress(OSError):  # told by the write that failed
            self.out.close()

    def _loop(self, job: Job) -> None:
        due = time.monotonic()
        while not self.stop.is_set():
            try:
                values = job.look()
                if values is not None:
                    self.write(job.probe, job.subject, values)
            except ProbeError as error:
                self.write(job.probe, job.subject, None, str(error))
            except BaseException as bug:
                self.failed(bug)
                return
            due = max(due + job.interval_s, time.monotonic())
            self.stop.wait(due - time.monotonic())
