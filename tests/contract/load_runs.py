"""A real load process against the real test engine."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drills.load.record import Record, read
from drills.model import Json
from tests.unit.load_plans import client_json, plan_json


class Engine:
    """The test engine as a process; its stdin is its leash."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}/v1"

    def log(self) -> list[Json]:
        """Return what the engine did, one entry per generation request it received."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/log", timeout=10) as answer:
            entries: list[Json] = json.load(answer)
        return entries


@contextmanager
def engine(*options: str) -> Iterator[Engine]:
    """Run the engine for the length of the block."""
    argv = [sys.executable, "-m", "tests.load_engine", *options]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Engine(process, int(process.stdout.readline()))
        finally:
            process.kill()


def write_plan(folder: Path, url: str, **changes: Any) -> Path:
    """Write LOAD.json for a quick run (60/s, half a second, short time-outs); returns its path."""
    quick: Json = {
        "arrivals": {"kind": "poisson", "rate": 60.0},
        "client": client_json(timeout_s=1.5, idle_timeout_s=0.4, keepalive=True),
        "max_duration_s": 0.5,
        "cap": 500,
        "records": str(folder / "requests.ndjson"),
    }
    path = folder / "load.json"
    path.write_text(json.dumps(plan_json(url, **{**quick, **changes})))
    return path


def records(folder: Path) -> list[Record]:
    """Return the records of a run, by arrival."""
    return sorted(read(folder / "requests.ndjson"), key=lambda record: record.arrival)


def assert_books_balance(folder: Path, final: Json | None) -> list[Record]:
    """Check that every arrival drawn has exactly one record, by every count there is; return the records."""
    assert final is not None
    kept = records(folder)
    assert [record.arrival for record in kept] == list(range(final["drawn"]))
    assert final["records"] == final["drawn"] == sum(final["outcomes"].values())
    for outcome, count in final["outcomes"].items():
        assert count == sum(record.outcome == outcome for record in kept)
    for error, count in final["errors"].items():
        assert count == sum(record.error == error for record in kept)
    good = final["outcomes"].get("ok", 0) + final["outcomes"].get("degraded", 0)
    assert final["locust"] == {"requests": final["drawn"], "failures": final["drawn"] - good}
    assert final["problem"] is None
    return kept
