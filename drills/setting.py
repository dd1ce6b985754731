"""What a drill needs from outside, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drills.clock import Clock
from drills.live import View
from drills.model import Fault, Json, Restored, Target
from drills.signals import StopFlag


@dataclass(frozen=True)
class Ended:
    """How the run ended (completed, stopped, refused, changed, broken, crashed), and why."""

    status: str
    reason: str = ""
    restored: Restored = Restored.CLEAN
    manual: tuple[str, ...] = ()


@dataclass
class Setting:
    """Everything a drill needs from outside: the plan, and the world it happens in."""

    plan: Json
    faults: Sequence[Fault]
    target: Target
    folder: Path
    view: View
    stop: StopFlag
    clock: Clock
    load_plan: Json
