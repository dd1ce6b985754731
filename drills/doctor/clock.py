"""How far other clocks are from ours: times of alerts and of pods are theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Final

from drills.doctor.finding import Finding, missing, ok, unknown
from drills.probes import promql
from drills.probes.http import ProbeError
from drills.probes.prometheus import Prometheus

GROUP = "clock"
#: A time that is further off says nothing of the order of things.
OFFSET_MAX_S: Final = 2.0
#: A Date header tells whole seconds, and is cut, not rounded.
DATE_STEP_S: Final = 1.0


def prometheus(server: Prometheus) -> Iterator[Finding]:
    """Yield how far the server's clock is from ours."""
    yield judged("Prometheus", lambda: promql.single(server.query("time()")), 0.0)


def judged(whose: str, ask: Callable[[], float], step_s: float) -> Finding:
    """Return the finding for a clock that `ask` reads, wall seconds; it tells no less than `step_s`."""
    before = time.time()
    try:
        there = ask()
    except (ProbeError, ValueError) as error:
        return unknown(GROUP, whose, f"its clock cannot be read ({error})")
    after = time.time()
    # It was read somewhere between the two, and may be up to a step later than it says.
    least, most = there - after, there + step_s - before
    offset = 0.0 if least <= 0.0 <= most else min(least, most, key=abs)
    if abs(offset) <= OFFSET_MAX_S:
        return ok(GROUP, whose, f"within {OFFSET_MAX_S:g} s of ours" if offset else "no offset to be seen")
    what = f"{abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} ours; its times would be told wrong"
    return missing(GROUP, whose, what, "on both machines: chronyc tracking, or timedatectl set-ntp true")


def date(header: str | None) -> float:
    """Return the wall time of a Date header. Raises ValueError."""
    if not header:
        raise ValueError("no Date in the answer")
    return parsedate_to_datetime(header).timestamp()
