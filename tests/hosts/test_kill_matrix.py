"""Whatever befalls a drill at whatever step, `drill recover` leaves the hosts as they were.

The driver's process group is killed; the way to a host is cut; a host loses its power and comes back. By default a few
points, drawn by a seed that a failure shows; FULL=1 tries all, SEED=N draws again.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from pathlib import Path

import pytest

from drills.clock import rng
from drills.model import Json
from tests.hosts import traces
from tests.hosts.cases import CASES
from tests.hosts.driving import drill, start
from tests.hosts.fleet import Fleet, Host
from tests.lab.drilling import events, eventually

pytestmark = pytest.mark.root

POLL_S, REACH_S, BACK_S = 0.02, 240.0, 90.0
#: The on-target timer fires 15 s after the planned end; deeds of a reset come on top.
DEADLINE_S, FAULT_S = 120.0, 15
END_TIMEOUT_S = 300.0
SEED = int(os.environ.get("SEED") or secrets.randbelow(10_000))
DRAWN = 3


def points(what: str, count: int) -> list[tuple[str, str]]:
    """Return (drill, event or step) for something that befalls it."""
    every = [(name, at) for name, case in CASES.items() for at in case.points]
    if what != "killed":  # before the deed nothing lies on a host that it could be cut off with
        every = [(name, at) for name, at in every if at in ("receipt", "timer.armed", "inject.hit", "proof.on")]
    return every if os.environ.get("FULL") else rng(SEED, what).sample(every, count)


def reached(fleet: Fleet, folder: Path, name: str, at: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a drill; returns it and its folder as soon as its journal tells of that event or step."""
    process = start(fleet, folder, CASES[name].fault, "  - accounted", FAULT_S, seed=SEED)
    deadline = time.monotonic() + REACH_S
    words = (f'"event":"{at}"', f'"step":"{at}"')
    while True:
        for run in (folder / "reports" / "runs").glob("*"):
            text = (run / "journal.jsonl").read_text() if (run / "journal.jsonl").exists() else ""
            if any(word in text for word in words):
                return process, run
        if process.poll() is not None:
            raise AssertionError(f"ended before {at}: {process.communicate()[0]}")
        if time.monotonic() > deadline:
            kill(process)
            raise AssertionError(f"no {at} within {REACH_S} s")
        time.sleep(POLL_S)


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)


def victims(fleet: Fleet, run: Path) -> list[Host]:
    names = {victim["host"] for e in events(run, "receipt") for victim in e["data"]["receipt"]["victims"]}
    return [fleet.host(name) for name in sorted(names)]


def recovered(fleet: Fleet, folder: Path, before: dict[str, Json]) -> None:
    """Recover, twice, and hold the hosts against what was there."""
    first = drill(fleet, folder, "recover")
    assert first.code == 0, first.out + first.err
    again = drill(fleet, folder, "recover")
    assert (again.code, again.out.strip()) == (0, "nothing to put back"), again.out + again.err
    for host in fleet.hosts:
        host.wait_ready()
    eventually(lambda: traces.all_of(fleet) == before, BACK_S)
    said = drill(fleet, folder, "status").out
    assert "nothing is to be put back" in said
    assert "no run holds it" in said
    assert "not finished" not in said


@pytest.mark.parametrize(("name", "at"), points("killed", DRAWN), ids=lambda word: word.replace(" ", "-"))
def test_a_driver_that_is_killed(name: str, at: str, fleet: Fleet, tmp_path: Path, before: dict[str, Json]) -> None:
    print(f"seed {SEED}")
    process, run = reached(fleet, tmp_path, name, at)
    kill(process)
    assert process.returncode == -signal.SIGKILL, f"ended by itself at {at}"
    recovered(fleet, tmp_path, before)
    verdict = json.loads((run / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["restored"]) == ("inconclusive", "clean")
    assert [event["data"]["status"] for event in events(run, "end")] == ["crashed"]


@pytest.mark.parametrize(("name", "at"), points("cut", 1), ids=lambda word: word.replace(" ", "-"))
def test_a_way_that_is_cut(name: str, at: str, fleet: Fleet, tmp_path: Path, before: dict[str, Json]) -> None:
    """To the victims, until their timers have undone it: nobody else could."""
    print(f"seed {SEED}")
    process, run = reached(fleet, tmp_path, name, at)
    for host in victims(fleet, run):
        host.cut_driver()
    eventually(lambda: nothing_on(fleet, before), DEADLINE_S)
    for host in fleet.hosts:
        host.mend_driver()
    ended(process)
    recovered(fleet, tmp_path, before)


@pytest.mark.parametrize(("name", "at"), points("gone", 1), ids=lambda word: word.replace(" ", "-"))
def test_a_host_gone_and_back(name: str, at: str, fleet: Fleet, tmp_path: Path, before: dict[str, Json]) -> None:
    print(f"seed {SEED}")
    process, run = reached(fleet, tmp_path, name, at)
    for host in victims(fleet, run):
        host.tear_down()
        host.rebuild()
    ended(process)
    recovered(fleet, tmp_path, before)


def ended(process: subprocess.Popen[str]) -> None:
    """Wait until the driver has ended by itself; one that has not by then is killed."""
    try:
        process.communicate(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        kill(process)


def nothing_on(fleet: Fleet, before: dict[str, Json]) -> bool:
    """Whether rules and engines are as they were: receipts lie there until somebody has looked."""
    now = traces.all_of(fleet)
    return all(now[name][key] == before[name][key] for name in before for key in ("rules", "engines"))
