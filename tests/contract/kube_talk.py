"""Answers of an API server written out by hand, good and bad, and a kubeconfig that leads to them."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.unit.scripted import Script

#: Grepped for in every text that comes out: it must be nowhere.
TOKEN = "canary-token-8f31c2d7"


def reply(status: int, body: object, *headers: str) -> bytes:
    """Return a whole answer; a string body goes out as it is."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Word", "Content-Type: application/json", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + data


def says(status: int, body: object, *headers: str) -> Script:
    """Return a script that answers once like this and keeps the connection."""

    def script(connection: socket.socket, number: int) -> bool:
        connection.sendall(reply(status, body, *headers))
        return True

    return script


def cut(status: int, body: object, keep: int) -> Script:
    """Return a script that ends the connection `keep` bytes before the end of the answer."""

    def script(connection: socket.socket, number: int) -> bool:
        connection.sendall(reply(status, body)[:-keep])
        return False

    return script


def changes(*events: object, end: bytes = b"0\r\n\r\n") -> Script:
    """Return a script that answers a watch with these changes and ends it."""

    def script(connection: socket.socket, number: int) -> bool:
        lines = b"".join(_chunk(json.dumps(event).encode() + b"\n") for event in events)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + lines + end)
        return False

    return script


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def status(code: int, reason: str, message: str = "", **details: Any) -> dict[str, Any]:
    """Return the API's way to say no."""
    return {
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message or reason,
        "details": details,
    }


def pod_list(*names: str, more: str = "", version: str = "7") -> dict[str, Any]:
    """Return a page of pods."""
    items = [{"metadata": {"name": name, "uid": f"uid-{name}"}} for name in names]
    return {"kind": "PodList", "metadata": {"resourceVersion": version, "continue": more}, "items": items}


def kubeconfig(folder: Path, server: str, *, user: dict[str, Any] | None = None, context: str = "test") -> Path:
    """Write a kubeconfig and return its path."""
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": TOKEN} if user is None else user}],
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
        "current-context": context,
    }
    path.write_text(json.dumps(content))  # which is YAML
    return path
