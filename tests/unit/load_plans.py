"""Load plans for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drills.load.plan import LoadPlan
from drills.model import Json


def plan_json(url: str = "http://127.0.0.1:1/v1", **changes: Any) -> Json:
    """Return LOAD.json as the driver writes it, for quick tests; `changes` replace top-level keys."""
    return {
        "run": "0badcafe",
        "url": url,
        "model": "lab-chat",
        "api_key_file": None,
        "headers": {"X-Drill-Run": "0badcafe"},
        "user": "drill-0badcafe",
        "seed": 7,
        "arrivals": {"kind": "poisson", "rate": 20.0},
        "workload": {
            "name": "chat",
            "turns": 4,
            "prefix_tokens": 512,
            "turn_tokens": 64,
            "answer_tokens": 8,
            "think_s": 2.0,
        },
        "client": client_json(),
        "fallback_models": ["lab-small"],
        "cached_header": {"header": "x-cache", "value": "hit"},
        "max_duration_s": 60.0,
        "cap": 100,
        "records": "/dev/null",
        "cpu": None,
        **changes,
    }


def client_json(retries: Json | None = None, **changes: Any) -> Json:
    """Return the `client` part; `retries` and `changes` replace its keys."""
    return {
        "timeout_s": 2.0,
        "idle_timeout_s": 0.3,
        "connect_timeout_s": 0.3,
        "keepalive": False,
        "retries": {
            "max": 0,
            "backoff_s": 0.01,
            "backoff_max_s": 0.05,
            "jitter": "full",
            "budget": None,
            "header": False,
            **(retries or {}),
        },
        **changes,
    }


def load_plan(url: str = "http://127.0.0.1:1/v1", **changes: Any) -> LoadPlan:
    """Return the same as a value."""
    return LoadPlan.of(plan_json(url, **changes), Path("load.json"))
