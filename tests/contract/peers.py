"""Real peers for tests of what sits between a client and a replica: the test itself is both ends.

Every read has a deadline, so that a test that waits for nothing fails instead of hanging.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEADLINE_S = 10.0


class Peer:
    """One end of a connection, spoken by hand."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        sock.settimeout(DEADLINE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def until(self, end: bytes) -> bytes:
        """Read up to and with `end`; EOFError when the other side closed first."""
        while end not in self.buffer:
            more = self.sock.recv(65536)
            if not more:
                raise EOFError(self.buffer)
            self.buffer += more
        at = self.buffer.index(end) + len(end)
        taken, self.buffer = self.buffer[:at], self.buffer[at:]
        return taken

    def request(self) -> tuple[str, dict[str, str], bytes]:
        """Read one request with a content-length body: first line, lower-case headers, body."""
        head = self.until(b"\r\n\r\n").decode().split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body, length = b"", int(fields.get("content-length", "0"))
        if length:
            while len(self.buffer) < length:
                self.buffer += self.sock.recv(65536)
            body, self.buffer = self.buffer[:length], self.buffer[length:]
        return head[0], fields, body

    def silent(self, seconds: float = 0.15) -> bool:
        """Whether nothing comes for a moment (a bound of the test, not a promise of the code)."""
        self.sock.settimeout(seconds)
        try:
            more = self.sock.recv(65536)
        except TimeoutError:
            return not self.buffer
        finally:
            self.sock.settimeout(DEADLINE_S)
        self.buffer += more
        return False

    def ended(self) -> str:
        """Read to the end; "fin" or "reset". What came before it is in `buffer`."""
        try:
            while more := self.sock.recv(65536):
                self.buffer += more
        except ConnectionResetError:
            return "reset"
        return "fin"

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Close with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Upstream:
    """A replica spoken by hand: the test accepts, reads and answers."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(DEADLINE_S)
        self.port: int = self.listener.getsockname()[1]
        self.accepted: list[Peer] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def accept(self) -> Peer:
        self.accepted.append(Peer(self.listener.accept()[0]))
        return self.accepted[-1]

    def close(self) -> None:
        self.listener.close()
        for peer in self.accepted:
            peer.close()


def free_port() -> int:
    """Return a port that nobody listens on (a connection to it is refused)."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


def connect(address: str) -> Peer:
    host, _, port = address.rpartition(":")
    return Peer(socket.create_connection((host, int(port)), timeout=DEADLINE_S))


def eventually(what: Callable[[], Any], *, timeout_s: float = DEADLINE_S) -> Any:
    """Return the first true value of `what`; AssertionError when there is none in time."""
    end = time.monotonic() + timeout_s
    while not (value := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return value


def http(method: str, url: str, body: Any = None) -> Any:
    """Ask a JSON API; the answer is the JSON, whatever the status."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return {"status": error.code, **json.loads(error.read())}


@contextlib.contextmanager
def process(module: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run a module of the package until the block ends; yields it with the line that says it is ready."""
    argv = [sys.executable, "-m", module, *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as child:
        assert child.stdout is not None
        try:
            yield child, json.loads(child.stdout.readline() or "{}")
        finally:
            child.terminate()
            try:
                child.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                raise


class ProxyUnderTest:
    """A running proxy, its ledger and its control port."""

    def __init__(self, ready: dict[str, Any], ledger: Path, child: subprocess.Popen[str]) -> None:
        self.listen: str = ready["listen"]
        self.control = f"http://{ready['control']}"
        self.path, self.child = ledger, child
        self.clients: list[Peer] = []

    def connect(self) -> Peer:
        self.clients.append(connect(self.listen))
        return self.clients[-1]

    def ledger(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the lines once there are as many as expected."""
        eventually(lambda: self.path.exists() and self.path.read_text().count("\n") >= count)
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def fault(self, mode: str, delay_s: float = 5.0, name: str = "r1") -> Any:
        return http("POST", f"{self.control}/faults", {"id": name, "mode": mode, "delay_s": delay_s})

    def lift(self, name: str = "r1") -> Any:
        return http("DELETE", f"{self.control}/faults/{name}")

    def open(self) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = http("GET", f"{self.control}/ledger/open")
        return answer


@contextlib.contextmanager
def proxy(tmp_path: Path, upstream_port: int, *options: str) -> Iterator[ProxyUnderTest]:
    """Run a proxy in front of a port."""
    ledger = tmp_path / f"ledger-{upstream_port}.ndjson"
    fixed = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--upstream", f"127.0.0.1:{upstream_port}"]
    named = ["--ledger", str(ledger), "--name", "replica-0", "--model", "lab-chat"]
    with process("drills.proxy", *fixed, *named, *options) as (child, ready):
        front = ProxyUnderTest(ready, ledger, child)
        try:
            yield front
        finally:
            for client in front.clients:
                client.close()


def post(request_id: str, body: bytes = b'{"stream":true}', path: str = "/v1/chat/completions") -> bytes:
    """Return a request as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SSE_END = b"0\r\n\r\n"


def event(data: Any) -> bytes:
    """Return one server-sent event as one HTTP chunk."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    raw = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(raw), raw)


def answer(body: bytes, status: str = "200 OK") -> bytes:
    """Return a complete JSON response."""
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
