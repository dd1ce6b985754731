"""Whatever the engine does, every arrival ends as exactly one record with the right name."""

from __future__ import annotations

import collections
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from drills.load.process import LoadProcess
from drills.load.record import Record
from drills.model import GOOD, Json, Outcome
from tests.contract.load_runs import assert_books_balance, engine, write_plan
from tests.load_engine import FAULTS
from tests.unit.load_plans import client_json


def run(tmp_path: Path, *options: str, **changes: object) -> tuple[list[Record], list[Json]]:
    """Run a load to its end; return its records and the engine's log, checked against each other."""
    with engine(*options) as truth:
        load = LoadProcess()
        load.start(write_plan(tmp_path, truth.url, **changes), tmp_path / "load.log")
        load.wait(20.0)
        load.stop(0.0)
        log = truth.log()
    assert load.death() is None
    return assert_books_balance(tmp_path, load.final), log


def test_every_fault_has_its_outcome_and_the_books_balance(tmp_path: Path) -> None:
    faults = [fault for fault in FAULTS if fault != "close-after"]
    rate = {"kind": "poisson", "rate": 80.0}
    kept, log = run(tmp_path, "--fault", ",".join(faults), "--every", "2", arrivals=rate, max_duration_s=3.0)
    asked = {entry["id"]: entry for entry in log}
    assert len(asked) == len(kept)  # without retries: one request for each arrival
    met = collections.Counter(entry["fault"] for entry in log)
    assert set(met) == {"", *faults}
    for record in kept:
        fault = asked[record.attempts[0].id]["fault"]
        expected, _, error = FAULTS.get(fault, "ok").partition("/")
        assert (record.outcome.value, record.error) == (expected, error or None), (fault, record)
        assert record.dup is (fault == "repeat")
        if record.outcome in GOOD:
            assert record.first_token is not None
            assert record.first_token > asked[record.attempts[0].id]["first"]
            assert len(record.chunks) == (1 if fault == "document" else 8)


def test_a_server_that_closes_kept_connections_costs_at_most_the_request_that_met_it(tmp_path: Path) -> None:
    kept, log = run(tmp_path, "--fault", "close-after", "--every", "3")
    closed = [entry for entry in log if entry["fault"]]
    assert closed
    broken = [record for record in kept if record.outcome is not Outcome.OK]
    assert {record.error for record in broken} <= {"reset"}
    assert len(broken) <= len(closed)


def test_a_service_that_is_not_there(tmp_path: Path) -> None:
    retries = {"max": 1, "backoff_s": 0.01, "jitter": "none", "budget": 0.5}
    plan = write_plan(tmp_path, "http://127.0.0.1:1/v1", client=client_json(retries))
    load = LoadProcess()
    load.start(plan, tmp_path / "load.log")
    load.wait(10.0)
    load.stop(0.0)
    kept = assert_books_balance(tmp_path, load.final)
    assert {record.error for record in kept} == {"refused"}
    attempts = sum(len(record.attempts) for record in kept)
    assert len(kept) < attempts <= 1.5 * len(kept)


def test_arrivals_over_the_cap_are_shed_and_counted(tmp_path: Path) -> None:
    with engine("--fault", "silent") as truth:
        plan = write_plan(
            tmp_path, truth.url, cap=5, max_duration_s=1.0, client=client_json(timeout_s=5.0, idle_timeout_s=5.0)
        )
        load = LoadProcess()
        load.start(plan, tmp_path / "load.log")
        load.wait(1.2)
        load.stop(0.0)
        kept = assert_books_balance(tmp_path, load.final)
        assert len(truth.log()) == 5
    assert [record.outcome for record in kept[:5]] == [Outcome.CANCELLED] * 5
    assert {record.outcome for record in kept[5:]} == {Outcome.SHED}
    assert all(record.sent is None and not record.attempts for record in kept[5:])


def test_a_closed_loop_waits_for_its_answers_and_says_so(tmp_path: Path) -> None:
    with engine("--ttft-ms", "100") as truth:
        plan = write_plan(
            tmp_path, truth.url, arrivals={"kind": "users", "users": 3, "think_s": 0.05}, max_duration_s=1.0
        )
        load = LoadProcess()
        load.start(plan, tmp_path / "load.log")
        load.wait(10.0)
        load.stop(0.0)
    kept = assert_books_balance(tmp_path, load.final)
    assert load.final is not None
    assert (load.final["arrivals"], load.final["loop"]) == ("users", "closed")
    assert 6 <= len(kept) <= 3 * 8
    for session in {record.session for record in kept}:
        turns = [record for record in kept if record.session == session]
        assert [record.turn for record in turns] == list(range(1, len(turns) + 1))
        for earlier, later in itertools.pairwise(turns):
            assert earlier.end is not None
            assert later.intended >= earlier.end + 0.05


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read as JSON"),
        ('{"run": "r"}', "is missing"),
        ('{"ran": "r"}', "did you mean 'run'?"),
    ],
)
def test_a_bad_plan_is_one_line_and_64(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    path.write_text(text)
    argv = [sys.executable, "-m", "drills.load.generator", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 64
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(str(path))
    assert says in done.stderr
