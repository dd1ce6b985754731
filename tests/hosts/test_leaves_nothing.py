"""When the test hosts are gone the machine is as it was, however they, or who brought them up, came to their end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosts import layout, life, state
from tests.hosts.fleet import Fleet
from tests.hosts.layout import CONTROL, ROUTER, TREE
from tests.machines import snapshot
from tests.machines.locks import lock

STEP_TIMEOUT_S, GONE_TIMEOUT_S, POLL_S = 120.0, 60.0, 0.05
SETTLE_S = 10.0  # what others on the machine begin and end meanwhile
#: What a host's systemd would set for the whole kernel, if it could.
LIMITS = ("/proc/sys/fs/file-max", "/proc/sys/fs/nr_open", "/proc/sys/kernel/hostname")
BORROW = """
import time
from tests.hosts import life
with life.in_use():
    life.up()
    print("up", flush=True)
    time.sleep(600)
"""
Machine = dict[str, list[str]]


@pytest.fixture(scope="module", autouse=True)
def _turn() -> Iterator[None]:
    """Wait for other test files that have hosts: two fleets at once are too much for a small machine."""
    if reason := life.missing():
        pytest.skip(reason)
    layout.folder().mkdir(parents=True, exist_ok=True)
    with (layout.folder() / "turn").open("w") as turn:
        lock(turn, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a place of the test's own for hosts; at the end the machine is as it was."""
    monkeypatch.setenv("DRILL_HOSTS_DIR", str(tmp_path))
    before = seen(tmp_path)
    try:
        yield tmp_path
        until("nothing is left", lambda: not state.run().exists(), GONE_TIMEOUT_S)
    finally:
        life.down()
    deadline = time.monotonic() + SETTLE_S
    while different := snapshot.difference(before, seen(tmp_path)):
        assert time.monotonic() < deadline, json.dumps(different, indent=1)
        time.sleep(1.0)


def seen(folder: Path) -> Machine:
    """Return what of the machine these hosts could change."""
    ours = f"drills-hosts-{life.digest()}"
    found = snapshot.snapshot(snapshot.Traces(folder, "no module of ours", ours))
    found["processes"] = sorted(title for _, title in processes(folder, ours))
    return found | {"limits": [Path(file).read_text() for file in LIMITS]}


def processes(folder: Path, ours: str) -> Iterator[tuple[int, str]]:
    """Yield pid and command line of what runs in the hosts' cgroups, or was started with their folder as a setting."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            mine = f"DRILL_HOSTS_DIR={folder}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if int(entry.name) != os.getpid() and (mine or ours in (entry / "cgroup").read_text()):
                yield int(entry.name), (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has just ended
            continue


def watches(folder: Path) -> list[int]:
    return [pid for pid, title in processes(folder, "nobody's") if "tests.hosts.watch" in title]


def until(what: str, holds: Callable[[], bool], timeout_s: float = STEP_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(POLL_S)


def fleet(verb: str) -> None:
    command = [sys.executable, "-m", "tests.hosts.fleet", verb]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr


def test_hosts_that_are_taken_down_leave_nothing(folder: Path) -> None:
    before = seen(folder)
    fleet("up")
    fleet("up")  # a second time changes nothing
    host = Fleet().host("h1")
    host.run(["iptables", "-A", "INPUT", "-p", "tcp", "--dport", "9", "-j", "DROP"])
    host.run(["systemd-run", "--on-active=1h", "true"])
    host.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo > /var/lib/left; echo > /dev/shm/left"])
    came = snapshot.difference(before, seen(folder))
    # What would be left if it were not the hosts' own: so there is something to leave.
    assert len(came["processes"]["came"]) > 3 * len(layout.ALL)
    assert "sleep 600 " in came["processes"]["came"]
    assert set(came) == {"cgroups", "processes"}
    fleet("down")
    fleet("down")  # a second time finds nothing to do


def test_hosts_that_are_to_be_kept_outlive_who_brought_them_up_and_go_when_told_even_when_killed(folder: Path) -> None:
    for _ in range(2):  # a second life has a watch of its own, and the first one's is gone
        fleet("down")
        fleet("up")
    assert life.is_up()
    until("one watch is left", lambda: len(watches(folder)) == 1)
    [watch] = watches(folder)
    for pid in (watch, *(state.first_pid(name) for name in (CONTROL, ROUTER, *layout.HOSTS))):
        os.kill(pid, signal.SIGKILL)
    until("they are dead", lambda: not any(state.pid(name) for name in (CONTROL, ROUTER, *layout.HOSTS)))
    assert state.run().exists()
    fleet("down")


def test_hosts_go_by_themselves_when_the_tests_are_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", BORROW], cwd=TREE, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == "up\n"
        assert life.is_up()
        tests.kill()


STEPS: dict[str, Callable[[], bool]] = {
    "its folder is there": lambda: state.run().exists(),
    "its cgroups are named": lambda: (state.run() / "cgroups.json").exists(),
    "ctl is up": lambda: state.pid(CONTROL) is not None,
    "the router's machine is up": lambda: state.pid(ROUTER) is not None,
    "the last host is up": life.is_up,
}


@pytest.mark.parametrize("step", STEPS)
def test_an_up_that_is_killed_leaves_nothing(step: str) -> None:
    command = [sys.executable, "-m", "tests.hosts.fleet", "up"]
    with subprocess.Popen(command, cwd=TREE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as begun:
        until(step, STEPS[step])
        begun.kill()


def test_a_host_that_is_torn_down_and_remade_leaves_nothing() -> None:
    with life.in_use():
        life.up()
        host = Fleet().host("h2")
        for _ in range(2):
            host.tear_down()
            host.rebuild()
