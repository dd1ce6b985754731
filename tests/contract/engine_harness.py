"""Runs an engine and talks to it over raw sockets, for the contract suite.

Every case is stated in bytes and HTTP, so the same suite faces two kinds of engine: the emulator, and with
DRILL_CONTRACT_ENGINE=vllm (`make test-vllm`) real vLLM, whose tiny model counts as the emulator does. A kind is one
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

from drills.lab import tiny_model, vllm_engine

MODEL = "tiny"
CORE_TITLE = "VLLM::EngineCore"
CHOSEN = os.environ.get("DRILL_CONTRACT_ENGINE", "emulator")
REAL = CHOSEN == "vllm"
DEADLINE_S = 90.0 if REAL else 20.0
START_S = 300.0 if REAL else 20.0
Options = dict[str, str | bool]


def emulator_command(port: int, options: Options) -> list[str]:
    command = [sys.executable, "-m", "drills.lab.engine.server", "--port", str(port), "--model", MODEL]
    for name, value in {"startup_s": "0", "orphan_lives_s": "30", **options}.items():
        flag = f"--{name.replace('_', '-')}"
        command += [flag] if value is True else [flag, str(value)]
    return command


#: In a block are as many tokens as the CPU build likes; the suite's own block size is half of that.
BLOCK = 32
#: How fast an emulator is and how it is called: settings that a real engine does not have.
EMULATED = frozenset(
    [
        "startup_s",
        "step_base_ms",
        "step_per_seq_ms",
        "prefill_tokens_per_s",
        "drain_teardown_s",
        "orphan_lives_s",
        "name",
        "gpu_uuid",
    ]
)


def real_options(options: Options) -> Options:
    """Return the options that make a difference to real vLLM, in its words."""
    real = {k: v for k, v in options.items() if k not in EMULATED}
    blocks, size = real.pop("kv_blocks", None), int(real.pop("block_size", 16))
    if blocks is not None:
        real["num_gpu_blocks_override"] = str(int(blocks) * size // BLOCK)
    if real.pop("no_prefix_cache", False):
        real["no_enable_prefix_caching"] = True
    if "shutdown_timeout" in real:  # whole seconds
        real["shutdown_timeout"] = str(max(1, round(float(real["shutdown_timeout"]))))
    return {"block_size": str(BLOCK), **real}


def vllm_command(port: int, options: Options) -> list[str]:
    device = options.pop("gpu_device", None)
    real = {"host": "127.0.0.1", "port": str(port), "served_model_name": MODEL, **real_options(options)}
    flags = [f"--{k.replace('_', '-')}" + ("" if v is True else f"={v}") for k, v in real.items()]
    model = Path(os.environ["DRILL_VLLM_MODEL"])
    return vllm_engine.argv(vllm_engine.executable(), tiny_model.make(model), *flags, device=str(device or "") or None)


_COMMANDS: dict[str, Callable[[int, Options], list[str]]] = {"emulator": emulator_command, "vllm": vllm_command}
KINDS = {CHOSEN: _COMMANDS[CHOSEN]}


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
    options: Options = field(default_factory=dict)
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
            assert self.process.poll() is None, "the API server has ended, and its core with it"
            children = psutil.Process(self.process.pid).children()
            found[:] = [p for p in children if (p.cmdline() or [""])[0].strip() == CORE_TITLE]
            return bool(found)

        until(look, "a child titled VLLM::EngineCore")
        for process in (found[0], *found[0].children()):  # real vLLM has a worker below its core
            self.known[process.pid] = process.create_time()
        return found[0]

    def signal(self, number: signal.Signals) -> float:
        """Signal the API server; return when (monotonic)."""
        self.process.send_signal(number)
        return time.monotonic()

    def wait_exit(self, timeout_s: float = DEADLINE_S) -> int:
        return self.process.wait(timeout_s)

    def clean_up(self) -> None:
        """End what is left: a core whose API server was killed, and its worker; its resource tracker ends by itself."""
        with contextlib.suppress(AssertionError, psutil.Error):
            if self.process.poll() is None:
                self.core()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10 if REAL else 0.01)
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
            KINDS[kind](port, dict(options)), stderr=out, stdout=out, env=os.environ | {"PYTHONUNBUFFERED": "1"}
        )
    engine = Engine(kind, port, process, log, identity(options))
    try:
        yield engine
    finally:
        engine.clean_up()


@contextlib.contextmanager
def running(kind: str, folder: Path, **options: str | bool) -> Iterator[Engine]:
    """Start an engine and wait until it is healthy."""
    with starting(kind, folder, **options) as engine:
        until(lambda: engine.health() == 200 or engine.process.poll() is not None, "the engine is healthy", START_S)
        assert engine.process.poll() is None, engine.log.read_text()
        engine.core()
        yield engine


class Pool:
    """Starts engines for tests. Real ones take most of a minute, so the last one is kept while it is as good as new."""

    def __init__(self) -> None:
        self._kept: tuple[Engine, contextlib.ExitStack] | None = None

    @contextlib.contextmanager
    def borrow(self, kind: str, folder: Path, **options: str | bool) -> Iterator[Engine]:
        """Give an engine with these options; afterwards it is kept, or ended."""
        wanted = identity(options)
        if self._kept is None or self._kept[0].options != wanted or not pristine(self._kept[0]):
            self.close()
            stack = contextlib.ExitStack()
            self._kept = stack.enter_context(running(kind, folder, **options)), stack
        (engine, stack), self._kept = self._kept, None
        try:
            yield engine
        finally:
            if REAL and pristine(engine) and self._kept is None:
                self._kept = engine, stack
            else:
                stack.close()

    def close(self) -> None:
        """End the engine that is kept."""
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None


def identity(options: Options) -> Options:
    """Return what makes one real engine different from another: options, and settings in the environment."""
    settings = {k: v for k, v in os.environ.items() if k.startswith("VLLM_")}
    return {k: v for k, v in options.items() if k not in EMULATED} | settings


def pristine(engine: Engine) -> bool:
    """Whether the engine is up and idle."""
    with contextlib.suppress(OSError, AssertionError):
        return engine.health() == 200 and engine.running() == engine.waiting() == 0
    return False
