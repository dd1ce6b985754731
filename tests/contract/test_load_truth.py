"""What the load process measures is what the engine did."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from drills.load.figures import quantile
from drills.load.process import LoadProcess
from drills.model import Outcome
from tests.contract.load_runs import assert_books_balance, engine, write_plan
from tests.unit.load_plans import client_json


def test_a_freeze_of_two_seconds_shows_in_the_p99_from_the_intended_start(tmp_path: Path) -> None:
    client = client_json(timeout_s=10.0, idle_timeout_s=8.0, keepalive=True)
    with engine() as truth:
        plan = write_plan(
            tmp_path, truth.url, arrivals={"kind": "poisson", "rate": 20.0}, client=client, max_duration_s=6.0
        )
        load = LoadProcess()
        load.start(plan, tmp_path / "load.log")
        load.wait(2.0)
        os.kill(truth.process.pid, signal.SIGSTOP)
        load.wait(2.0)
        os.kill(truth.process.pid, signal.SIGCONT)
        load.wait(15.0)
        load.stop(0.0)
    kept = assert_books_balance(tmp_path, load.final)
    assert {record.outcome for record in kept} == {Outcome.OK}
    ttfts = sorted(record.ttft_s for record in kept if record.ttft_s is not None)
    assert len(ttfts) > 80
    p99 = quantile(ttfts, 0.99)
    assert p99 is not None
    assert p99 > 1.5
    # A third of all arrivals met the freeze: an open loop goes on asking.
    assert sum(ttft > 0.2 for ttft in ttfts) / len(ttfts) > 0.2


def test_a_frozen_generator_is_late_and_says_so(tmp_path: Path) -> None:
    with engine() as truth:
        plan = write_plan(tmp_path, truth.url, client=client_json(timeout_s=9.0, idle_timeout_s=8.0))
        load = LoadProcess()
        load.start(plan, tmp_path / "load.log")
        time.sleep(0.2)
        os.kill(load.pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(load.pid, signal.SIGCONT)
        load.wait(10.0)
        load.stop(0.0)
    kept = assert_books_balance(tmp_path, load.final)
    assert load.final is not None
    assert load.final["lag_p99_ms"] > 300
    assert max(record.lag or 0.0 for record in kept) > 0.3


def test_every_request_can_be_found_at_the_engine_and_the_stamps_fit(tmp_path: Path) -> None:
    with engine("--ttft-ms", "30") as truth:
        load = LoadProcess()
        load.start(write_plan(tmp_path, truth.url), tmp_path / "load.log")
        load.wait(10.0)
        load.stop(0.0)
        seen = {entry["id"]: entry for entry in truth.log()}
    kept = assert_books_balance(tmp_path, load.final)
    assert set(seen) == {attempt.id for record in kept for attempt in record.attempts}
    for record in kept:
        entry = seen[record.attempts[0].id]
        assert record.sent is not None
        assert record.first_token is not None
        assert record.last_token is not None
        assert record.intended <= record.sent <= entry["recv"]
        assert entry["first"] <= record.first_token
        assert entry["last"] <= record.last_token
        assert record.tokens == entry["tokens"] == 8


def test_the_same_seed_offers_the_same_schedule(tmp_path: Path) -> None:
    schedules = []
    with engine() as truth:
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            load = LoadProcess()
            load.start(write_plan(folder, truth.url), folder / "load.log")
            load.wait(10.0)
            load.stop(0.0)
            kept = assert_books_balance(folder, load.final)
            first = kept[0].intended
            schedules.append([(r.intended - first, r.session, r.turn) for r in kept])
    assert len(schedules[0]) == len(schedules[1])
    for one, two in zip(*schedules, strict=True):
        assert one == pytest.approx(two, abs=1e-5)  # stamps are kept to the microsecond
