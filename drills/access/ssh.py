"""A GPU host over SSH, as a `Host`.

One connection is kept for each host, and one process there answers all calls, as root. When the connection breaks the
next call makes another one. A call of which nobody there has heard in time is made again, once, and so is one that only
reads; a deed whose answer is lost raises Unreachable, and what became of it is for the state of the host to say. What
was sent by a connection that broke and nobody has confirmed is dropped with it.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import paramiko

from drills.access import shipped, sshway
from drills.access.linelink import LineLink
from drills.access.quoting import command_line
from drills.access.remote import PROGRAM, READS, SERVE, RemoteHost
from drills.access.sshway import TIMED_OUT, Broke, Way
from drills.errors import Refused, Unreachable
from drills.model import Completed, Json
from drills.targetfile import GpuHost

BEAT_S: Final = 10.0
SEND_TIMEOUT_S: Final = 15.0
#: The process there ends when it has heard nothing for so long: it does not outlive a link that was cut.
SILENCE_S: Final = 30
#: To unpack and to start a first Python takes longer than a command that should take no time.
SHIP_TIMEOUT_S: Final = 60.0
SUDO: Final = ("sudo", "-n")
_PROBE = 'echo "drill $(id -u) $SSH_CONNECTION"'
#: Starts a command as a unit of its own, since what belongs to a session may end with it; $0 is where its output goes.
_UNIT = ': >>"$0" && exec systemd-run "$@"'
_IN_UNIT = 'exec "$@" >>"$0" 2>&1'


class _Unsent(Unreachable):
    """Nobody there has heard of the call, or not in time to make it."""


class _Lost(Unreachable):
    """The call's answer is not known."""


def connect(host: GpuHost) -> SshHost:
    """Return the host, reached and ready for calls. Raises Unreachable, or Refused with what to do."""
    found = SshHost(host)
    try:
        found.open()
    except BaseException:
        found.close()
        raise
    return found


