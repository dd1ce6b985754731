"""Where a proxy can stand on its machine: a free port, the engine behind it, nobody else who leads its traffic away."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from drills.access.local import LocalHost
from drills.errors import DrillError
from drills.fronts import words
from drills.plain import Json

#: Where a proxy listens: below the ports that connections of the machine itself are given.
PORTS = range(21100, 21400)
SYSTEMD = Path("/run/systemd/system")
START_S = 15.0
_LISTENS = "0A"
#: Local addresses in /proc/net that stand for all.
_ALL = frozenset({"00000000", "0" * 32})


def led_elsewhere(spot: Json, snapshot: Json) -> str:
    """Say which rule of somebody else leads traffic for the engine away; empty when none does."""
    there = [line for lines in snapshot.values() for line in lines if line.startswith(f"{words.TABLE} ")]
    if spot.get("sources") is None:  # the network is the pod's alone
        mesh = [line for line in there if line.startswith(f"{words.TABLE} -A {words.CHAIN}")]
        return f"its traffic is redirected already, by a service mesh perhaps: {mesh[0]}" if mesh else ""
    ours = [line for line in there if _leads(line, spot["port"])]
    return f"traffic to port {spot['port']} is led elsewhere already: {ours[0]}" if ours else ""


def _leads(line: str, port: int) -> bool:
    """Whether a rule leads away what comes to that port, or whatever comes in."""
    given = line.split()
    if not {"DNAT", "REDIRECT", "NETMAP"} & set(given) or "OUTPUT" in given[:3]:
        return False
    ports = next((given[i + 1] for i, word in enumerate(given[:-1]) if word in ("--dport", "--dports")), None)
    if ports is None:  # in a chain of somebody's own something else has told it apart before
        return f"-A {words.CHAIN} " in line
    return any(_holds(one, port) for one in ports.split(","))


def _holds(ports: str, port: int) -> bool:
    first, _, last = ports.partition(":")
    return int(first) <= port <= int(last or first)


def free_port(spot: Json) -> int:
    """Return a port nobody uses there; several proxies may be looking for one at the same time."""
    used = {port for _, port, _ in sockets(spot)}
    free = [port for port in PORTS if port not in used]
    nth = spot.get("nth", 0) if spot["netns"] is None else 0
    if nth >= len(free):
        raise DrillError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")
    return free[nth]


def upstream(spot: Json) -> str:
    """Return where the proxy reaches the engine, HOST:PORT. Raises DrillError when nobody listens there."""
    if spot["netns"] is not None:
        return f"{spot['ip']}:{spot['port']}"
    ends = {address for address, port, state in sockets(spot) if port == spot["port"] and state == _LISTENS}
    if not ends:
        raise DrillError(f"nobody listens on port {spot['port']} in the host's own network")
    plain = sorted(one for one in ends if len(one) == 8 and one not in _ALL)
    if not plain or ends & _ALL:
        return f"127.0.0.1:{spot['port']}"
    return f"{'.'.join(str(byte) for byte in reversed(bytes.fromhex(plain[0])))}:{spot['port']}"


def sockets(spot: Json) -> Iterator[tuple[str, int, str]]:
    """Yield (local address, local port, state) of every TCP socket in the spot's network, as the kernel writes them."""
    who = "self" if spot["netns"] is None else str(spot["netns"]["pid"])
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            lines = (Path("/proc") / who / "net" / name).read_text().splitlines()[1:]
            for line in lines:
                fields = line.split()
                address, _, port = fields[1].rpartition(":")
                yield address, int(port, 16), fields[3]


def start(host: LocalHost, spot: Json, argv: Sequence[str]) -> None:
    """Start the proxy so that it outlives whoever asked for it: on a host with systemd as a unit of its own.

    There a session's processes may all be ended with it. A manager of units reads $NAME in their words, and $$ as $.
    """
    log = f"{spot['folder']}/proxy.log"
    runner = shutil.which("systemd-run") if spot["netns"] is None and SYSTEMD.is_dir() else None
    if runner is None:
        host.spawn(argv, log=log)
        return
    unit = f"--unit=drill-proxy-{words.mark(spot, spot['tag'])}"
    logged = [word.replace("$", "$$") for word in ("/bin/sh", "-c", 'exec "$@" >> "$0" 2>&1', log, *argv)]
    done = host.run([runner, "--quiet", "--collect", unit, *logged], timeout_s=START_S)
    if done.rc:
        why = (done.err.strip().splitlines() or ["no reason given"])[-1]
        raise DrillError(f"systemd does not start its proxy: {why[:200]}")
