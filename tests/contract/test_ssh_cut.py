"""What becomes of calls, and of what was spawned, when the connection breaks, is silent, or takes too long."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import paramiko
import psutil
import pytest

from drills.access import fence, procs, ssh, sshway
from drills.access.filecustody import FileCustody
from drills.access.remote import PROGRAM
from drills.access.ssh import SshHost, connect
from drills.errors import Refused, Unreachable
from drills.model import Completed, Receipt, Restored
from tests.contract.sshd import Sshd, needed, running

pytestmark = [pytest.mark.root, needed]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("cut") / "one") as found:
        yield found


@pytest.fixture
def host(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    until(lambda: not serving(server))  # of the test before
    with closing(connect(server.host())) as found:
        found.run(["true"], timeout_s=20)
        yield found


def until(true: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def serving(server: Sshd) -> list[psutil.Process]:
    """Return the processes there that answer calls."""
    found = []
    for one in server.sessions():
        try:
            found += [one] if PROGRAM in one.cmdline() else []
        except psutil.Error:
            continue
    return found


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(call())
        except Exception as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


# ---- broken --------------------------------------------------------------------------------------------------


def noticed(host: SshHost) -> None:
    """Wait until the driver knows that the link has ended."""
    until(lambda: host._link._pipe is None)


def test_a_connection_that_broke_while_nobody_asked_is_made_again(host: SshHost, server: Sshd, tmp_path: Path) -> None:
    """Also for a deed: nobody there has heard of it."""
    server.cut()
    noticed(host)
    host.write(str(tmp_path / "file"), "text")
    assert (tmp_path / "file").read_text() == "text"
    server.cut()
    noticed(host)
    assert host.run(["echo", "there"], timeout_s=20).out == "there\n"


def test_a_connection_that_breaks_at_this_very_moment(host: SshHost, server: Sshd, tmp_path: Path) -> None:
    """The first to notice may be whoever asks: a look is answered all the same, a deed done once or its end unknown."""
    for number in range(4):
        server.cut()
        assert host.list("/proc/self/ns")
        server.cut()
        said = ""
        try:
            host.write(str(tmp_path / str(number)), "")
        except Unreachable as error:
            said = str(error)
        assert "the answer is not known" in said or (tmp_path / str(number)).exists()


def test_a_deed_whose_answer_is_lost_is_told_and_done_once(host: SshHost, server: Sshd, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    thread, got = in_thread(
        lambda: host.run(["sh", "-c", 'echo begun >>"$0"; sleep 0.5; echo ended >>"$0"', str(trace)], timeout_s=20)
    )
    until(trace.exists)
    server.cut()
    thread.join(30)
    [error] = got
    assert isinstance(error, Unreachable)
    assert "broke, so the answer is not known" in str(error)
    until(lambda: "ended" in (host.read(str(trace)) or ""))
    assert host.read(str(trace)) == "begun\nended\n"


def test_an_order_that_arrives_after_its_undo_changes_nothing(host: SshHost, server: Sshd, tmp_path: Path) -> None:
    """It was held up on its way; whoever gave it has put everything back by another connection meanwhile."""
    custody, marker = FileCustody(host, str(tmp_path / "state"), "t"), tmp_path / "marker"
    receipt = Receipt("0badf00d-0-noop", "0badf00d", "noop", "t", host.name, ({"name": "r"},), {}, (), (), 600.0)
    custody.arm(receipt)
    [there] = serving(server)
    there.send_signal(signal.SIGSTOP)

    def deed() -> Completed:
        with fence.deed({host.name: custody.receipt_file(receipt)}):
            return host.run(["touch", str(marker)], timeout_s=20)

    thread, got = in_thread(deed)
    time.sleep(0.5)
    host.close()  # as another call does that gets no answer
    thread.join(30)
    [error] = got
    assert isinstance(error, Unreachable)
    assert custody.undo(receipt) == (Restored.CLEAN, [])
    assert custody.disarm(receipt)
    there.send_signal(signal.SIGCONT)
    until(lambda: not there.is_running() or there.status() == psutil.STATUS_ZOMBIE)
    assert not marker.exists()
    assert host.list(f"{custody.state_dir}/receipts") == []


def test_a_look_whose_answer_is_lost_is_made_again(host: SshHost, server: Sshd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("seen")
    [there] = serving(server)
    there.send_signal(signal.SIGSTOP)  # so that the answer is still under way
    thread, got = in_thread(lambda: host.read(str(tmp_path / "file")))
    time.sleep(0.2)
    server.cut()
    there.send_signal(signal.SIGKILL)
    thread.join(30)
    assert got == ["seen"]


def test_a_process_there_that_was_killed_is_replaced(host: SshHost, server: Sshd) -> None:
    """The connection stands: only what answered is gone."""
    for _ in range(3):
        [there] = serving(server)
        there.kill()
        noticed(host)
        assert host.run(["echo", "there"], timeout_s=20).out == "there\n"
        host.list("/")
    assert len(serving(server)) <= 1


def test_a_host_that_is_gone_and_comes_back(host: SshHost, server: Sshd) -> None:
    server.stop()
    with pytest.raises(
        Unreachable, match=r"^gpu-1: 127\.0\.0\.1 port \d+: cannot be connected to: Connection refused$"
    ):
        host.list("/")
    server.start()
    assert host.list("/proc/self/ns")


def test_who_waits_for_a_connection_in_vain_waits_once(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    found, tries = SshHost(server.host()), []

    def never(host: object) -> None:
        tries.append(host)
        time.sleep(0.3)
        raise Unreachable("gpu-1: not there")

    monkeypatch.setattr(sshway, "opened", never)
    threads = [in_thread(lambda: found.list("/")) for _ in range(8)]
    for thread, _ in threads:
        thread.join(20)
    assert {str(got[0]) for _, got in threads} == {"gpu-1: not there"}
    assert len(tries) == 1


def test_a_host_that_has_another_key_after_a_reconnect_is_refused(host: SshHost, server: Sshd) -> None:
    server.cut()
    server.know("ssh-ed25519 AAAA")
    try:
        with pytest.raises(Refused, match="its host key is ANOTHER one") as caught:
            host.list("/")
        assert not isinstance(caught.value, Unreachable)
    finally:
        server.know()
    assert host.list("/proc/self/ns")


# ---- what was spawned ----------------------------------------------------------------------------------------


def test_what_is_spawned_survives_the_link_and_is_looked_up_again(host: SshHost, server: Sshd, tmp_path: Path) -> None:
    log = tmp_path / "log"
    host.spawn(
        ["sh", "-c", 'echo "$$"; while [ ! -e "$0" ]; do sleep 0.05; done; echo ended', f"{log}.go"], log=str(log)
    )
    until(lambda: log.exists() and log.read_text().strip())
    pid = int(log.read_text())
    start = procs.start(pid)
    assert start is not None
    assert psutil.Process(pid).ppid() not in [one.pid for one in server.sessions()]
    server.cut()
    assert host.alive(pid, start)
    host.close()
    assert procs.alive(pid, start)
    with closing(connect(server.host())) as again:
        assert again.alive(pid, start)
        again.write(f"{log}.go", "")
        until(lambda: not again.alive(pid, start))
        assert again.read(str(log)) == f"{pid}\nended\n"


def test_nothing_of_ours_stays_when_the_connection_ends(server: Sshd) -> None:
    found = connect(server.host())
    found.run(["true"], timeout_s=20)
    assert serving(server)
    found.close()
    until(lambda: not server.sessions())


# ---- silent --------------------------------------------------------------------------------------------------


def test_who_does_not_answer_in_time_is_told_and_asked_anew(
    host: SshHost, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    [stopped] = serving(server)
    stopped.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as hasty:
        hasty.setattr(host, "_call_timeout_s", 0.5)
        with pytest.raises(Unreachable, match=r"^gpu-1: list: status 124: timed out$"):
            host.list("/")
    stopped.kill()
    assert host.list("/proc/self/ns")


def test_the_process_there_does_not_outlive_a_driver_that_fell_silent(
    server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: not serving(server))
    monkeypatch.setattr(ssh, "SILENCE_S", 5)
    monkeypatch.setattr(ssh, "BEAT_S", 0.2)
    with closing(connect(server.host())) as found:
        found.run(["true"], timeout_s=20)
        [there] = serving(server)
        time.sleep(6.5)
        assert [one.pid for one in serving(server)] == [there.pid]
    monkeypatch.setattr(ssh, "BEAT_S", 600.0)
    with closing(connect(server.host())) as found:
        found.run(["true"], timeout_s=20)
        assert found.run(["sleep", "6.5"], timeout_s=20).rc == 0  # what is under way is not cut off
        assert found.run(["true"], timeout_s=20).rc == 0
        until(lambda: not serving(server))
        noticed(found)
        assert found.run(["true"], timeout_s=20).rc == 0


# ---- each step has its own time ----------------------------------------------------------------------------


def took(server: Sshd, message: str, **more: Any) -> float:
    began = time.monotonic()
    with pytest.raises(Unreachable, match=message):
        connect(server.host(**more))
    return time.monotonic() - began


LONG: dict[str, float] = {"connect": 60.0, "banner": 60.0, "auth": 60.0, "command": 60.0}


def test_to_connect(server: Sshd) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port, waiting = full.getsockname()[1], []
        for _ in range(4):  # nobody accepts them, and no more are taken
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(("127.0.0.1", port))
        limits = {**LONG, "connect": 0.3}
        assert took(server, r"no connection within 0\.3 s$", ssh_port=port, timeouts=limits) < 20
        for one in waiting:
            one.close()


def test_to_be_greeted(server: Sshd) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        limits = {**LONG, "banner": 0.3}
        message = r"says nothing that is SSH within 0\.3 s: is that the port of its SSH server\?$"
        assert took(server, message, ssh_port=mute.getsockname()[1], timeouts=limits) < 20


class Undecided(paramiko.ServerInterface):  # type: ignore[misc] # comes without types
    """A server that neither lets in nor refuses, until it is told."""

    def __init__(self) -> None:
        self.decided = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.decided.wait(60)
        return int(paramiko.AUTH_FAILED)


def test_to_be_let_in(server: Sshd) -> None:
    undecided = Undecided()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        key = paramiko.PKey.from_path(server.host_keys[0])
        transports = []

        def accept() -> None:
            transports.append(paramiko.Transport(listening.accept()[0]))
            transports[-1].add_server_key(key)
            transports[-1].start_server(event=threading.Event(), server=undecided)

        accepting = threading.Thread(target=accept)
        accepting.start()
        with server.known_hosts.open("a") as out:
            out.write(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
        limits = {**LONG, "auth": 2.0}
        assert took(server, r"was neither let in nor refused within 2 s$", ssh_port=port, timeouts=limits) < 40
        undecided.decided.set()
        accepting.join(10)
        for transport in transports:
            transport.close()


def test_a_command_that_should_take_no_time(server: Sshd, tmp_path: Path) -> None:
    """Here it is the very first one: a shell that hangs at log-in."""
    with running(tmp_path / "hangs", "ForceCommand sleep 60") as hangs:
        limits = {**LONG, "command": 1.0}
        assert took(hangs, r"^gpu-1: `sh -c .* there did not end within 1 s$", timeouts=limits) < 40
