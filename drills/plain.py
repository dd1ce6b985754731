"""Plain data that a host's own Python knows too, where little of this package is and Python may be as old as 3.9.

Whoever else wants it finds it among the nouns, in `drills.model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Completed:
    """A command that ended on a host."""

    argv: tuple[str, ...]
    rc: int
    out: str
    err: str
    timed_out: bool = False
