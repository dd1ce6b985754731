"""The vllm-router's command line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from drills.errors import Refused

#: What a deployment that means it would set. Left alone, the router checks health each minute and, once its breaker
#: is open, answers 503 for a minute after the engines are well again. It passes X-Request-Id on, unchanged and the same
#: for each attempt; a request that came without gets an id in the answer only.
HEALTHY = (
    "--policy=round_robin",
    "--health-check-interval-secs=1",
    "--health-check-timeout-secs=1",
    "--health-failure-threshold=2",
    "--cb-timeout-duration-secs=5",
    "--request-id-headers=x-request-id",
    "--worker-startup-timeout-secs=30",
    "--worker-startup-check-interval=1",
    "--log-level=warning",
)


def executable() -> str:
    """Return the path of vllm-router (Refused when it is not installed)."""
    beside = Path(sys.executable).parent / "vllm-router"
    found = str(beside) if beside.exists() else shutil.which("vllm-router")
    if found is None:
        raise Refused("lab: vllm-router is not installed: pip install vllm-router (wheels for Linux only)")
    return found


def version() -> str:
    """Return the installed version of vllm-router."""
    return metadata.version("vllm-router")


def argv(host: str, port: int, metrics_port: int, workers: Sequence[str], extra: Sequence[str] = ()) -> list[str]:
    """Return the command line; `extra` comes last and so wins over the healthy settings."""
    return [
        executable(),
        f"--host={host}",
        f"--port={port}",
        f"--prometheus-host={host}",
        f"--prometheus-port={metrics_port}",
        *HEALTHY,
        *extra,
        "--worker-urls",
        *workers,
    ]
