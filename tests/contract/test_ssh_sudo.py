"""A host on which the user is not root, or on which something is in the way of what is shipped.

The server lives in a mount namespace with users, sudoers and folders of its own; the machine's are not touched.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from drills.access import shipped
from drills.access.ssh import SshHost, connect
from drills.errors import Refused
from tests.contract.sshd import Sshd, needed, running

pytestmark = [
    pytest.mark.root,
    needed,
    pytest.mark.skipif(not shutil.which("sudo"), reason="needs sudo (Debian: sudo)"),
]

USER = "drilltest"
#: $1 is a folder with what is mounted over the machine's own, $2 a folder that becomes one without programs.
INSIDE = """
for name in passwd shadow sudoers; do mount --bind "$1/$name" "/etc/$name"; done
mount -t tmpfs -o noexec,mode=755 none "$2"
shift 2
exec "$@"
"""
ALLOWED = f"{USER} ALL=(root) NOPASSWD: ALL\n"


@contextmanager
def elsewhere(tmp_path: Path, sudoers: str = ALLOWED, shell: str = "/bin/sh") -> Iterator[Sshd]:
    """Run a server that knows a user of its own."""
    etc, home, noexec = tmp_path / "etc", tmp_path / "home", tmp_path / "noexec"
    for folder in (etc, home, noexec):
        folder.mkdir()
    uid = 54321
    home.chmod(0o755)
    shutil.chown(home, uid, uid)
    for above in home.parents:
        if above.is_relative_to(Path("/tmp")) and above != Path("/tmp"):
            above.chmod(above.stat().st_mode | 0o011)
    passwd = Path("/etc/passwd").read_text() + f"{USER}:x:{uid}:{uid}::{home}:{shell}\n"
    shadow = Path("/etc/shadow").read_text() + f"{USER}:*:19000:0:99999:7:::\n"
    for name, text, mode in (("passwd", passwd, 0o644), ("shadow", shadow, 0o600), ("sudoers", sudoers, 0o440)):
        (etc / name).write_text(text)
        (etc / name).chmod(mode)
    prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", INSIDE, "sh", str(etc), str(noexec)]
    with running(tmp_path / "sshd", prefix=prefix) as server:
        server.folder.chmod(0o711)
        server.authorized.chmod(0o644)
        yield server


def reached(server: Sshd, **more: object) -> SshHost:
    return connect(server.host(**{"user": USER, **more}))


def refusal(server: Sshd, **more: object) -> str:
    with pytest.raises(Refused) as caught:
        reached(server, **more)
    assert type(caught.value) is Refused
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("more", ["", "Defaults use_pty\n"], ids=["as it is", "in a terminal of its own"])
def test_by_sudo_it_is_root_there(tmp_path: Path, more: str) -> None:
    with elsewhere(tmp_path, more + ALLOWED) as server, closing(reached(server)) as host:
        assert host.run(["id", "-u"], timeout_s=20).out == "0\n"
        assert host.address_of_driver() == "127.0.0.1"
        host.write(str(tmp_path / "ours"), "ü\n")
        assert (tmp_path / "ours").stat().st_uid == 0
        assert server.state_dir.stat().st_uid == 0
        server.cut()
        assert host.read(str(tmp_path / "ours")) == "ü\n"  # by a command of its own, or by a new link
        host.run(["true"], timeout_s=20)
        assert any("remote serve" in line for line in running_from(server.state_dir))
        host.close()
        deadline = time.monotonic() + 20
        while (left := running_from(server.state_dir)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []


def running_from(folder: Path) -> list[str]:
    """Return the commands that run from a folder, whoever is their parent by now: its Python is told so."""
    found = psutil.process_iter(["cmdline", "environ"])
    said = [(one.info["cmdline"] or [], (one.info["environ"] or {}).get("PYTHONPATH", "")) for one in found]
    return [" ".join(cmdline) for cmdline, path in said if f"{folder}/" in f"{cmdline} {path}"]


def test_without_the_right_to_sudo_it_says_what_to_write_where(tmp_path: Path) -> None:
    with elsewhere(tmp_path, "root ALL=(ALL) ALL\n") as server:
        said = refusal(server)
        assert said.startswith(f"gpu-1: {USER} is not root there, and `sudo -n` does not help: status 1: sudo: ")
        assert said.endswith(f"put the line '{USER} ALL=(root) NOPASSWD: ALL' into /etc/sudoers.d/drill there")
        assert not server.state_dir.exists()
        assert refusal(server, sudo=False).endswith(
            "is not root there, and `sudo: false`: log in as root, or allow sudo"
        )


def test_a_sudo_that_wants_a_password_or_a_terminal_is_not_waited_for(tmp_path: Path) -> None:
    for number, sudoers in enumerate((f"{USER} ALL=(root) ALL\n", f"Defaults requiretty\n{ALLOWED}")):
        folder = tmp_path / str(number)
        folder.mkdir()
        with elsewhere(folder, sudoers) as server:
            assert "`sudo -n` does not help: status 1: sudo: " in refusal(server)


def test_a_python_that_is_missing_or_too_old_is_one_sentence(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir(mode=0o755)
    for name in ("sh", "true"):
        (programs / name).symlink_to(f"/bin/{name}")
    with elsewhere(tmp_path, f'Defaults secure_path="{programs}"\n{ALLOWED}') as server:
        assert refusal(server) == "gpu-1: there is no python3, and 3.9 or newer is needed: install it there"
        (programs / "python3").write_text('#!/bin/sh\n[ "$1" = -V ] && echo "Python 3.6.8" && exit; exit 1\n')
        (programs / "python3").chmod(0o755)
        too_old = "gpu-1: its Python 3.6.8 is too old: install 3.9 or newer there, beside it if need be"
        assert refusal(server) == too_old
        assert not server.state_dir.exists()
        (programs / f"python3.{sys.version_info.minor}").symlink_to(Path(sys.executable).resolve())
        with closing(reached(server)) as host:
            assert host.python_version == sys.version.split()[0]
            assert host.run([host.python, "-c", "print(1)"], timeout_s=20).out == "1\n"


def test_a_shell_that_greets_everybody_confuses_nobody(tmp_path: Path) -> None:
    with elsewhere(tmp_path, shell="/bin/bash") as server:
        (tmp_path / "home" / ".bashrc").write_text("echo Welcome to gpu-1; echo '{\"n\": 1}'; echo beware >&2\n")
        with closing(reached(server)) as host:
            assert host.run(["echo", "there"], timeout_s=20).out == "there\n"
            server.cut()  # a command of its own for each call is greeted, too
            assert host.list("/proc/self/ns")


def test_a_user_who_may_log_in_and_run_nothing(tmp_path: Path) -> None:
    with elsewhere(tmp_path, shell="/usr/sbin/nologin") as server:
        assert refusal(server).startswith(f"gpu-1: {USER} can run no command there: status 1: ")


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    with elsewhere(tmp_path) as server:
        server.state_dir.mkdir(parents=True)
        server.state_dir.chmod(0o777)
        said = refusal(server)
        assert said.startswith(f"gpu-1: what runs there cannot be put there: {server.state_dir} is not a folder that")
        assert list(server.state_dir.iterdir()) == []
        server.state_dir.rmdir()
        server.state_dir.symlink_to(tmp_path)
        assert refusal(server) == said


def test_a_folder_of_whose_place_others_dispose_is_not_used(tmp_path: Path) -> None:
    with elsewhere(tmp_path) as server:
        home = tmp_path / "home"
        said = refusal(server, state_dir=str(home / "drill"))
        assert said.endswith(f"{home}/drill can be replaced by whoever may write to {home}: set state_dir")
        everybodys = tmp_path / "everybodys"
        everybodys.mkdir()
        everybodys.chmod(0o777)
        assert f"may write to {everybodys}: set" in refusal(server, state_dir=str(everybodys / "deep" / "drill"))
        everybodys.chmod(0o1777)
        connect(server.host(user=USER, state_dir=str(everybodys / "other" / "drill"))).close()


def test_a_folder_from_which_nothing_may_be_run(tmp_path: Path) -> None:
    with elsewhere(tmp_path) as server:
        said = refusal(server, state_dir=str(tmp_path / "noexec" / "drill"))
        assert said.endswith("cannot be run from: Permission denied (is it mounted noexec? set state_dir)")
        with closing(reached(server)) as host:
            assert host.list(str(server.state_dir / "lib")) == [shipped.bundle().hash]
