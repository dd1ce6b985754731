"""Every way to end the load leaves complete records and nothing running."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from drills.load.plan import FD_VARIABLE
from drills.load.process import LoadFailed, LoadProcess
from drills.load.record import read
from drills.model import Json, Outcome
from tests.contract.load_runs import Engine, assert_books_balance, engine, records, write_plan
from tests.unit.load_plans import client_json

PATIENT = client_json(timeout_s=30.0, idle_timeout_s=20.0)


@pytest.fixture
def slow() -> Iterator[Engine]:
    """An engine whose answers take 0.5 s, every third for ever."""
    with engine("--ttft-ms", "500", "--fault", "hang-mid", "--every", "3") as truth:
        yield truth


def start(tmp_path: Path, url: str, **changes: object) -> LoadProcess:
    load = LoadProcess()
    plan = write_plan(tmp_path, url, **{"client": PATIENT, "max_duration_s": 60.0, **changes})
    load.start(plan, tmp_path / "load.log")
    return load


def until_beat(load: LoadProcess, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(load.beats()) < count:
        assert time.monotonic() < deadline
        assert load.alive()
        time.sleep(0.02)


def test_silence_is_told_by_what_is_heard(tmp_path: Path, slow: Engine) -> None:
    load = start(tmp_path, slow.url)
    until_beat(load, 1)
    assert load.silent_s() < 10
    os.kill(load.pid, signal.SIGSTOP)
    count = len(load.beats())
    deadline = time.monotonic() + 30
    while load.silent_s() < 3.5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(load.pid, signal.SIGCONT)
    until_beat(load, count + 2)
    assert load.silent_s() < 3.5
    load.stop(0.5)
    assert load.silent_s() == 0.0


def test_stop_drains_then_cancels_what_is_open(tmp_path: Path, slow: Engine) -> None:
    load = start(tmp_path, slow.url)
    until_beat(load, 1)
    final = load.stop(1.5)
    kept = assert_books_balance(tmp_path, final)
    assert {record.outcome for record in kept} == {Outcome.OK, Outcome.CANCELLED}
    # Long enough a drain for all that do end: only those that never end are cancelled.
    hangs = {entry["id"] for entry in slow.log() if entry["fault"]}
    assert {r.attempts[0].id for r in kept if r.outcome is Outcome.CANCELLED} == hangs
    assert not load.alive()
    assert load.stop(1.0) == final


def test_what_was_silent_longer_than_the_idle_timeout_is_hung_not_cancelled(tmp_path: Path) -> None:
    with engine("--fault", "hang") as truth:
        load = start(tmp_path, truth.url, client=client_json(timeout_s=30.0, idle_timeout_s=0.5))
        until_beat(load, 1)
        load.stop(0.0)
    kept = assert_books_balance(tmp_path, load.final)
    assert {record.outcome for record in kept} == {Outcome.HUNG, Outcome.CANCELLED}
    for record in kept:
        assert record.end is not None
        assert record.headers is not None
        assert (record.outcome is Outcome.HUNG) == (record.end - record.headers >= 0.5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_with_complete_records(tmp_path: Path, slow: Engine, number: signal.Signals) -> None:
    load = start(tmp_path, slow.url)
    until_beat(load, 1)
    os.kill(load.pid, number)
    load.wait(5.0)
    assert not load.alive()
    load.stop()
    kept = assert_books_balance(tmp_path, load.final)
    assert Outcome.CANCELLED in {record.outcome for record in kept}
    assert load.death() is None


def by_hand(tmp_path: Path, url: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the load process as a driver would, but with a link that only the test touches."""
    plan = write_plan(tmp_path, url, client=PATIENT, max_duration_s=60.0)
    ours, theirs = socket.socketpair()
    ours.settimeout(20.0)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "drills.load.generator", str(plan)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, FD_VARIABLE: str(theirs.fileno())},
        )
    return process, ours


def messages(link: socket.socket) -> Generator[Json, None, None]:
    with link.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)


