"""Runs an engine and talks to it over raw sockets, for the contract suite.

Every case is stated in bytes and HTTP, so the same suite can face another kind of engine: a kind is one
function that turns the suite's options into a command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MODEL = "tiny"
CORE_TITLE = "VLLM::EngineCore"
DEADLINE_S = 20.0
Options = dict[str, str | bool]


def emulator_command(port: int, options: Options) -> list[str]:
    command = [sys.executable, "-m", "drills.lab.engine.server", "--port", str(port), "--model", MODEL]
    for name, value in {"startup_s": "0", "orphan_lives_s": "30", **options}.items():
        flag = f"--{name.replace('_', '-')}"
        command += [flag] if value is True else [flag, str(value)]
    return command


KINDS: dict[str, Callable[[int, Options], list[str]]] = {"emulator": emulator_command}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fail with `what` when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


@dataclass
class Reply:
    """An HTTP answer as its bytes came, and how it ended."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool  # Content-Length met or terminal chunk seen; False: the connection ended first

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Return the data of the server-sent events, JSON decoded, `[DONE]` as text."""
        data = [e.removeprefix("data: ") for e in self.body.decode().split("\n\n") if e]
        return [d if d == "[DONE]" else json.loads(d) for d in data]

    def content(self) -> str:
        return "".join(
            c["delta"].get("content", "") for e in self.events() if e != "[DONE]" for c in e.get("choices", [])
        )

    def finish(self) -> str | None:
        reasons = [c["finish_reason"] for e in self.events() if e != "[DONE]" for c in e.get("choices", [])]
        return reasons[-1] if reasons else None

    def usage(self) -> dict[str, int]:
        found: dict[str, int] = next(e["usage"] for e in self.events() if e != "[DONE]" and e.get("usage"))
        return found


@dataclass
class Conversation:
    """One request on a socket of its own, read piece by piece."""

    sock: socket.socket
    raw: bytes = b""
    ended: bool = False  # the server closed
    reset: bool = False
    stamps: list[float] = field(default_factory=list)

    def pump(self, timeout_s: float) -> bool:
        """Read once; False when nothing came in time."""
        self.sock.settimeout(max(timeout_s, 0.001))
        try:
            data = self.sock.recv(1 << 16)
        except TimeoutError:
            return False
        except ConnectionError:
            self.ended = self.reset = True
            return True
        self.ended = not data
        self.raw += data
        self.stamps.append(time.monotonic())
        return True

    def headers(self) -> str:
        """Return the head of the answer, waiting for it."""
        deadline = time.monotonic() + DEADLINE_S
        while b"\r\n\r\n" not in self.raw and not self.ended:
            assert self.pump(deadline - time.monotonic()), "no head of an answer in time"
        return self.raw.partition(b"\r\n\r\n")[0].decode()

    def tokens(self, at_least: int) -> None:
        """Read until so many tokens have come."""
        deadline = time.monotonic() + DEADLINE_S
        while self.raw.count(b'"content":"t') + self.raw.count(b'"text":"t') < at_least:
            assert not self.ended, "the stream ended early"
            assert self.pump(deadline - time.monotonic()), f"no {at_least} tokens in time"

    def silent(self, for_s: float) -> bool:
        """Whether nothing at all comes for so long, neither bytes nor an end."""
        return not self.pump(for_s)

    def falls_silent(self, for_s: float) -> bool:
        """Read what is still on its way (bounded), then say whether nothing more comes for so long."""
        deadline = time.monotonic() + DEADLINE_S / 4
        while time.monotonic() < deadline and not self.ended:
            if self.silent(for_s):
                return True
        return False

    def finish(self, timeout_s: float = DEADLINE_S) -> Reply:
        """Read to the end of the answer, or of the connection."""
        deadline = time.monotonic() + timeout_s
        while not (reply := parse(self.raw)).complete and not self.ended:
            assert self.pump(deadline - time.monotonic()), "the answer did not end in time"
        return reply

    def close(self) -> None:
        self.sock.close()


def parse(raw: bytes) -> Reply:
    head, found, rest = raw.partition(b"\r\n\r\n")
    if not found:
        return Reply(0, {}, b"", complete=False)
    status, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body, complete = unchunk(rest)
    else:
        length = int(headers.get("content-length", "0"))
        body, complete = rest, len(rest) >= length
    return Reply(int(status.split()[1]), headers, body, complete)


def unchunk(data: bytes) -> tuple[bytes, bool]:
    body = b""
    while b"\r\n" in data:
        size_text, _, rest = data.partition(b"\r\n")
        size = int(size_text, 16)
        if len(rest) < size + 2:
            break
        if size == 0:
            return body, True
        body, data = body + rest[:size], rest[size + 2 :]
    return body, False


@dataclass
class Engine:
    """A running engine."""

    kind: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    known: dict[int, float] = field(default_factory=dict)  # pid → create time of processes to clean up

    # ---- HTTP -----------------------------------------------------------------------------------------

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        sock: socket.socket | None = None,
    ) -> Conversation:
        sock = sock or socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)
        lines = [f"{method} {path} HTTP/1.1", "Host: engine", *(f"{k}: {v}" for k, v in (headers or {}).items())]
        if body or method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        sock.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return Conversation(sock)

    def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
        talk = self.send(method, path, body, headers)
        with contextlib.closing(talk):
            if method == "HEAD":
                talk.headers()
                return parse(talk.raw)
            return talk.finish()

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, path: str, value: object, headers: dict[str, str] | None = None) -> Reply:
        return self.request(
            "POST", path, json.dumps(value).encode(), {"Content-Type": "application/json"} | (headers or {})
        )

    def ask(
        self,
        tokens: int,
        *,
        prompt: str = "say it",
        stream: bool = True,
        sock: socket.socket | None = None,
        **more: object,
    ) -> Conversation:
        """Send a chat request for exactly so many tokens, on a connection of its own or the one given."""
        value: dict[str, object] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        if stream:
            value["stream_options"] = {"include_usage": True}
        body = json.dumps(value | more).encode()
        return self.send("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}, sock)

    def health(self) -> int | None:
        """Return the status of /health, None when the port is closed."""
        try:
            return self.get("/health").status or None
        except OSError:
            return None

    def metric(self, name: str, **labels: str) -> float:
        """Return the one series of that name with those labels."""
        for line in self.get("/metrics").body.decode().splitlines():
            series, _, value = line.rpartition(" ")
            bare, _, rest = series.partition("{")
            if bare == name and all(f'{k}="{v}"' in rest for k, v in labels.items()):
                return float(value)
        raise AssertionError(f"no series {name} {labels}")

    def running(self) -> float:
        return self.metric("vllm:num_requests_running")

    def waiting(self) -> float:
        return self.metric("vllm:num_requests_waiting")

    # ---- processes ------------------------------------------------------------------------------------

    def core(self) -> psutil.Process:
        """Return the EngineCore: the child of the API server with that title."""
        found: list[psutil.Process] = []

        def look() -> bool:
            children = psutil.Process(self.process.pid).children()
            found[:] = [p for p in children if (p.cmdline() or [""])[0] == CORE_TITLE]
            return bool(found)

        until(look, "a child titled VLLM::EngineCore")
        self.known[found[0].pid] = found[0].create_time()
        return found[0]

    def signal(self, number: signal.Signals) -> float:
        """Signal the API server; return when (monotonic)."""
        self.process.send_signal(number)
        return time.monotonic()

    def wait_exit(self, timeout_s: float = DEADLINE_S) -> int:
        return self.process.wait(timeout_s)

    def clean_up(self) -> None:
        with contextlib.suppress(AssertionError, psutil.Error):
            if self.process.poll() is None:
                self.core()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for pid, created in self.known.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == created:
                    process.kill()


@contextlib.contextmanager
def starting(kind: str, folder: Path, **options: str | bool) -> Iterator[Engine]:
    """Start an engine, not waiting for its port."""
    port = int(options.pop("port", free_port()))
    log = folder / f"engine-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            KINDS[kind](port, options), stderr=out, stdout=out, env=os.environ | {"PYTHONUNBUFFERED": "1"}
        )
    engine = Engine(kind, port, process, log)
    try:
        yield engine
    finally:
        engine.clean_up()


@contextlib.contextmanager
def running(kind: str, folder: Path, **options: str | bool) -> Iterator[Engine]:
    """Start an engine and wait until it is healthy."""
    with starting(kind, folder, **options) as engine:
        until(lambda: engine.health() == 200 or engine.process.poll() is not None, "the engine is healthy")
        assert engine.process.poll() is None, engine.log.read_text()
        engine.core()
        yield engine
