"""Hosts over SSH whose link is cut without a word, which lose power, and where systemd keeps what is spawned."""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drills.access import ssh, sshway
from drills.access.remote import PROGRAM
from drills.access.ssh import SshHost, connect
from drills.errors import Refused, Unreachable
from drills.targetfile import GpuHost
from tests.contract.test_quoting import told, words
from tests.hosts import layout, state
from tests.hosts.fleet import Fleet, Host

CLONE_NEWNET = 0x40000000
COMMAND_S = 3.0


@pytest.fixture(autouse=True)
def _as_the_driver(fleet: Fleet) -> Iterator[None]:
    """Connect from where the driver is: this thread, and whoever it starts, is in the driver's network meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as here, Path(f"/proc/{state.first_pid('ctl')}/ns/net").open() as ctl:
        assert libc.setns(ctl.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        yield
        assert libc.setns(here.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(ssh, "SILENCE_S", 6)
    monkeypatch.setattr(ssh, "BEAT_S", 1.0)


def declared(fleet: Fleet, name: str, user: str = "root", **more: Any) -> GpuHost:
    said = next(one for one in fleet.target(user)["hosts"] if one["name"] == name)
    limits = {"connect": 3.0, "banner": 5.0, "auth": 10.0, "command": COMMAND_S}
    return GpuHost.model_validate({**said, "timeouts": limits, **more})


def until(true: Callable[[], object], timeout_s: float = 40.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


def serving(host: Host) -> list[str]:
    """Return the pids of what answers calls there."""
    return host.run(["pgrep", "--full", PROGRAM], check=False).stdout.split()


@pytest.fixture
def there(fleet: Fleet) -> Iterator[SshHost]:
    with closing(connect(declared(fleet, "h2"))) as found:
        found.run(["true"], timeout_s=20)
        yield found


@pytest.mark.parametrize("user", layout.USERS)
def test_who_may_log_in_is_root_there(fleet: Fleet, user: str) -> None:
    with closing(connect(declared(fleet, "h1", user))) as host:
        assert host.run(["sh", "-c", "hostname; id -u"], timeout_s=20).out.split() == ["h1", "0"]
        assert host.has_systemd
        assert host.address_of_driver() == f"{layout.MANAGE}.{layout.CONTROL_NUMBER}"


def test_a_jump_host_leads_to_an_address_the_driver_cannot_reach(fleet: Fleet) -> None:
    router = fleet.host(layout.ROUTER)
    there: dict[str, Any] = {"address": fleet.host("h1").machine.service, "jump": {"address": router.address}}
    with pytest.raises(Unreachable):
        connect(declared(fleet, "h1", address=there["address"]))
    with closing(connect(declared(fleet, "h1", **there))) as host:
        assert host.run(["hostname"], timeout_s=20).out == "h1\n"
        assert host.address_of_driver() == router.machine.service


@pytest.fixture
def folder(fleet: Fleet) -> Iterator[str]:
    """Return a folder on h2 that is gone afterwards."""
    host, path = fleet.host("h2"), f"/run/test ssh {uuid.uuid4().hex[:8]}"
    host.run(["mkdir", path])
    yield path
    host.run(["rm", "-r", path])


@pytest.mark.parametrize("user", layout.USERS)
def test_what_is_spawned_is_a_unit_of_its_own_and_outlives_the_session(fleet: Fleet, folder: str, user: str) -> None:
    host, log = fleet.host("h2"), f"{folder}/log"
    program = 'cat /proc/self/cgroup; while [ ! -e "$0.go" ]; do sleep 0.1; done; echo "$0"'
    with closing(connect(declared(fleet, "h2", user))) as found:
        found.spawn(["sh", "-c", program, log], log=log)
        until(lambda: "drill-spawn-" in (found.read(log) or ""))
    until(lambda: not serving(host))
    host.run(["touch", f"{log}.go"])
    with closing(connect(declared(fleet, "h2", user))) as again:
        until(lambda: (again.read(log) or "").endswith(f"{log}\n"))
    until(lambda: not host.run(["systemctl", "list-units", "--all", "--no-legend", "drill-spawn-*"]).stdout.strip())


def test_words_survive_being_spawned(fleet: Fleet, there: SshHost, folder: str) -> None:
    """A manager makes something of `$` and `%`, beside all that shells do. What is no text it takes from nobody."""
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    random_ = random.Random(seed)
    texts = ([word for word in words(random_) if word.encode(errors="ignore").decode() == word] for _ in range(20))
    commands = [[*text, "$HOME", "${HOME}", "$$", "%n", "%%", "\\x41"] for text in texts]
    for number, one in enumerate(commands):
        there.spawn(["printf", "%s\\0", str(len(one)), *one], log=f"{folder}/{number}")
    for number, one in enumerate(commands):
        path, wanted = Path(f"{fleet.host('h2').root}{folder}/{number}"), told([one])
        until(partial(_as_long_as, path, wanted))
        assert path.read_bytes() == wanted, (seed, one)


def _as_long_as(path: Path, wanted: bytes) -> bool:
    return path.exists() and len(path.read_bytes()) >= len(wanted)


def test_a_spawn_that_cannot_write_its_log_is_refused(there: SshHost) -> None:
    with pytest.raises(Refused, match=r"^h2: spawn: systemd-run: status \d+: .*/nowhere/log"):
        there.spawn(["true"], log="/nowhere/log")


def test_a_link_that_is_cut_for_a_moment_costs_nothing(fleet: Fleet, there: SshHost) -> None:
    host = fleet.host("h2")
    got: list[Any] = []
    asking = threading.Thread(target=lambda: got.append(there.run(["sh", "-c", "sleep 1; echo there"], timeout_s=20)))
    asking.start()
    host.cut_driver()
    time.sleep(2)
    host.mend_driver()
    asking.join(40)
    assert [done.out for done in got] == ["there\n"]


def test_a_link_that_is_cut_is_told_within_the_time_and_nothing_of_ours_stays(
    fleet: Fleet, there: SshHost, folder: str
) -> None:
    host, log = fleet.host("h2"), f"{folder}/log"
    there.spawn(["sh", "-c", "echo $$; exec sleep 600"], log=log)
    until(lambda: there.read(log))
    pid = int(there.read(log) or 0)
    start = int(host.run(["cut", "-d", " ", "-f", "22", f"/proc/{pid}/stat"]).stdout)
    host.cut_driver()
    try:
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"^h2: list: status 124: timed out$"):
            there.list("/")
        with pytest.raises(Unreachable, match=rf"^h2: {host.address} port 22: "):
            there.list("/")
        assert time.monotonic() - began < 60
        until(lambda: not serving(host))
    finally:
        host.mend_driver()
    assert there.alive(pid, start)  # looked up again, over a new connection
    assert there.signal(pid, start, "KILL")


def test_a_deed_over_a_link_that_was_cut_is_told_long_before_its_own_time(
    fleet: Fleet, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody confirms ends the connection, so a deed of minutes is not waited for in vain."""
    monkeypatch.setattr(sshway, "SILENCE_MS", 4000)
    host, trace = fleet.host("h2"), f"{folder}/trace"
    with closing(connect(declared(fleet, "h2"))) as found:
        got: list[Any] = []

        def deed() -> None:
            try:
                got.append(found.run(["sh", "-c", 'echo once >>"$0"; sleep 200', trace], timeout_s=300))
            except Unreachable as error:
                got.append(str(error))

        doing = threading.Thread(target=deed)
        doing.start()
        until(lambda: found.read(trace))
        host.cut_driver()
        try:
            doing.join(60)
            assert len(got) == 1
            assert "broke, so the answer is not known" in got[0]
        finally:
            host.mend_driver()
        assert found.read(trace) == "once\n"
    host.run(["pkill", "--full", "^sleep 200"])


def test_a_host_that_lost_its_power_is_reached_again_and_is_the_same(fleet: Fleet) -> None:
    host = fleet.host("h3")
    with closing(connect(declared(fleet, "h3"))) as found:
        before = found.fingerprint, found.read("/proc/sys/kernel/random/boot_id")
        host.tear_down()
        with pytest.raises(Unreachable):
            found.read("/etc/hostname")
        host.rebuild()
        assert found.read("/etc/hostname") == "h3\n"
        assert found.fingerprint == before[0]
    fleet.wait_settled()
