"""A host over SSH, against a real sshd: who it is must be known, who we are must be proven, and then it is a host."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from drills.access import procs, shipped, sshway
from drills.access.ssh import SshHost, connect
from drills.errors import Refused, Unreachable
from tests.contract.sshd import Sshd, agent, keygen, needed, public, running
from tests.contract.test_quoting import script, told, words

pytestmark = [pytest.mark.root, needed]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running(tmp_path_factory.mktemp("ssh") / "one", kinds=("ed25519", "ecdsa", "rsa")) as found:
        yield found


@pytest.fixture
def host(server: Sshd) -> Iterator[SshHost]:
    with closing(connect(server.host())) as found:
        yield found


@pytest.fixture(autouse=True)
def _as_it_was(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test is let in by the agent of whoever runs the tests."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield
    server.know()
    server.authorized.write_text(public(server.key) + "\n")


def refusal(server: Sshd, kind: type[Refused] = Refused, **more: Any) -> str:
    with pytest.raises(kind) as caught:
        connect(server.host(**more))
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


def where(server: Sshd) -> str:
    return f"gpu-1: 127.0.0.1 port {server.port}: "


# ---- it is a host ------------------------------------------------------------------------------------------


def test_a_command_ends_with_its_status_and_both_outputs(host: SshHost) -> None:
    done = host.run(["sh", "-c", "cat; echo 'a  b' >&2; exit 7"], timeout_s=10, stdin="über\n$(x)\n")
    assert (done.rc, done.out, done.err, done.timed_out) == (7, "über\n$(x)\n", "a  b\n", False)
    assert host.run(["printf", "%s|", "", "ü $(id)", "a\nb"], timeout_s=10).out == "|ü $(id)|a\nb|"


def test_a_command_that_takes_too_long_is_a_result_and_the_host_answers_on(host: SshHost) -> None:
    assert host.run(["sleep", "60"], timeout_s=0.2).timed_out
    assert host.run(["true"], timeout_s=10).rc == 0


def test_files_come_and_go(host: SshHost, tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "file")
    assert host.read(path) is None
    host.write(path, "line ü\n" * 400_000)
    assert host.read(path) == "line ü\n" * 400_000
    assert host.list(str(tmp_path / "deep")) == ["file"]
    host.remove(path)
    assert host.list(str(tmp_path / "deep")) == []


def test_processes_are_named_by_pid_and_start(host: SshHost) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        start = procs.start(sleeper.pid)
        assert start is not None
        assert host.alive(sleeper.pid, start)
        assert not host.signal(sleeper.pid, start + 1, "TERM")
        assert host.tree(os.getpid(), procs.start(os.getpid()) or 0)
        assert host.signal(sleeper.pid, start, "TERM")
        sleeper.wait(10)
        assert not host.alive(sleeper.pid, start)


def test_its_python_knows_what_was_shipped_wherever_it_is_run(host: SshHost) -> None:
    said = host.run(
        [host.python, "-c", "import drills, sys; print(drills.__file__, sys.flags.utf8_mode, sys.path[0])"],
        timeout_s=20,
    ).out.split()
    assert said[0] == f"{Path(host.python).parent}/drills/__init__.py"
    assert said[1:] == ["1"] or said[1:] == ["1", ""]


def test_ten_thousand_commands_are_read_by_its_login_shell_as_they_were_meant(server: Sshd) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    random_ = random.Random(seed)
    way = sshway.opened(server.host())
    with closing(way):
        for _ in range(20):
            commands = [words(random_) for _ in range(500)]
            lines = os.fsdecode(script(commands))
            done = sshway.execute(way, lines, b"", 60.0)
            assert done.out == told(commands).decode(errors="replace"), f"SEED={seed}"


def test_many_threads_ask_at_once(host: SshHost) -> None:
    got: dict[int, str] = {}

    def ask(number: int) -> None:
        got[number] = host.run(["echo", str(number)], timeout_s=30).out.strip()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {number: str(number) for number in range(20)}


def test_it_knows_where_the_driver_comes_from_and_whom_it_talks_to(host: SshHost, server: Sshd) -> None:
    assert host.address_of_driver() == "127.0.0.1"
    shown = subprocess.run(["ssh-keygen", "-lf", f"{server.host_keys[0]}.pub"], capture_output=True, text=True)
    assert host.fingerprint == shown.stdout.split()[1]


# ---- who it is -----------------------------------------------------------------------------------------------


def typed(said: str) -> None:
    """Type the command that a refusal ends with, as a person would."""
    command = said[said.rindex(": ") + 2 :]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


def fingerprint(key: Path) -> str:
    done = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def test_a_host_that_is_not_known_is_refused_until_its_key_is_in_the_file(server: Sshd) -> None:
    server.known_hosts.unlink()
    said = refusal(server)
    shown = f"ssh-ed25519 {fingerprint(server.host_keys[0])}"
    assert said.startswith(f"{where(server)}its host key is not known: {shown}; compare it with `ssh-keygen -lf`")
    typed(said)
    connect(server.host()).close()


def test_a_host_that_has_another_key_by_now_is_refused(server: Sshd, tmp_path: Path) -> None:
    other = keygen(tmp_path / "other")
    server.know(public(other))
    said = refusal(server)
    assert f"its host key is ANOTHER one: ssh-ed25519 {fingerprint(server.host_keys[0])}, known is" in said
    assert f"known is ssh-ed25519 {fingerprint(other)} in {server.known_hosts}:1; somebody may be in between" in said
    typed(said)
    connect(server.host()).close()


@pytest.mark.parametrize("number", [1, 2], ids=["ecdsa", "rsa"])
def test_a_host_that_is_known_by_another_type_of_key_only_shows_that_one(server: Sshd, number: int) -> None:
    server.know(public(server.host_keys[number]))
    with closing(connect(server.host())) as found:
        assert found.fingerprint == fingerprint(server.host_keys[number])


def test_a_hashed_name_and_a_pattern_are_known(server: Sshd) -> None:
    subprocess.run(["ssh-keygen", "-H", "-f", str(server.known_hosts)], capture_output=True, check=True, timeout=20)
    assert "127.0.0.1" not in server.known_hosts.read_text()
    connect(server.host()).close()
    server.known_hosts.write_text(f"[127.0.0.*]:{server.port} {public(server.host_keys[0])}\n")
    connect(server.host()).close()


def test_a_revoked_key_is_refused_for_good(server: Sshd) -> None:
    with server.known_hosts.open("a") as out:
        out.write(f"@revoked * {public(server.host_keys[0])}\n")
    assert refusal(server).endswith(f"is revoked in {server.known_hosts}:4")


# ---- who we are ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_keys_of_other_types_are_taken(server: Sshd, tmp_path: Path, kind: str) -> None:
    key = keygen(tmp_path / kind, kind, more=("-m", "PEM"))
    server.authorized.write_text(public(key) + "\n")
    connect(server.host(key=str(key))).close()


def test_a_key_that_is_not_let_in_is_named(server: Sshd, tmp_path: Path) -> None:
    key = keygen(tmp_path / "stranger")
    said = refusal(server, key=str(key))
    assert said.startswith(f"{where(server)}{server.host().user} is not let in with the key {key}: put its public part")


@pytest.mark.parametrize("form", ["openssh", "pem"])
def test_an_encrypted_key_says_so_and_is_taken_from_the_agent(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    key = keygen(tmp_path / "locked", "ecdsa", "passphrase of mine", more=("-m", "PEM") if form == "pem" else ())
    server.authorized.write_text(public(key) + "\n")
    said = refusal(server, key=str(key))
    assert said == f"{where(server)}the key file {key} is encrypted, and no SSH agent holds that key: ssh-add {key}"
    with agent(keygen(tmp_path / "another")) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        assert refusal(server, key=str(key)) == said
        opened = tmp_path / "opened"
        opened.write_bytes(key.read_bytes())
        opened.chmod(0o600)
        words = ["ssh-keygen", "-p", "-P", "passphrase of mine", "-N", "", "-f", str(opened)]
        subprocess.run(words, check=True, capture_output=True, timeout=20)
        subprocess.run(["ssh-add", "-q", str(opened)], check=True, timeout=20)
        connect(server.host(key=str(key))).close()
        connect(server.host(key=f"{key}.pub")).close()


def test_the_agent_lets_in_without_a_key(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with agent(keygen(tmp_path / "stranger"), server.key) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        with closing(connect(server.host(key=None))) as found:
            assert found.run(["true"], timeout_s=10).rc == 0


def test_an_agent_with_wrong_keys_only(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strangers = [keygen(tmp_path / f"stranger-{number}") for number in range(8)]
    with agent(*strangers) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        said = refusal(server, key=None)
    tried = "is not let in with the agent's key stranger-0, the agent's key stranger-1, the agent's key stranger-2 and"
    assert tried in said  # six tries by default
    assert said.endswith("more: name the right one with `key`")


def test_no_key_at_all(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(server, key=None).endswith(
        "no key is named and no SSH agent is there (SSH_AUTH_SOCK): name its file with `key`"
    )
    with agent() as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        assert refusal(server, key=None).endswith(
            "no key is named and the SSH agent holds none: ssh-add FILE, or name the file with `key`"
        )
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    assert f"the SSH agent at {tmp_path}/gone (SSH_AUTH_SOCK): No such file" in refusal(server, key=None)
    connect(server.host()).close()  # who has a key needs no agent


def test_an_agent_that_is_silent_is_not_waited_for(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "silent"))
        said = refusal(server, key=None, timeouts={"auth": 0.3})
    assert said.endswith("silent (SSH_AUTH_SOCK): does not answer; start one, or name a key file")


def test_a_key_file_that_is_none(server: Sshd, tmp_path: Path) -> None:
    assert refusal(server, key=str(tmp_path / "gone")).endswith(f"the key file {tmp_path}/gone is not there")
    assert refusal(server, key=str(tmp_path)).endswith(f"the key file {tmp_path} cannot be read: Is a directory")
    for text in ("", "nothing\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"):
        (tmp_path / "odd").write_text(text)
        assert "odd is no private key that can be used" in refusal(server, key=str(tmp_path / "odd"))
    said = refusal(server, key=f"{server.key}.pub")
    assert said.endswith(f"{server.key}.pub is a public key, and no SSH agent holds its private one: name that file")


def test_nobody_listens(server: Sshd) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        said = refusal(server, Unreachable, ssh_port=free.getsockname()[1])
    assert said.endswith("cannot be connected to: Connection refused")
    assert "cannot be connected to: " in refusal(server, Unreachable, address="no-such-host.invalid")


# ---- through a jump host -----------------------------------------------------------------------------------


def test_a_jump_host_leads_there_and_must_be_known_too(server: Sshd, tmp_path: Path) -> None:
    with running(tmp_path / "jump") as jump:
        through: dict[str, Any] = {"jump": {"address": "127.0.0.1", "ssh_port": jump.port, "key": str(jump.key)}}
        said = refusal(server, **through)
        assert said.startswith(f"gpu-1: jump host 127.0.0.1 port {jump.port}: its host key is not known: ssh-ed25519")
        typed(said)
        with closing(connect(server.host(**through))) as found:
            assert found.run(["echo", "there"], timeout_s=10).out == "there\n"
            assert found.fingerprint == fingerprint(server.host_keys[0])
        server.know("ssh-ed25519 AAAA")
        typed(refusal(server, **through))
        said = refusal(server, **through)
        assert said.startswith(f"{where(server)}its host key is ANOTHER one")


def test_a_jump_host_that_forwards_nothing(server: Sshd, tmp_path: Path) -> None:
    with running(tmp_path / "jump", "AllowTcpForwarding no") as jump:
        with server.known_hosts.open("a") as out:
            out.write(f"[127.0.0.1]:{jump.port} {public(jump.host_keys[0])}\n")
        through = {"address": "127.0.0.1", "ssh_port": jump.port, "key": str(jump.key)}
        said = refusal(server, Unreachable, jump=through)
    assert said.startswith(f"{where(server)}the jump host cannot connect to it: ")
    assert said.endswith("it may forbid forwarding (AllowTcpForwarding)")


def test_a_jump_host_that_cannot_get_there(server: Sshd, tmp_path: Path) -> None:
    with running(tmp_path / "jump") as jump, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with server.known_hosts.open("a") as out:
            out.write(f"[127.0.0.1]:{jump.port} {public(jump.host_keys[0])}\n")
        through = {"address": "127.0.0.1", "ssh_port": jump.port, "key": str(jump.key)}
        said = refusal(server, Unreachable, jump=through, ssh_port=free.getsockname()[1])
    assert said.endswith("the jump host cannot connect to it: Connect failed")


# ---- what is shipped ---------------------------------------------------------------------------------------


def test_what_is_shipped_lies_there_for_root_only_and_is_shipped_once(host: SshHost, server: Sshd) -> None:
    place = server.state_dir / "lib" / shipped.bundle().hash
    before = {path: path.stat().st_ino for path in place.rglob("*.py")}
    assert len(before) == len(shipped.MODULES) + len(shipped.BORROWED)
    assert {path.stat().st_mode & 0o077 for path in (server.state_dir, place, *before)} == {0}
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    connect(server.host()).close()
    assert {path: path.stat().st_ino for path in before} == before


def test_several_drivers_may_ship_at_once(server: Sshd) -> None:
    shutil.rmtree(server.state_dir, ignore_errors=True)
    got: list[object] = []

    def reach() -> None:
        try:
            with closing(connect(server.host())) as found:
                got.append(found.run([found.python, "-c", "import drills.access.ontarget"], timeout_s=30).rc)
        except Exception as error:
            got.append(error)

    threads = [threading.Thread(target=reach) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert got == [0] * 6
    assert [path.name for path in (server.state_dir / "lib").iterdir()] == [shipped.bundle().hash]


@pytest.mark.parametrize("damage", ["changed", "gone", "more", "launcher"])
def test_what_is_not_as_it_was_shipped_is_shipped_again(server: Sshd, damage: str) -> None:
    connect(server.host()).close()
    place = server.state_dir / "lib" / shipped.bundle().hash
    victim = place / {"more": "drills/more.py", "launcher": "python"}.get(damage, "drills/access/ontarget.py")
    before = victim.read_bytes() if victim.exists() else None
    if damage == "gone":
        victim.unlink()
    else:
        victim.write_text("raise SystemExit(1)\n")
    with closing(connect(server.host())) as found:
        assert (victim.read_bytes() if victim.exists() else None) == before
        assert found.list(str(place.parent)) == [place.name]
        assert json.loads(found.run([found.python, "-c", "print(1)"], timeout_s=10).out) == 1
