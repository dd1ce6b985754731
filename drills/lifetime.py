"""How long a run may take: its phases, and what no phase ends, as a deed that waits for a device or for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drills.model import Fault, Json, Phase

#: Start, gate and revert need time too.
SLACK_S: Final = 300.0
#: What a fault says of its deed is meant for one victim at the usual pace; whoever waits for it waits for more.
ROOM: Final = 2.0


def phases_s(plan: Json) -> float:
    """Return how long the phases of a plan take together, seconds."""
    return float(sum(plan["phases"][f"{phase}_s"] for phase in Phase))


def deeds_s(plan: Json, faults: Sequence[Fault]) -> float:
    """Return how long the deeds may hold up the phases, generously, seconds; 0.0 where each is done at once."""
    waits = sum(float(getattr(fault, "deed_s", 0.0)) for fault in faults)
    budgets = sum(float(one["params"].get("budget_timeout") or 0.0) for one in plan["experiment"].get("faults", ()))
    return ROOM * (waits + budgets)


def run_s(plan: Json, faults: Sequence[Fault]) -> float:
    """Return after how long a run is over for certain, seconds: its lock and what it has on nodes live so long."""
    return phases_s(plan) + deeds_s(plan, faults) + SLACK_S
