"""Evictions obey disruption budgets: one that says no is asked again for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from drills.errors import Refused, Stopped
from drills.model import CanEvict, Context, Replica, Target

AGAIN_S: Final = 1.0


def await_budget(
    target: Target, replicas: Sequence[Replica], ctx: Context, timeout_s: float, refused: Callable[[str, str], None]
) -> None:
    """Wait until the budgets let each replica go, all within that time; `refused` is told by name each new reason.

    Raises Refused when they do not in time, and Stopped: nothing was touched.
    """
    deadline = ctx.mono() + timeout_s
    for replica in replicas:
        told = ""
        while refusal := cast("CanEvict", target).evict_replica(replica, grace_s=None, dry=True):
            if refusal != told:
                refused(replica.name, refusal)
                told = refusal
            if ctx.stopping():
                raise Stopped(f"while {replica.name} waited for its disruption budget")
            if ctx.mono() >= deadline:
                waited = f"for {timeout_s:g} s"
                raise Refused(f"{replica.name}: its eviction is refused by the disruption budget {waited}: {refusal}")
            ctx.sleep(AGAIN_S)