class SshHost(RemoteHost):
    """Implements Host. Calls may come from several threads."""

    def __init__(self, host: GpuHost) -> None:
        launcher = shipped.bundle().launcher(host.state_dir)
        super().__init__(host.name, self._carried, python=launcher, call_timeout_s=host.timeouts.command)
        self.host = host
        self._lock = threading.Lock()
        self._way: Way | None = None
        self._failed = (float("-inf"), "")
        self._asking = threading.local()
        self._link = LineLink(f"{host.name}: link over SSH", self._serving, unsent=_Unsent, lost=_Lost)
        self._sudo: list[str] = []
        self._driver, self._systemd, self.python_version = "", False, ""

    def open(self) -> None:
        """Connect and make the host ready, unless that is done. Raises Unreachable or Refused."""
        self._connected()

    def close(self) -> None:
        """End the connection; what was spawned goes on. The next call makes another one."""
        self._end(drop=False)

    def _end(self, *, drop: bool) -> None:
        self._link.close()
        with self._lock:
            way, self._way = self._way, None
        if way is not None:
            way.close(drop=drop)

    @property
    def fingerprint(self) -> str:
        """Return that of the host's key, as `ssh-keygen -l` shows it."""
        return self._connected().fingerprint

    def address_of_driver(self) -> str:
        """Return the IP address that the host sees its commands come from: the jump host's, where there is one."""
        self._connected()
        return self._driver

    @property
    def has_systemd(self) -> bool:
        """Whether systemd runs there."""
        self._connected()
        return self._systemd

    def spawn(self, argv: Sequence[str], *, log: str) -> None:
        """Start a command that outlives driver, link and session; its output goes to the file `log`."""
        if not self.has_systemd:
            super().spawn(argv, log=log)
            return
        unit = f"--unit=drill-spawn-{uuid.uuid4().hex[:12]}"
        # A manager reads $NAME in the words of a unit, and $$ as $.
        words = [word.replace("$", "$$") for word in ("/bin/sh", "-c", _IN_UNIT, log, *argv)]
        made = ["sh", "-c", _UNIT, log, "--quiet", "--collect", unit, "--", *words]
        done = self.run(made, timeout_s=self.host.timeouts.command)
        if done.rc != 0:
            raise Refused(f"{self.name}: spawn: systemd-run: {_ended(done)}")

    # ---- calls ---------------------------------------------------------------------------------------

    def _carried(self, argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
        self._asking.since_mono = time.monotonic()
        try:
            return self._answered(argv, stdin, timeout_s)
        finally:
            del self._asking.since_mono

    def _answered(self, argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
        order: Json = json.loads(stdin)
        try:
            said = self._link.ask(order, timeout_s)
        except _Unsent:
            return self._by_itself(argv, stdin, timeout_s)
        except _Lost:
            if order["call"] not in READS:
                raise
            return self._by_itself(argv, stdin, timeout_s)
        if said is None:
            self._end(drop=True)  # what answers nobody in time is not kept
        return Completed(tuple(argv), 0 if said else TIMED_OUT, said or "", "", timed_out=said is None)

    def _by_itself(self, argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
        """Make one call by a command of its own."""
        done = self._executed(self._connected(), [*self._sudo, *argv], stdin.encode(), timeout_s)
        return replace(done, out=(done.out.strip().splitlines() or [""])[-1])  # a shell may greet first

    def _executed(self, way: Way, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Completed:
        try:
            return sshway.execute(way, command_line(argv), stdin, timeout_s)
        except Broke as error:
            kind, what = (_Lost, "the answer is not known") if error.begun else (_Unsent, "nothing was begun")
            raise kind(f"{self.name}: the SSH connection broke, so {what}: {error}") from None

    def _serving(self, timeout_s: float) -> _Channel:
        """Start the process there that answers calls."""
        way = self._connected()
        line = command_line([*self._sudo, self.python, "-m", PROGRAM, SERVE, str(SILENCE_S)])
        try:
            return _Channel(sshway.session(way, line, min(timeout_s, self.host.timeouts.command)))
        except Broke as error:
            raise _Unsent(f"{self.name}: no channel over SSH: {error}") from None

    # ---- the connection ------------------------------------------------------------------------------

    def _connected(self) -> Way:
        """Return the way, made now if there is none. Who waited while another tried in vain need not wait again."""
        since_mono = getattr(self._asking, "since_mono", time.monotonic())
        with self._lock:
            if self._way is not None and self._way.stands():
                return self._way
            if since_mono < self._failed[0]:
                raise Unreachable(self._failed[1])
            if self._way is not None:
                self._way.close(drop=True)
                self._way = None
            try:
                way = sshway.opened(self.host)
                try:
                    self._made_ready(way)
                except BaseException:
                    way.close()
                    raise
            except Unreachable as error:
                self._failed = (time.monotonic(), str(error))
                raise Unreachable(str(error)) from None  # whatever was lost there, it was not the call
            self._way = way
            return way

    def _made_ready(self, way: Way) -> None:
        """See who we are there and ship what runs there. Raises Refused."""
        probe = self._asked(way, ["sh", "-c", _PROBE], b"", self.host.timeouts.command)
        words = next((line.split() for line in probe.out.splitlines() if line.startswith("drill ")), [])
        if len(words) < 3:
            raise Refused(f"{self.name}: {self.host.user} can run no command there: {_ended(probe)}")
        self._driver = words[2]
        self._sudo = [] if words[1] == "0" else self._by_sudo(way)
        self._shipped(way)

    def _by_sudo(self, way: Way) -> list[str]:
        """Return the words that make a command one of root's."""
        user = self.host.user
        if not self.host.sudo:
            raise Refused(f"{self.name}: {user} is not root there, and `sudo: false`: log in as root, or allow sudo")
        done = self._asked(way, [*SUDO, "true"], b"", self.host.timeouts.command)
        if done.rc != 0:
            raise Refused(
                f"{self.name}: {user} is not root there, and `sudo -n` does not help: {_ended(done)}; "
                f"put the line '{user} ALL=(root) NOPASSWD: ALL' into /etc/sudoers.d/drill there"
            )
        return list(SUDO)

    def _shipped(self, way: Way) -> None:
        argv, packed = shipped.shipping(self.host.state_dir)
        done = self._asked(way, [*self._sudo, *argv], packed, SHIP_TIMEOUT_S)
        try:
            said: Json = json.loads(done.out.strip().splitlines()[-1])
        except (ValueError, LookupError):
            raise Refused(f"{self.name}: {_no_python(done)}") from None
        if not said["ok"]:
            raise Refused(f"{self.name}: what runs there cannot be put there: {said['error']}")
        self._systemd, self.python_version = bool(said["systemd"]), str(said["version"])

    def _asked(self, way: Way, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Completed:
        done = self._executed(way, argv, stdin, timeout_s)
        if done.timed_out:
            raise Unreachable(f"{self.name}: `{shlex.join(argv[:3])[:80]}` there did not end within {timeout_s:g} s")
        return done


def _no_python(done: Completed) -> str:
    oldest = ".".join(map(str, shipped.OLDEST))
    if done.rc == shipped.NO_PYTHON:
        return f"there is no python3, and {oldest} or newer is needed: install it there"
    if done.rc == shipped.TOO_OLD:
        return f"its {done.out.strip() or 'python3'} is too old: install {oldest} or newer there, beside it if need be"
    return f"what runs there could not be put there: {_ended(done)}"


def _ended(done: Completed) -> str:
    """Return in a few words how a command went wrong."""
    return f"status {done.rc}: {(done.err.strip().splitlines() or ['it said nothing'])[-1][:200]}"


class _Channel:
    """A channel to a process there, as a pipe for lines. Empty lines tell it that we are still here."""

    def __init__(self, channel: Any) -> None:
        self._channel, self._lock, self._ended = channel, threading.Lock(), threading.Event()
        channel.settimeout(SEND_TIMEOUT_S)
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def send(self, line: bytes) -> None:
        """Send a whole line (OSError)."""
        try:
            with self._lock:
                self._channel.sendall(line)
        except (paramiko.SSHException, EOFError) as error:
            raise OSError(str(error) or type(error).__name__) from None

    def recv(self) -> tuple[bool, bytes] | None:
        """Return what comes next; what was said on standard error comes last."""
        data: bytes | None = None
        while data is None:
            with suppress(TimeoutError):  # that is for what is sent: an answer may take as long as it likes
                data = self._channel.recv(sshway.CHUNK)
        if data:
            return False, data
        return (True, data) if (data := self._channel.recv_stderr(sshway.CHUNK)) else None

    def shutdown(self) -> None:
        """End the channel, and with it the process."""
        self._ended.set()
        self._channel.close()

    def _beat(self) -> None:
        with suppress(Exception):  # the reader finds out what is wrong
            while not self._ended.wait(BEAT_S):
                self.send(b"\n")
