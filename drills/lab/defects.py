"""Planted defects: what a lab looks like when something in it is wrong. A drill must find each of them.

A defect changes the lab's own settings and, where the client is part of it, the client settings of the load. Nothing
outside this package names one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drills.errors import UsageError, nearest
from drills.lab.config import LabConfig


@dataclass(frozen=True)
class Defect:
    """One thing that is wrong: a sentence, settings of the lab, and an overlay for `load.client`."""

    what: str
    lab: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)


#: Users see the failures themselves.
NO_WAY_OUT = ("--no-fallback", "--no-cache")

DEFECTS: dict[str, Defect] = {
    # ---- who tries again, and how often
    "no-retries": Defect(
        "nobody tries again: retries, health checks and circuit breaker of the router are off, so are the client's "
        "retries, and the edge passes failures on instead of asking the smaller model",
        lab={
            "router_args": (
                "--disable-retries",
                "--disable-circuit-breaker",
                "--health-check-interval-secs=86400",
                "--health-failure-threshold=1000",
            ),
            "edge_args": NO_WAY_OUT,
        },
        client={"retries": {"max": 0}},
    ),
    "retry-storm": Defect(
        "client and router both try again, without a budget, and the survivors can just carry the load and queue "
        "little: what they turn away comes back many times",
        lab={
            "engine_args": ("--step-base-ms=24", "--max-num-seqs=12", "--max-num-queued-reqs=14"),
            "router_args": ("--retry-max-retries=5", "--disable-circuit-breaker"),
            "edge_args": NO_WAY_OUT,
        },
        client={"retries": {"max": 2, "backoff": "100ms", "jitter": "full", "budget": None}},
    ),
    # ---- what the application has to fall back to
    "no-fallback": Defect(
        "the edge has neither a smaller model nor an answer in store: a late answer stays late",
        lab={"edge_args": NO_WAY_OUT},
    ),
    "slow-fallback": Defect(
        "the edge gives a late model three seconds before it asks the smaller one: who falls back has waited too long",
        lab={"first_token_deadline_ms": 3000},
    ),
    "no-prefix-cache": Defect(
        "the engines compute every prompt token again, also those seen before",
        lab={"engine_args": ("--no-prefix-cache",)},
    ),
    # ---- who is told
    "no-alert": Defect(
        "the rule that says a replica is down is missing",
        lab={"alerts_left_out": ("VllmReplicaDown",)},
    ),
    "wrong-alert-labels": Defect(
        "alerts carry the name of another service, and would wake other people",
        lab={"alert_labels": ("service=search", "severity=info")},
    ),
    "alert-already-firing": Defect(
        "the rules expect a replica that was taken away long ago, so that a page fires day and night",
        lab={"alerts_expect": 4},
    ),
    # ---- who comes back
    "restart-never": Defect(
        "a replica that ends, however it ends, is not started again",
        lab={"restart": "never"},
    ),
    "restart-on-failure": Defect(
        "a replica is started again only after an exit status other than 0, and vLLM's is 0 when its engine died",
        lab={"restart": "on-failure"},
    ),
    "slow-restart": Defect(
        "a replica that is started again takes two minutes to become ready",
        lab={"restart_args": ("--startup-s=120",)},
    ),
    "lying-health": Defect(
        "the router asks the engine's own /health, which says 200 while the engine hangs",
        lab={"proxy_health": "passthrough"},
    ),
    # ---- what becomes of a stream that is cut
    "truncating-gateway": Defect(
        "the edge ends a stream that was cut with a made-up finish reason and [DONE]",
        lab={"edge_args": ("--on-cut=finish",)},
    ),
    "splicing-gateway": Defect(
        "the edge goes on after a cut with the text of a new answer, from its beginning",
        lab={"edge_args": ("--on-cut=splice",)},
    ),
    # ---- who is spared
    "breaker-too-long": Defect(
        "the router's circuit breaker stays open for its default of 60 s after ten failures",
        lab={"router_args": ("--cb-timeout-duration-secs=60",)},
    ),
    "wrong-victim": Defect(
        "whoever deletes a replica takes its neighbour down as well",
        lab={"deletes_neighbour": True},
    ),
}


def find(name: str) -> Defect:
    """Return the defect of that name (UsageError with the nearest valid one)."""
    if name not in DEFECTS:
        raise UsageError(f"--defect {name}: no such defect{nearest(name, DEFECTS)}")
    return DEFECTS[name]


def plant(name: str | None, config: LabConfig) -> LabConfig:
    """Return the lab's config with the defect in it; unchanged for None."""
    if name is None:
        return config
    return dataclasses.replace(config, **find(name).lab, defect=name)


def client_overlay(name: str | None) -> dict[str, Any]:
    """Return what the defect changes in `load.client`: nested plain data to lay over it."""
    return {} if name is None else dict(find(name).client)