def test_a_silent_driver_ends_it(tmp_path: Path, slow: Engine) -> None:
    process, link = by_hand(tmp_path, slow.url)
    with process, link:
        told = messages(link)
        assert next(told)["type"] == "ready"
        begin = time.monotonic()
        rest = list(told)  # not one ping; reading on until the process has closed its end
        silence = time.monotonic() - begin
        assert process.wait(5) == 0
    assert silence > 4.5
    assert [message["type"] for message in rest] == ["beat"] * (len(rest) - 1) + ["final"]
    assert 4 <= len(rest) - 1 <= 7
    assert_books_balance(tmp_path, rest[-1])


def test_a_driver_that_is_gone_ends_it_at_once(tmp_path: Path, slow: Engine) -> None:
    process, link = by_hand(tmp_path, slow.url)
    with process, link:
        told = messages(link)
        assert [next(told)["type"] for _ in range(2)] == ["ready", "beat"]
        link.shutdown(socket.SHUT_RDWR)  # what the end of a process does to its sockets
        assert process.wait(3) == 0
        told.close()
    kept = records(tmp_path)
    assert [record.arrival for record in kept] == list(range(len(kept)))
    assert {record.outcome for record in kept} >= {Outcome.OK, Outcome.CANCELLED}


def test_pings_keep_it_alive_and_nonsense_does_not_end_it(tmp_path: Path, slow: Engine) -> None:
    process, link = by_hand(tmp_path, slow.url)
    with process, link:
        told = messages(link)
        for message in told:
            if message["type"] == "final":
                break
            if message.get("n") == 7:
                link.sendall(b'{"type":"stop","drain_s":0}\n')
            else:
                link.sendall(b'not json\n[]\n{"type":7}\n{"type":"ping"}\n')
        assert process.wait(5) == 0
    assert message["type"] == "final"
    assert len(records(tmp_path)) > 60 * 6


def test_heartbeats_tell_what_happens(tmp_path: Path) -> None:
    seen: list[Json] = []
    with engine("--fault", "503", "--every", "4") as truth:
        load = LoadProcess(on_beat=seen.append)
        load.start(write_plan(tmp_path, truth.url, max_duration_s=60.0), tmp_path / "load.log")
        until_beat(load, 3)
        final = load.stop(1.0)
    beats = load.beats()
    assert seen == beats
    assert load.latest == beats[-1]
    assert [beat["n"] for beat in beats] == list(range(1, len(beats) + 1))
    for earlier, later in itertools.pairwise(beats):
        assert later["drawn"] - earlier["drawn"] == later["second"]["drawn"]
        assert later["ended"] - earlier["ended"] == later["second"]["ended"]
    for beat in beats:
        assert beat["drawn"] == beat["ended"] + beat["open"]
        assert beat["ended"] == sum(beat["outcomes"].values())
        assert sum(beat["errors"].values()) == beat["outcomes"].get("error", 0)
        assert 0 < beat["cpu"] < 1
    assert beats[-1]["ttft_p50_ms"] >= 20
    assert beats[-1]["ttft_p99_ms"] is None  # a quarter of the answers failed: infinitely slow
    assert final is not None
    assert final["drawn"] >= beats[-1]["drawn"]


def test_its_sudden_death_is_told_with_the_reason(tmp_path: Path, slow: Engine) -> None:
    load = start(tmp_path, slow.url)
    until_beat(load, 2)
    os.kill(load.pid, signal.SIGKILL)
    load.wait(5.0)
    assert not load.alive()
    assert load.final is None
    death = load.death()
    assert death is not None
    assert death.startswith("signal SIGKILL")
    assert load.stop() is None
    assert sum(1 for _ in read(tmp_path / "requests.ndjson")) > 0  # flushed each second


def test_it_says_why_it_does_not_start(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "http://127.0.0.1:1/v1", records=str(tmp_path / "nowhere" / "requests.ndjson"))
    load = LoadProcess()
    with pytest.raises(LoadFailed, match=r"exit code 1.*nowhere/requests\.ndjson: No such file"):
        load.start(plan, tmp_path / "load.log")
    assert not load.alive()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_stops_the_load_and_is_named(tmp_path: Path) -> None:
    with engine() as truth:
        load = start(tmp_path, truth.url, records="/dev/full")
        load.wait(10.0)
        load.stop()
    assert load.final is not None
    assert "No space left" in load.final["problem"]
    assert "exit code 1" in (load.death() or "")
