"""The way to a host over SSH: connected, its host key known, the user let in; through a jump host where one is named.

Every step has a time-out of its own. Paramiko's own client would take any first key type for the only one, wait for an
agent for ever, and add what it finds; here each step is taken by itself.
"""

from __future__ import annotations

import logging
import shlex
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import paramiko

from drills.access import knownhosts, sshkeys
from drills.access.knownhosts import HostKey, Known
from drills.access.sshkeys import Agent, Offer
from drills.errors import DrillError, Refused, Unreachable, first_line
from drills.model import Completed
from drills.targetfile import GpuHost, SshTimeouts

KEEP_ALIVE_S: Final = 10
#: What was sent and nobody has confirmed for so long ends the connection: whoever waits for an answer is told.
SILENCE_MS: Final = 30_000
OUTPUT_MAX: Final = 64 << 20  # bytes
CHUNK: Final = 1 << 15
TIMED_OUT: Final = 124
NOT_SAID: Final = 255  # the host did not say how a command ended

# It writes a stack trace for every connection that ends; what is wrong is said in our own errors.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


@dataclass
class Way:
    """A connection that stands. Its parts are ended together."""

    transport: Any  # paramiko.Transport to the host itself
    fingerprint: str  # of the host's key
    parts: list[Callable[[], object]] = field(default_factory=list)
    tcp: socket.socket | None = None  # of this machine, to the host or the jump host

    def stands(self) -> bool:
        """Whether it has not ended yet; one that is silent may be found out later."""
        return bool(self.transport.is_active())

    def close(self, *, drop: bool = False) -> None:
        """End it, and whoever waits for something that comes by it is told.

        With `drop` what nobody has confirmed yet is forgotten: the kernel would go on sending it for many minutes, and
        deliver it once the network is back.
        """
        if drop and self.tcp is not None:
            with suppress(OSError):
                self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while self.parts:
            with suppress(Exception):
                self.parts.pop()()


@dataclass(frozen=True)
class _Hop:
    who: str  # for errors
    address: str
    port: int
    user: str
    key: str | None


def opened(host: GpuHost) -> Way:
    """Return a way to the host. Raises Unreachable when it does not answer, Refused when it, or we, must not."""
    limits, way = host.timeouts, Way(None, "")
    agent = _agent_of(way, limits)
    hop = _Hop(f"{host.name}: {host.address} port {host.ssh_port}", host.address, host.ssh_port, host.user, host.key)
    try:
        if host.jump is None:
            link = way.tcp = _connected(hop, limits)
        else:
            jump = host.jump
            where = f"{host.name}: jump host {jump.address} port {jump.ssh_port}"
            first = _Hop(where, jump.address, jump.ssh_port, jump.user or host.user, jump.key or host.key)
            way.tcp = _connected(first, limits)
            link = _forwarded(_let_in(way, first, way.tcp, host, agent), hop, limits)
        way.transport = _let_in(way, hop, link, host, agent)
        way.fingerprint = _key_of(way.transport).fingerprint
    except BaseException:
        way.close()
        raise
    return way


def _agent_of(way: Way, limits: SshTimeouts) -> Callable[[], Agent | None]:
    """Return what gives the agent to who needs it, the same one to all; it is left with the way."""

    @cache
    def agent() -> Agent | None:
        found = sshkeys.agent(limits.auth)
        way.parts += [found.close] if found else []
        return found

    return agent


# ---- step by step --------------------------------------------------------------------------------------


def _connected(hop: _Hop, limits: SshTimeouts) -> socket.socket:
    try:
        link = socket.create_connection((hop.address, hop.port), timeout=limits.connect)
    except TimeoutError:
        raise Unreachable(f"{hop.who}: no connection within {limits.connect:g} s") from None
    except OSError as error:
        raise Unreachable(f"{hop.who}: cannot be connected to: {error.strerror or error}") from None
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
    return link


