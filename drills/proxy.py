"""The ledger-and-delay proxy: one replica behind it, every attempt on record, faults on command.

    router ──► Link (one client connection) ──► Upstream (its own connection to the replica)

What a client sees through it is what it would see without it: bytes are passed on as they come, refused and RST
stay RST (never a status), FIN stays FIN. A client that goes away, also by half-closing, takes its upstream
connection with it, so that the engine aborts. What differs is chosen on the command line: `--health honest` answers
GET /health by a real one-token completion, and with `--let-in` who comes from another address is reset at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from drills.errors import DrillError, Refused
from drills.ledger import Ledger
from drills.plain import Json
from drills.proxy_beat import beating
from drills.proxy_control import Control, HonestHealth
from drills.proxy_faults import Faults
from drills.proxy_files import FaultFiles
from drills.proxy_link import Link

Address = tuple[str, int]
#: How often `--while` is looked for, and how long requests that are open may go on once it is gone (seconds).
WHILE_POLL_S, DRAIN_S = 0.1, 15.0
PROOFS_KEPT = 32
CLIENTS_KEPT = 1000


@dataclass(frozen=True)
class Options:
    """The command line."""

    listen: Address
    upstream: Address
    control: Address | Path  # a path is a Unix socket
    ledger: Path
    name: str
    role: str
    model: str
    health: str
    faults_dir: Path | None
    only: str = ""  # faults touch requests of paths that begin so, and no other
    lives: Path | None = None  # it drains and ends once this file is gone
    seen: tuple[Path, str] | None = None  # a list of recent addresses, and the one to keep in it
    let_in: Sequence[str] = ()  # addresses whose connections are taken, all others are reset; none: everybody's


class Proxy:
    """Listens for clients and for commands; owns the faults, the ledger and the links."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.upstream = options.upstream
        self.faults = Faults()
        self.files = FaultFiles(options.faults_dir, self.faults, self.changed) if options.faults_dir else None
        self.links: set[Link] = set()
        self.clients: set[str] = set()  # whose connections have come here, addresses
        self.proofs: deque[str] = deque(maxlen=PROOFS_KEPT)  # the last that came in a header X-Drill-Proof
        self.ledger = Ledger(options.ledger, options.name, options.role)
        self.health = HonestHealth(options.upstream, options.model) if options.health == "honest" else None
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop: asyncio.AbstractEventLoop

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until told to stop; then reset what is open and close the ledger."""
        self.loop = asyncio.get_running_loop()
        if self.files is not None:  # before the first client: a restart changes no fault
            self.files.look()
            self.spawn(self.files.watch())
        data = await _listen(
            f"--listen {_address(self.options.listen)}",
            self.loop.create_server(lambda: Link(self), *self.options.listen, backlog=1024),
        )
        where = self.options.control
        control = await _listen(
            f"--control {_address(where)}",
            asyncio.start_unix_server(Control(self).serve, where)
            if isinstance(where, Path)
            else asyncio.start_server(Control(self).serve, *where),
        )
        if self.options.seen is not None:
            self.spawn(beating(*self.options.seen))
        if self.options.lives is not None:
            self.spawn(self._end_with(self.options.lives, stop))
        ready = {"ready": True, "listen": _bound(data), "control": _bound(control)}
        print(json.dumps(ready), flush=True)
        await stop.wait()
        data.close()
        control.close()
        for link in list(self.links):
            link.reset("cut")
        self.ledger.close()

    async def _end_with(self, file: Path, stop: asyncio.Event) -> None:
        """Once the file is gone let go of idle connections, of the others when they are answered, then end."""
        while os.path.exists(file):  # noqa: ASYNC110, ASYNC240, PTH110 - nothing tells of a file's end, and a look is short
            await asyncio.sleep(WHILE_POLL_S)
        deadline = monotonic() + DRAIN_S
        while self.links and monotonic() < deadline:
            for link in list(self.links):
                link.retire()
            await asyncio.sleep(WHILE_POLL_S)
        stop.set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run something beside the data path."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def changed(self) -> None:
        """Tell every connection that the faults have changed."""
        for link in list(self.links):
            link.faults_changed()

    def lets_in(self, peer: Address | None) -> bool:
        """Whether a client may come in, by its address, which is noted then."""
        if self.options.let_in and (peer is None or peer[0] not in self.options.let_in):
            return False
        if peer and len(self.clients) < CLIENTS_KEPT:
            self.clients.add(peer[0])
        return True

    def status(self) -> Json:
        """Return what GET /status shows."""
        return {
            "name": self.options.name,
            "role": self.options.role,
            "model": self.options.model,
            "upstream": _address(self.options.upstream),
            "health": self.options.health,
            "pid": os.getpid(),
            "mono": monotonic(),
            "faults": self.faults.list(),
            "faults_dir": self.files.status() if self.files else None,
            "connections": len(self.links),
            "clients": sorted(self.clients),
            "open": len(self.ledger.open()),
            "closes": dict(sorted(self.ledger.closes.items())),
            "ledger": str(self.options.ledger),
            "ledger_lost": self.ledger.lost,
            "proofs": list(self.proofs),
        }


async def _listen(what: str, server: Awaitable[asyncio.Server]) -> asyncio.Server:
    try:
        return await server
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise Refused(f"{what}: {reason}; choose a free port of this machine") from None


def _bound(server: asyncio.Server) -> str:
    name = server.sockets[0].getsockname()
    return name if isinstance(name, str) else f"{name[0]}:{name[1]}"


def _address(address: Address | Path) -> str:
    return str(address) if isinstance(address, Path) else f"{address[0]}:{address[1]}"


def _parse_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _parse_control(text: str) -> Address | Path:
    return Path(text.removeprefix("unix:")) if text.startswith("unix:") else _parse_address(text)


def _parse_seen(text: str) -> tuple[Path, str]:
    file, at, address = text.rpartition("@")
    if not at or not file:
        raise argparse.ArgumentTypeError(f"{text!r} is not FILE@ADDRESS")
    return Path(file), address


def parse_options(argv: list[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m drills.proxy", description=__doc__.partition("\n")[0])
    parser.add_argument("--listen", type=_parse_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--upstream", type=_parse_address, required=True, metavar="HOST:PORT", help="the replica")
    parser.add_argument(
        "--control", type=_parse_control, required=True, metavar="HOST:PORT|unix:PATH", help="loopback only"
    )
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="appended, one line an attempt")
    parser.add_argument("--name", required=True, help="the replica's name in the ledger")
    parser.add_argument("--role", choices=("primary", "fallback"), default="primary")
    parser.add_argument("--model", default="", help="the model that the honest health probe asks for")
    parser.add_argument("--health", choices=("honest", "passthrough"), default="passthrough")
    parser.add_argument("--faults-dir", type=Path, metavar="DIR", help="a fault is on while its file is in there")
    parser.add_argument("--only", default="", metavar="PATH", help="faults touch requests of paths that begin so")
    parser.add_argument("--while", dest="lives", type=Path, metavar="FILE", help="drain and end once it is gone")
    parser.add_argument("--seen", type=_parse_seen, metavar="FILE@ADDRESS", help="of xt_recent: say that we are alive")
    parser.add_argument("--let-in", action="append", default=[], metavar="ADDRESS", help="reset who comes from others")
    options = Options(**vars(parser.parse_args(argv)))
    if options.health == "honest" and not options.model:
        parser.error("--health honest needs --model")
    return options


async def _run(options: Options) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Proxy(options).serve(stop)


def main(argv: list[str] | None = None) -> int:
    """Run the proxy; return the exit code."""
    options = parse_options(argv)
    try:
        asyncio.run(_run(options))
    except DrillError as error:
        print(f"drills.proxy: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
