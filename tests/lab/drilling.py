"""Runs `drill` as a user does, as a process, and reads what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXPERIMENTS = Path(__file__).parent / "experiments"
RUN_TIMEOUT_S = 180.0
DRILL = [sys.executable, "-m", "drills.cli"]


@dataclass(frozen=True)
class Ran:
    """A `drill` that ended: exit code, output, and the newest run folder."""

    code: int
    out: str
    err: str
    folder: Path | None

    @property
    def verdict(self) -> dict[str, Any]:
        """verdict.json."""
        assert self.folder is not None, self.out + self.err
        found: dict[str, Any] = json.loads((self.folder / "verdict.json").read_text())
        return found

    def row(self, check: str) -> dict[str, Any]:
        """The first row of that check."""
        found: dict[str, Any] = next(row for row in self.verdict["checks"] if row["check"] == check)
        return found

    def failing(self) -> set[str]:
        """The checks that failed."""
        return {row["check"] for row in self.verdict["checks"] if row["verdict"] == "fail"}

    def events(self, name: str) -> list[dict[str, Any]]:
        """The journal's events of that name."""
        assert self.folder is not None
        return events(self.folder, name)


class Driller:
    """`drill` with a lab folder and a reports folder of its own."""

    def __init__(self, lab_dir: Path, reports: Path, port_base: int, timeout_s: float = RUN_TIMEOUT_S) -> None:
        self.lab_dir, self.reports, self.port_base, self.timeout_s = lab_dir, reports, port_base, timeout_s
        self.env = {**os.environ, "DRILL_LAB_DIR": str(lab_dir)}

    def __call__(self, *words: str, cwd: Path | None = None) -> Ran:
        """Run a command to its end."""
        done = subprocess.run(
            [*DRILL, *words], env=self.env, cwd=cwd, capture_output=True, text=True, timeout=self.timeout_s, check=False
        )
        return Ran(done.returncode, done.stdout, done.stderr, self.latest())

    def run(self, *words: str) -> Ran:
        """Run `drill run` to its end."""
        return self("run", *self.here(*words))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `drill run` in a process group of its own."""
        return subprocess.Popen(
            [*DRILL, "run", *self.here(*words)],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def latest(self) -> Path | None:
        """The newest run folder."""
        found = sorted((self.reports / "runs").glob("*")) if (self.reports / "runs").is_dir() else []
        return found[-1] if found else None

    def until(self, event: str, process: subprocess.Popen[str], before: Path | None, within_s: float = 90.0) -> Path:
        """Wait until a new run's journal has that event; returns its folder."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            folder = self.latest()
            if folder is not None and folder != before and events(folder, event):
                return folder
            assert process.poll() is None, f"drill ended early: {process.communicate()[0]}"
            time.sleep(0.05)
        raise AssertionError(f"no {event} within {within_s} s")

    def here(self, *words: str) -> list[str]:
        """Return the words of `drill run` with this driller's folders and ports."""
        named = [str(EXPERIMENTS / f"{w}.yaml") if (EXPERIMENTS / f"{w}.yaml").is_file() else w for w in words]
        return [*named, "--reports", str(self.reports), "--port-base", str(self.port_base)]


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the journal's complete events of that name."""
    try:
        lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    found = (json.loads(line) for line in lines if line.endswith("\n"))
    return [event for event in found if event["event"] == name]


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the request records."""
    return [json.loads(line) for line in (folder / "requests.ndjson").read_text().splitlines()]


def eventually(true: Callable[[], object], within_s: float) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.05)
