"""A real sshd on 127.0.0.1 at a free port, with keys of its own; the machine's own SSH is neither read nor changed."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from getpass import getuser
from pathlib import Path
from typing import Any

import psutil
import pytest

from drills.targetfile import GpuHost

SSHD = "/usr/sbin/sshd"
needed = pytest.mark.skipif(not Path(SSHD).exists(), reason="needs OpenSSH's server (Debian: openssh-server)")
#: Where it puts aside its privileges; root's sshd does not start without it.
PRIVSEP = Path("/run/sshd")


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "", more: Sequence[str] = ()) -> Path:
    """Make a key pair; returns the private one."""
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path), *more]
    subprocess.run(argv, check=True, timeout=60, stdin=subprocess.DEVNULL)
    return path


def public(key: Path) -> str:
    """Return type and key, without the comment."""
    return " ".join(Path(f"{key}.pub").read_text().split()[:2])


class Sshd:
    """A server. `known_hosts`, `key` and `authorized` may be changed by a test."""

    def __init__(self, folder: Path, *options: str, prefix: Sequence[str] = (), kinds: Sequence[str] = ("ed25519",)):
        folder.mkdir(parents=True)
        self.folder, self.options, self.prefix = folder, options, prefix
        self.host_keys = [keygen(folder / f"host_{kind}", kind) for kind in kinds]
        self.key = keygen(folder / "user")
        self.authorized = folder / "authorized_keys"
        self.authorized.write_text(public(self.key) + "\n")
        self.known_hosts = folder / "known_hosts"
        self.log = folder / "log"
        self.state_dir = folder / "state" / "drill"
        self.process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.know()

    def know(self, *keys: str) -> None:
        """Make the server known by these keys, its own when none are given."""
        name = f"[127.0.0.1]:{self.port}"
        self.known_hosts.write_text("".join(f"{name} {key}\n" for key in keys or map(public, self.host_keys)))

    def start(self) -> None:
        """Start it and wait until it listens."""
        settings = {
            "Port": self.port, "ListenAddress": "127.0.0.1", "PidFile": "none", "UsePAM": "no", "StrictModes": "no",
            "AuthorizedKeysFile": self.authorized, "PasswordAuthentication": "no", "LogLevel": "VERBOSE",
            "KbdInteractiveAuthentication": "no", "PermitRootLogin": "yes", "MaxSessions": 20,
        }  # fmt: skip
        said = {option.partition(" ")[0] for option in self.options}
        words = [f"-o{name}={value}" for name, value in settings.items() if name not in said]
        words += [f"-o{option.replace(' ', '=', 1)}" for option in self.options]
        words += [f"-h{key}" for key in self.host_keys]
        argv = [*self.prefix, SSHD, "-D", "-e", "-f", "/dev/null", *words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError(f"sshd does not listen: {self.log.read_text()}")

    def sessions(self) -> list[psutil.Process]:
        """Return its processes that serve a connection, and theirs."""
        assert self.process is not None
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def cut(self) -> None:
        """Kill what serves the connections, as a host that goes down does; the server goes on."""
        assert self.process is not None
        psutil.wait_procs(self._killed_of(self.process), timeout=10)

    def _killed_of(self, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """Kill what serves connections; its commands find out by themselves."""
        serving = [one for one in psutil.Process(process.pid).children(recursive=True) if _name(one) == "sshd"]
        for one in serving:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        return serving

    def stop(self) -> None:
        """End the server and all its sessions."""
        if self.process is not None:
            process, self.process = self.process, None
            psutil.Process(process.pid).suspend()  # so that it takes nobody new
            serving = self._killed_of(process)
            process.kill()
            process.wait(10)
            psutil.wait_procs(serving, timeout=10)

    def host(self, **more: Any) -> GpuHost:
        """Return the host as drill.yaml declares it."""
        said = {
            "name": "gpu-1", "address": "127.0.0.1", "user": getuser(), "key": str(self.key), "unit": "vllm.service",
            "ssh_port": self.port, "known_hosts": str(self.known_hosts), "state_dir": str(self.state_dir),
            "timeouts": {"connect": 5.0, "banner": 5.0, "auth": 10.0, "command": 20.0},
        }  # fmt: skip
        return GpuHost.model_validate({**said, **more})


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def running(folder: Path, *options: str, **more: Any) -> Iterator[Sshd]:
    """Start a server, and end it."""
    if os.geteuid() == 0:
        PRIVSEP.mkdir(mode=0o755, exist_ok=True)  # others may use it meanwhile: it stays, empty
    server = Sshd(folder, *options, **more)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def agent(*keys: Path) -> Iterator[str]:
    """Run an SSH agent that holds these keys; yields its socket."""
    folder = keys[0].parent if keys else Path("/tmp")
    path = folder / f"agent-{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not _answers(path):
            assert time.monotonic() < deadline, "the SSH agent does not answer"
            time.sleep(0.02)
        for key in keys:
            env = {"SSH_AUTH_SOCK": str(path), "PATH": os.environ["PATH"]}
            subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True, timeout=20, stdin=subprocess.DEVNULL)
        yield str(path)
    finally:
        process.terminate()
        process.wait(10)
        path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    """Whether somebody listens there; the file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0
