"""The links between the test hosts, the router and the driver. Each end goes with its namespace."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable

from tests.hosts.layout import BITS, CONTROL, CONTROL_NUMBER, MANAGE, ROUTER, Machine

COMMAND_TIMEOUT_S, GONE_TIMEOUT_S, POLL_S = 10.0, 10.0, 0.05


def make_control() -> None:
    """Make the bridge of this namespace, which is the driver's, and its address."""
    ip("link set lo up", "link add manage type bridge", "link set manage up")
    ip(f"address add {MANAGE}.{CONTROL_NUMBER}/{BITS} dev manage")


def lay(machine: Machine, networks: dict[str, int]) -> None:
    """Lay the machine's links; this process is in its namespace, `networks` are open ones of the others."""
    ip("link set lo up")
    _join(machine, "manage", networks[CONTROL])
    ip(f"address add {machine.manage}/{BITS} dev manage")
    if machine.is_router:
        ip("link add service type bridge", "link set service up")
    else:
        _join(machine, "service", networks[ROUTER])
    ip(f"address add {machine.service}/{BITS} dev service", f"address add {machine.watch}/{BITS} dev service")


def _join(machine: Machine, bridge: str, network: int) -> None:
    """Plug the machine's end of a link, named as the bridge is, into a bridge of another namespace."""
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while _has(network, machine.name):  # of its last life: the kernel clears up behind it
        if time.monotonic() > deadline:
            raise OSError(f"the old link {machine.name} does not go")
        time.sleep(POLL_S)
    place = f"/proc/self/fd/{network}"
    mac = f"02:00:c6:13:{len(bridge):02x}:{machine.number:02x}"  # the same in each life, as of a card
    ip(f"link add {bridge} address {mac} type veth peer name {machine.name} netns {place}", fds=(network,))
    ip(f"link set {bridge} up")
    ip(f"link set {machine.name} master {bridge} up", network=network)


def _has(network: int, link: str) -> bool:
    argv = ["nsenter", f"--net=/proc/self/fd/{network}", "ip", "link", "show", "dev", link]
    done = subprocess.run(argv, capture_output=True, timeout=COMMAND_TIMEOUT_S, pass_fds=(network,), check=False)
    return done.returncode == 0


def ip(*lines: str, network: int | None = None, fds: Iterable[int] = ()) -> None:
    """Run commands of `ip`, in a namespace that is open as `network`. Raises OSError with the first complaint."""
    argv = ["ip", "-batch", "-"]
    if network is not None:
        argv, fds = ["nsenter", f"--net=/proc/self/fd/{network}", *argv], (network,)
    done = subprocess.run(
        argv,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        pass_fds=tuple(fds),
        check=False,
    )
    if done.returncode:
        raise OSError(f"ip: {(done.stderr.strip().splitlines() or ['no reason given'])[0]}")
