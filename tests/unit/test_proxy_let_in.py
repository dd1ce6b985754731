"""Whom a ledger proxy lets in: on a host those that are led to it, and in a pod whoever reaches the pod's port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from drills.proxy import Options, Proxy, parse_options
from drills.proxy_link import Link

KNOWN, STRANGER = "127.0.0.2", "127.0.0.3"
ASKED = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
PATIENCE_S = 10.0


class Engine:
    """What stands behind the proxy; it counts who comes."""

    def __init__(self) -> None:
        self.came = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        writer.close()


async def asked_by(who: Sequence[str], let_in: Sequence[str], folder: Path) -> tuple[list[str], Proxy, int]:
    """Return how it ended for each of these addresses, the proxy, and how many came to the engine."""
    engine, loop = Engine(), asyncio.get_running_loop()
    behind = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    upstream = ("127.0.0.1", int(behind.sockets[0].getsockname()[1]))
    proxy = Proxy(
        Options(
            listen=("127.0.0.1", 0),
            upstream=upstream,
            control=folder / "control",
            ledger=folder / "ledger.ndjson",
            name="gpu-1",
            role="primary",
            model="",
            health="passthrough",
            faults_dir=None,
            let_in=let_in,
        )
    )
    proxy.loop = loop
    front = await loop.create_server(lambda: Link(proxy), "127.0.0.1", 0)
    async with behind, front:
        ends = [await _end(int(front.sockets[0].getsockname()[1]), address) for address in who]
    proxy.ledger.close()
    return ends, proxy, engine.came


async def _end(port: int, address: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        writer.write(ASKED)
        return (await asyncio.wait_for(reader.read(), PATIENCE_S)).decode()[-2:]
    except ConnectionResetError:
        return "reset"
    finally:
        writer.close()


def test_who_is_not_named_is_reset_and_neither_seen_nor_passed_on(tmp_path: Path) -> None:
    ends, proxy, came = asyncio.run(asked_by([STRANGER, KNOWN, STRANGER], [KNOWN], tmp_path))
    assert ends == ["reset", "ok", "reset"]
    assert (came, proxy.clients, proxy.links) == (1, {KNOWN}, set())
    assert len((tmp_path / "ledger.ndjson").read_text().splitlines()) == 1


def test_where_nobody_is_named_everybody_is_let_in(tmp_path: Path) -> None:
    ends, proxy, _ = asyncio.run(asked_by([STRANGER, KNOWN], [], tmp_path))
    assert (ends, proxy.clients) == (["ok", "ok"], {STRANGER, KNOWN})


@pytest.mark.parametrize("named", [[], [KNOWN, STRANGER]])
def test_who_is_let_in_is_said_on_the_command_line(named: list[str]) -> None:
    plain = ["--listen=0.0.0.0:1", "--upstream=127.0.0.1:2", "--control=unix:/c", "--ledger=/l", "--name=r"]
    assert parse_options([*plain, *(f"--let-in={one}" for one in named)]).let_in == named
