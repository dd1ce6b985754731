"""How long the drills of a schedule may take, from their plans and the deadlines of what surrounds them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from drills import active, gate, others, run
from drills.access import filecustody
from drills.cluster import helpers
from drills.model import Fault
from drills.plan import Plan, total_s

#: Looking at the target, helpers on its nodes, the gate, and what is put up beside a fault.
BEFORE_S: Final = helpers.READY_TIMEOUT_S + gate.STEADY_TIMEOUT_S + 120.0
#: The end of helpers, the load's last answers, verdict and postmortem.
AFTER_S: Final = helpers.GONE_TIMEOUT_S + run.DRAIN_S + 60.0
ROUND_S: Final = 60


@dataclass(frozen=True)
class Times:
    """Seconds: from SIGTERM until everything is put back, and for all drills one after the other."""

    undo_s: int
    whole_s: int


def times(plans: Iterable[Plan], publish_s: float = 0.0) -> Times:
    """Return the deadlines for these drills in a row; `publish_s` is how long it may take to publish one of them."""
    plans = list(plans)
    stopped = [_stopped_s(plan) for plan in plans]
    rounds = [_round_s(plan) + publish_s for plan in plans]
    leftovers_s = max(stopped)
    return Times(_rounded(max(stopped)), _rounded(leftovers_s + sum(rounds) + sum(stopped) + publish_s))


def _stopped_s(plan: Plan) -> float:
    """Return how long a stopped drill takes: it waits for a deed that is under way, and takes everything back."""
    beside_s = undo_s(None)  # ledger proxies, or a silence
    return sum(undo_s(planned.fault) + deed_s(planned.fault) for planned in plan.faults) + beside_s + AFTER_S


def _round_s(plan: Plan) -> float:
    """Return how long a drill takes but for its way back: the wait for the target to settle, and its phases."""
    scaled_s = others.BACK_TIMEOUT_S if plan.target.kind == "kubernetes" else 0.0  # what its load has scaled
    return gate.SETTLE_TIMEOUT_S + BEFORE_S + total_s(plan) + scaled_s


def deed_s(fault: Fault) -> float:
    """Return how long a deed may keep a run beyond its plan; those that wait for a device say it themselves."""
    return float(getattr(fault, "deed_s", 0.0))


def undo_s(fault: Fault | None) -> float:
    """Return how long a way back may take: a target that cannot be asked for a while, the undo steps, tried again."""
    steps_s = float(getattr(fault, "undo_s", 0.0))
    return active.REACH_TIMEOUT_S + active.REVERT_ATTEMPTS * (filecustody.UNDO_TIMEOUT_S + steps_s)


def _rounded(seconds: float) -> int:
    """Return the next whole minute, in seconds."""
    return math.ceil(seconds / ROUND_S) * ROUND_S
