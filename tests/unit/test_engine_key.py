"""An engine that wants a key, as vLLM does: under /v1 and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, cast

import pytest

from drills.lab.engine.client import EngineClient
from drills.lab.engine.config import parse
from drills.lab.engine.http import App
from drills.lab.engine.metrics import Metrics

CANARY = "sk-canary-2d7e"


class Alive:
    """As much of an engine as these calls need."""

    dead = False


def status(path: str, authorization: str | None) -> int:
    """Return what a GET is answered with."""
    config = parse(["--port=1"])
    app = App(config, cast(EngineClient, Alive()), Metrics(config))
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    headers = [(b"authorization", authorization.encode())] if authorization else []
    asyncio.run(app({"type": "http", "method": "GET", "path": path, "headers": headers}, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("path", "authorization", "expected"),
    [
        ("/v1/models", None, 401),
        ("/v1/models", f"Bearer {CANARY}x", 401),
        ("/v1/models", CANARY, 401),
        ("/v1/models", f"Bearer {CANARY}", 200),
        ("/v1/models", f"bearer {CANARY}", 200),
        ("/health", None, 200),
    ],
)
def test_who_may_ask(monkeypatch: pytest.MonkeyPatch, path: str, authorization: str | None, expected: int) -> None:
    monkeypatch.setenv("VLLM_API_KEY", CANARY)
    assert status(path, authorization) == expected


def test_without_a_key_everybody_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert status("/v1/models", None) == 200
