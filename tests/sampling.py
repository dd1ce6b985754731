"""A seeded sample of long tests, for every change: some of each file, others each time, all of them by and by.

DRILL_SAMPLE=N keeps at most N tests of each file; SEED=S draws again what a failure has shown. Without DRILL_SAMPLE
nothing is left out.
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Iterable

import pytest

from drills.clock import rng

SEED = int(os.environ.get("SEED") or secrets.randbelow(10_000))


def size() -> int | None:
    """Return how many tests of a file are kept, None for all."""
    asked = os.environ.get("DRILL_SAMPLE")
    return int(asked) if asked else None


def drawn(names: Iterable[str], most: int, seed: int) -> set[str]:
    """Return at most so many of the names, the same ones for the same seed."""
    every = sorted(set(names))
    return set(rng(seed, "sample").sample(every, k=min(most, len(every))))


def keep(config: pytest.Config, items: list[pytest.Item], of: list[pytest.Item]) -> None:
    """Leave out of `items` what of `of` is not in the sample."""
    most = size()
    if most is None:
        return
    by_file: dict[str, list[str]] = defaultdict(list)
    for item in of:
        by_file[str(item.path)].append(item.nodeid)
    kept = {name for names in by_file.values() for name in drawn(names, most, SEED)}
    out = [item for item in of if item.nodeid not in kept]
    gone = set(map(id, out))
    items[:] = [item for item in items if id(item) not in gone]
    config.hook.pytest_deselected(items=out)


def header() -> str | None:
    """Return what the run's head says of the sample."""
    most = size()
    return None if most is None else f"at most {most} of each file, drawn by SEED={SEED}"
