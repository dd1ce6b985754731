"""Several drills under one name: `drill run monthly`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from drills import session, upkeep
from drills.options import Options

#: In this order: what harms least first, so that a service that cannot take it is not asked for more.
SUITES = {"monthly": ("upstream-delay", "packet-loss", "pod-kill", "gpu-reset")}


def expanded(names: Iterable[str]) -> list[str]:
    """Return the experiments that are meant, each suite replaced by its own."""
    return [one for name in names for one in SUITES.get(name, (name,))]


def run(names: Sequence[str], options: Options, echo: Callable[[str], None]) -> int:
    """Run the drills in the given order; returns the worst exit code. Raises DrillError before the first.

    A suite runs unattended, so it first puts back what runs that are gone left on its target; while another run
    lives it is refused like any other.
    """
    repaired = not SUITES.keys().isdisjoint(names) and upkeep.put_back_leftovers(options, echo)
    return session.run(expanded(names), options, echo, settle_first=repaired)
