"""The lab's own network: a namespace for each primary and one for the router, joined by a bridge in one more.

    main: edge, small-0, Prometheus, driver, load     198.18.N.1
      └─ drill-18-N ══ hub (a bridge) ══ router       198.18.N.2
                                       ╠═ replica-0   198.18.N.10
                                       ╚═ replica-1   198.18.N.11  ...

Rules in a replica's namespace harm nobody else, and name the router by its address. The namespaces have no names in
the file system: each lives as long as its sandbox process, and takes its interfaces with it. Of the main namespace
one interface and one route are used, no rule and no sysctl is touched; no other host can reach the lab, for nothing in
it has a default route. IPv4 only.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drills.lab import processes
from drills.lab.processes import Child
from drills.model import Json

LOOPBACK = "127.0.0.1"
#: Set aside for tests of networks: nobody's real addresses.
RANGE = ipaddress.IPv4Network("198.18.0.0/15")
MAIN, ROUTER, FIRST_REPLICA = 1, 2, 10
COMMAND_TIMEOUT_S = 10.0
REACH_TIMEOUT_S = 2.0
_CLONE_NEWNET = 0x40000000
#: Loaded before any fork: between fork and exec nothing may be imported.
_libc = ctypes.CDLL(None, use_errno=True)
#: What a root shell may have left out of its PATH.
_SBIN = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin"


class NetworkError(Exception):
    """The lab cannot have a network of its own; the text says why."""


@dataclass(frozen=True)
class Sandbox:
    """A namespace and the process that holds it."""

    name: str
    child: Child
    fd: int  # of the namespace: it can be entered also when the process is gone
    inode: int

    @property
    def netns(self) -> Json:
        """What names the namespace: a process in it, and its own number."""
        return {"pid": self.child.pid, "start": self.child.start, "inode": self.inode}

    def enter(self) -> None:
        """Move this process in; for a child between fork and exec."""
        if _libc.setns(self.fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


@dataclass(frozen=True)
class Network:
    """Where each part lives. The empty one: everything on 127.0.0.1."""

    subnet: ipaddress.IPv4Network | None = None
    interface: str | None = None  # in the main namespace
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def host(self, name: str) -> str:
        """Return the address that a part listens on."""
        return self.addresses.get(name, LOOPBACK)

    def place(self, name: str) -> Sandbox | None:
        """Return the namespace that a part lives in, None for the main one."""
        return self.sandboxes.get(name)

    def as_json(self) -> Json | None:
        """Return what lab.json says of it, None when there is none."""
        if self.subnet is None:
            return None
        return {
            "subnet": str(self.subnet),
            "interface": self.interface,
            "management": str(self.subnet[MAIN]),
            "router": {"address": self.host("router"), "netns": self.sandboxes["router"].netns},
        }


NO_NETWORK = Network()


def why_not() -> str | None:
    """Return why a lab of this user cannot have a network of its own, None when it can."""
    if os.geteuid() != 0:
        return "it needs root"
    if _ip() is None:
        return "it needs the program ip (package iproute2)"
    try:
        subprocess.run(["/bin/true"], preexec_fn=_unshare, timeout=COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return "this root may not make network namespaces (CAP_SYS_ADMIN is missing)"
    return None


def build(replicas: Sequence[str], log: Path) -> Network:
    """Make the namespaces and join them. Raises NetworkError, with nothing left."""
    sandboxes: dict[str, Sandbox] = {}
    try:
        for name in ("hub", "router", *replicas):
            sandboxes[name] = _sandbox(name, log)
        subnet, interface = _link_to_main(sandboxes["hub"])
        numbers = {"router": ROUTER} | {name: FIRST_REPLICA + index for index, name in enumerate(replicas)}
        addresses = {name: str(subnet[number]) for name, number in numbers.items()}
        _join(sandboxes, addresses)
        _batch([f"addr add {subnet[MAIN]}/{subnet.prefixlen} dev {interface}", f"link set {interface} up"])
        for address in addresses.values():
            _reach(address)
    except (OSError, subprocess.SubprocessError, NetworkError) as error:
        for sandbox in sandboxes.values():
            sandbox.child.popen.kill()
            sandbox.child.popen.wait()
            os.close(sandbox.fd)
        raise NetworkError(f"{error}") from None
    return Network(subnet, interface, sandboxes, addresses)


def _sandbox(name: str, log: Path) -> Sandbox:
    argv = processes.python("drills.lab.sandbox", name)
    child = processes.spawn(f"sandbox-{name}", argv, log, cwd=log.parent.parent, place=_New())
    fd = os.open(f"/proc/{child.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    return Sandbox(name, child, fd, os.fstat(fd).st_ino)


class _New:
    """A namespace that is not there yet."""

    def enter(self) -> None:
        _unshare()


def _unshare() -> None:
    if _libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")


# ---- links and addresses -------------------------------------------------------------------------------


def _link_to_main(hub: Sandbox) -> tuple[ipaddress.IPv4Network, str]:
    """Join the hub to the main namespace by the first subnet that is free.

    Two labs that start at the same moment cannot take the same one: the interface carries its number, and the kernel
    makes it once.
    """
    for subnet in _free_subnets():
        interface = "drill-{1}-{2}".format(*str(subnet.network_address).split("."))
        try:
            _batch([f"link add main type veth peer name {interface} netns {os.getpid()}"], hub)
        except NetworkError as error:
            if "File exists" in str(error):
                continue
            raise
        return subnet, interface
    raise NetworkError(f"no free subnet in {RANGE}")


def _free_subnets() -> Iterator[ipaddress.IPv4Network]:
    """Yield the subnets that no route of the main namespace leads into, the default route aside."""
    done = subprocess.run(
        [str(_ip()), "-4", "-json", "route", "show"], capture_output=True, timeout=COMMAND_TIMEOUT_S, check=True
    )
    named = [str(route["dst"]) for route in json.loads(done.stdout or "[]")]
    routes = [ipaddress.IPv4Network(dst, strict=False) for dst in named if dst != "default"]
    taken = [route for route in routes if route.overlaps(RANGE)]
    for subnet in RANGE.subnets(new_prefix=24):
        if not any(route.overlaps(subnet) for route in taken):
            yield subnet


def _join(sandboxes: dict[str, Sandbox], addresses: dict[str, str]) -> None:
    hub = sandboxes["hub"]
    lines = ["link set lo up", "link add bridge type bridge", "link set bridge up", "link set main master bridge up"]
    for name in addresses:
        lines.append(f"link add {name} type veth peer name eth0 netns {sandboxes[name].child.pid}")
        lines.append(f"link set {name} master bridge up")
    _batch(lines, hub)
    for name, address in addresses.items():
        _batch(["link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"], sandboxes[name])


def _batch(lines: Sequence[str], place: Sandbox | None = None) -> None:
    """Run commands of `ip` in a namespace. Raises NetworkError with the first complaint."""
    done = subprocess.run(
        [str(_ip()), "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        preexec_fn=place.enter if place else None,
        check=False,
    )
    if done.returncode:
        raise NetworkError(f"ip: {(done.stderr.strip().splitlines() or ['no reason given'])[0]}")


def _reach(address: str) -> None:
    """Refused means reached: nothing listens there yet. A firewall of this machine would keep us waiting."""
    try:
        socket.create_connection((address, 9), timeout=REACH_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return
    except OSError as error:
        raise NetworkError(f"{address} cannot be reached from this machine: {error.strerror or error}") from None


def _ip() -> str | None:
    return shutil.which("ip", path=_SBIN)
