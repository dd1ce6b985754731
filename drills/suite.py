"""Several drills under one name, unattended: `drill monthly`, which is also `drill run monthly`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from drills import session, signals, upkeep
from drills.errors import DrillError
from drills.months import Month
from drills.options import Options
from drills.publish import publish
from drills.session import Told
from drills.signals import StopFlag

Hear = Callable[[Told], None]
MONTHLY = "monthly"
#: In this order: what harms least first, so that a service that cannot take it is not asked for more.
SUITES = {MONTHLY: ("upstream-delay", "packet-loss", "pod-kill", "gpu-reset")}


def expanded(names: Iterable[str]) -> list[str]:
    """Return the experiments that are meant, each suite replaced by its own."""
    return [one for name in names for one in SUITES.get(name, (name,))]


def run(names: Sequence[str], options: Options, echo: Callable[[str], None], told: Hear = lambda _: None) -> int:
    """Run the drills in the given order; returns the worst exit code. Raises DrillError before the first.

    `told` hears of each when it has ended.
    """
    if SUITES.keys().isdisjoint(names):
        return session.run(names, options, echo, told=told)
    return _unattended(expanded(names), options, echo, told)


def monthly(names: Sequence[str], options: Options, echo: Callable[[str], None], told: Hear = lambda _: None) -> int:
    """Run the month's drills, or those named in their place; returns the worst exit code. Raises as `run`."""
    return _unattended(expanded(names or [MONTHLY]), options, echo, told)


def _unattended(names: Sequence[str], options: Options, echo: Callable[[str], None], told: Hear) -> int:
    """Nobody sits there, so it first puts back what runs that are gone left on its target, and keeps a review.

    While another run lives it is refused like any other.
    """
    target = session.target_spec(options)
    month = Month(options.reports, datetime.now(UTC), target.name, [session.experiment(name).name for name in names])

    def ended(end: Told) -> None:
        month.ended(end)
        told(end)

    month.write()  # from now on it is known what was asked for, whatever becomes of us
    try:
        repaired = upkeep.put_back_leftovers(options, echo)
        code = session.run(names, options, echo, settle_first=repaired, told=ended)
    except DrillError as error:
        month.failed(error)
        raise
    finally:
        echo(month.kept())
        if target.publish:
            stop = StopFlag()
            with signals.told(stop.set):
                echo(publish(target.publish, month.folder, stopping=lambda: stop.reason is not None))
    return code