def _forwarded(first: Any, hop: _Hop, limits: SshTimeouts) -> Any:
    """Return a channel through a jump host."""
    try:
        there, here = (hop.address, hop.port), ("127.0.0.1", 0)
        return first.open_channel("direct-tcpip", there, here, timeout=limits.connect)
    except paramiko.ChannelException as error:
        hint = "; it may forbid forwarding (AllowTcpForwarding)" if error.code == 1 else ""
        raise Unreachable(f"{hop.who}: the jump host cannot connect to it: {error.text}{hint}") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise Unreachable(f"{hop.who}: no connection through the jump host: {_why(error)}") from None


def _let_in(way: Way, hop: _Hop, link: Any, host: GpuHost, agent: Callable[[], Agent | None]) -> Any:
    """Return a transport on which the host is the one that is known, and the user is let in."""
    way.parts.append(link.close)
    files = knownhosts.DEFAULT if host.known_hosts is None else (host.known_hosts,)
    try:
        known = knownhosts.known(files, hop.address, hop.port)
        keys = sshkeys.offers(hop.key, agent)
    except Refused as error:
        raise Refused(f"{hop.who}: {error}") from None
    transport = paramiko.Transport(link)
    way.parts.append(transport.close)
    _greeted(transport, hop, known, host.timeouts)
    _refuse_stranger(hop, known, _key_of(transport), files[0])
    _authenticated(transport, hop, keys, host.timeouts)
    transport.set_keepalive(KEEP_ALIVE_S)
    return transport


def _greeted(transport: Any, hop: _Hop, known: Known, limits: SshTimeouts) -> None:
    """Exchange banners and keys; the types of key that are known come first, so that a known key is shown."""
    transport.banner_timeout, transport.handshake_timeout = limits.banner, limits.auth
    transport.auth_timeout = limits.auth
    options = transport.get_security_options()
    first = [name for key in known.keys for name in _algorithms(key.type) if name in options.key_types]
    options.key_types = [*dict.fromkeys([*first, *options.key_types])]
    try:
        transport.start_client(timeout=limits.banner + limits.auth)
    except (paramiko.SSHException, OSError, EOFError) as error:
        if transport.remote_version == "" or "banner" in str(error):
            why = f"says nothing that is SSH within {limits.banner:g} s"
            raise Unreachable(f"{hop.who}: {why}: is that the port of its SSH server?") from None
        raise Unreachable(f"{hop.who}: no agreement with its SSH server: {_why(error)}") from None
    if not transport.initial_kex_done:
        raise Unreachable(f"{hop.who}: no keys were exchanged within {limits.auth:g} s")


def _algorithms(key_type: str) -> Sequence[str]:
    return ("rsa-sha2-512", "rsa-sha2-256") if key_type == "ssh-rsa" else (key_type,)


def _key_of(transport: Any) -> HostKey:
    key = transport.get_remote_server_key()
    return HostKey(key.get_name(), key.asbytes())


def _refuse_stranger(hop: _Hop, known: Known, key: HostKey, file: str) -> None:
    """Refuse a host whose key is not known, or is not the one that is known (Refused)."""
    shown = f"{key.type} {key.fingerprint}"
    for one in known.revoked:
        if one.blob == key.blob:
            raise Refused(f"{hop.who}: its host key {shown} is revoked in {one.where}")
    if any(one.blob == key.blob for one in known.keys):
        return
    into = shlex.quote(str(Path(file).expanduser()))
    add = f"echo {shlex.quote(f'{known.name} {key.text}')} >> {into}"
    if not known.keys:
        compare = "compare it with `ssh-keygen -lf` of a file /etc/ssh/ssh_host_*_key.pub there"
        raise Refused(f"{hop.who}: its host key is not known: {shown}; {compare}, then: {add}")
    was = ", ".join(f"{one.type} {one.fingerprint} in {one.where}" for one in known.keys)
    forget = [f"ssh-keygen -f {shlex.quote(path)} -R {shlex.quote(known.name)}" for path in _paths(known)]
    why = "somebody may be in between; only if it was set up anew"
    raise Refused(
        f"{hop.who}: its host key is ANOTHER one: {shown}, known is {was}; {why}: {'; '.join([*forget, add])}"
    )


