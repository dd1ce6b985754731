"""What the ledger proxy costs: the same paced streams, direct and through it, in one run.

    python benchmarks/proxy.py [--streams 20] [--tokens 100] [--gap-ms 20]

Prints, for both ways, how long an event takes from the replica to the client (median and p99), and for the proxy the
CPU time of its process per event, with first and last bytes of each stream included. Compare ratios, not absolute
times: they move with the machine and with what else runs on it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nX-Request-Id: %d\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Shape:
    """The load: how many streams at a time, of how many tokens, how far apart."""

    streams: int
    tokens: int
    gap_s: float


async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shape: Shape) -> None:
    """Answer requests by streams whose events carry the time they were sent."""
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(HEAD)
            for _ in range(shape.tokens):
                await asyncio.sleep(shape.gap_s)
                text = f'data: {{"choices":[{{"index":0,"delta":{{"content":"{monotonic():.6f}"}}}}]}}\n\n'.encode()
                writer.write(b"%x\r\n%s\r\n" % (len(text), text))
            writer.write(b"0\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


async def stream(port: int, number: int, shape: Shape) -> list[float]:
    """Read one stream; return the seconds each event took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST % number)
    took = []
    for _ in range(shape.tokens):
        raw = await reader.readuntil(b'"}}]}\n\n\r\n')
        now = monotonic()
        took.append(now - float(raw.rpartition(b'"content":"')[2].partition(b'"')[0]))
    await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    return took


async def way(port: int, shape: Shape) -> list[float]:
    """Run all streams at once over one way."""
    runs = (stream(port, number, shape) for number in range(shape.streams))
    return [took for one in await asyncio.gather(*runs) for took in one]


def show(name: str, took_s: list[float]) -> float:
    """Print one way's figures; return the median."""
    cuts = statistics.quantiles(took_s, n=100)
    median = statistics.median(took_s)
    print(f"{name:8} {len(took_s):6} events   median {median * 1e6:6.0f} µs   p99 {cuts[98] * 1e6:7.0f} µs")
    return median


async def compare(shape: Shape) -> None:
    """Measure both ways in turn, twice, so that neither always goes first."""
    server = await asyncio.start_server(lambda r, w: replica(r, w, shape), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        fixed = ["--listen=127.0.0.1:0", "--control=127.0.0.1:0", f"--upstream=127.0.0.1:{port}", "--name=bench"]
        argv = [sys.executable, "-m", "drills.proxy", *fixed, f"--ledger={Path(folder, 'ledger.ndjson')}"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as proxy:  # noqa: ASYNC220 - before the measurement
            assert proxy.stdout is not None
            front = int(json.loads(proxy.stdout.readline())["listen"].rpartition(":")[2])
            direct, through, cpu_s = [], [], 0.0
            try:
                for _ in range(2):
                    direct += await way(port, shape)
                    before = psutil.Process(proxy.pid).cpu_times()
                    through += await way(front, shape)
                    after = psutil.Process(proxy.pid).cpu_times()
                    cpu_s += after.user + after.system - before.user - before.system
            finally:
                proxy.terminate()
    server.close()
    ratio = show("through", through) / show("direct", direct)
    print(f"ratio    {ratio:.2f} of the medians")
    print(f"proxy    {cpu_s / len(through) * 1e6:.0f} µs of CPU per event")


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--gap-ms", type=float, default=20)
    options = parser.parse_args()
    shape = Shape(options.streams, options.tokens, options.gap_ms / 1000)
    asyncio.run(asyncio.wait_for(compare(shape), DEADLINE_S))


if __name__ == "__main__":
    main()
