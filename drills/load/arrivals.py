"""When requests are meant to start. Pure: the same plan and seed give the same schedule.

The open loop (`poisson`, `constant`) is drawn ahead and never looks at an answer, so a service that
stalls meets the same arrivals as one that does not. `users` is a closed loop, and named so.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from drills.load.plan import ArrivalPlan


def offsets(plan: ArrivalPlan, seed: int) -> Iterator[float]:
    """Yield intended starts in seconds from the begin of the load, ascending, without end."""
    if plan.kind == "poisson":
        return _poisson(plan.rate, seed)
    if plan.kind == "constant":
        return (n / plan.rate for n in itertools.count())
    raise ValueError(f"'{plan.kind}' is a closed loop and has no schedule of its own")


def _poisson(rate: float, seed: int) -> Iterator[float]:
    draw = random.Random(f"arrivals:{seed}")
    at = 0.0
    while True:
        at += draw.expovariate(rate)
        yield at


def first_pauses(plan: ArrivalPlan, seed: int) -> list[float]:
    """Return each user's pause before the first question, in seconds: spread over one think time.

    Users that all begin at once would stay in step, and their bursts would look like the service's doing.
    """
    draw = random.Random(f"users:{seed}")
    return [draw.uniform(0.0, plan.think_s) for _ in range(plan.users)]
