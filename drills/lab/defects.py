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


DEFECTS: dict[str, Defect] = {
    "restart-never": Defect(
        "a replica that ends, however it ends, is not started again",
        lab={"restart": False},
    ),
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
            "edge_args": ("--no-fallback", "--no-cache"),
        },
        client={"retries": {"max": 0}},
    ),
    "no-alert": Defect(
        "the rule that says a replica is down is missing",
        lab={"alerts_left_out": ("VllmReplicaDown",)},
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