def _paths(known: Known) -> list[str]:
    return list(dict.fromkeys(key.path for key in known.keys))


def _authenticated(transport: Any, hop: _Hop, keys: Sequence[Offer], limits: SshTimeouts) -> None:
    tried: list[str] = []
    for offer in keys:
        tried.append(offer.what)
        try:
            more = transport.auth_publickey(hop.user, offer.key)
        except paramiko.BadAuthenticationType as error:
            ways = ", ".join(error.allowed_types)
            raise Refused(f"{hop.who}: lets nobody in by a key, only by {ways}: PubkeyAuthentication there") from None
        except paramiko.AuthenticationException as error:
            if "timeout" in str(error).lower():
                why = f"{hop.user} was neither let in nor refused within {limits.auth:g} s"
                raise Unreachable(f"{hop.who}: {why}") from None
            if not transport.is_active():
                break
            continue
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(f"{hop.who}: broke off while {hop.user} was being let in: {_why(error)}") from None
        if not more:
            return
        raise Refused(f"{hop.who}: wants more than a key from {hop.user}: {', '.join(more)}; let a key suffice there")
    with_what = ", ".join(tried[:3]) + (f" and {len(tried) - 3} more" if len(tried) > 3 else "")
    hint = "name the right one with `key`" if len(tried) > 1 else f"put its public part into ~{hop.user}/.ssh/"
    hint += "" if len(tried) > 1 else "authorized_keys there, which nobody else may be able to write"
    raise Refused(f"{hop.who}: {hop.user} is not let in with {with_what}: {hint}")


def _why(error: BaseException) -> str:
    return first_line(error)[:200]


# ---- a command -----------------------------------------------------------------------------------------


class Broke(DrillError):
    """The way broke; what became of the command is not known, unless it had not `begun`."""

    def __init__(self, text: str, *, begun: bool) -> None:
        super().__init__(text)
        self.begun = begun


def session(way: Way, line: str, timeout_s: float) -> Any:
    """Start a command; returns its channel. Raises Broke."""
    begun = False
    try:
        with _bounded(way, timeout_s):
            channel = way.transport.open_session(timeout=timeout_s)
            begun = True
            channel.exec_command(line.encode(errors="surrogateescape"))
            return channel
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise Broke(_why(error), begun=begun) from None


def execute(way: Way, line: str, stdin: bytes, timeout_s: float) -> Completed:
    """Run a command to its end. One that takes longer ends the way with it: a timeout is a result. Raises Broke."""
    out, err, rc, late = bytearray(), bytearray(), TIMED_OUT, threading.Event()
    channel = session(way, line, timeout_s)
    try:
        with _bounded(way, timeout_s, late):
            channel.sendall(stdin)
            channel.shutdown_write()
            while (data := channel.recv(CHUNK)) and len(out) <= OUTPUT_MAX:
                out += data
            while (data := channel.recv_stderr(CHUNK)) and len(err) <= OUTPUT_MAX:
                err += data
            rc = channel.recv_exit_status()
    except (paramiko.SSHException, OSError, EOFError) as error:
        if not late.is_set():
            raise Broke(_why(error), begun=True) from None
    finally:
        with suppress(Exception):
            channel.close()
    if not late.is_set() and rc < 0:
        if not way.stands():
            raise Broke("the connection ended before the command did", begun=True)
        rc = NOT_SAID
    texts = bytes(out).decode(errors="replace"), bytes(err).decode(errors="replace")
    return Completed((line,), TIMED_OUT if late.is_set() else rc, *texts, timed_out=late.is_set())


@contextmanager
def _bounded(way: Way, timeout_s: float, late: threading.Event | None = None) -> Iterator[None]:
    """End the way when the block takes longer: some of paramiko's waits have no time-out."""

    def end() -> None:
        if late is not None:
            late.set()
        way.close(drop=True)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
