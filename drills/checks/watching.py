"""Whether somebody looked all the time: the longest stretch without a look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from drills.evidence import Evidence, at
from drills.model import Event, Json

Stretch = tuple[float, float]


def blind(looks: Iterable[float], begin: float, end: float, excused: Sequence[Stretch] = ()) -> Stretch:
    """Return the longest stretch between `begin` and `end` in which nobody looked, `excused` ones left out.

    Times are mono seconds. Looks outside do not count, so the first and the last stretch end at the bounds.
    """
    seen = sorted({begin, end, *(look for look in looks if begin < look < end)})
    worst = (begin, begin)
    for low, high in pairwise(seen):
        for left, right in _without(low, high, excused):
            if right - left > worst[1] - worst[0]:
                worst = (left, right)
    return worst


def _without(low: float, high: float, excused: Sequence[Stretch]) -> list[Stretch]:
    parts = [(low, high)]
    for begin, end in excused:
        parts = [
            piece
            for left, right in parts
            for piece in ((left, min(right, begin)), (max(left, end), right))
            if piece[0] < piece[1]
        ]
    return parts


def deeds(ev: Evidence) -> list[Stretch]:
    """Return when the run was busy with putting a fault on or off; some probes keep their hands off then."""
    ends = {"inject.begin": ("inject.end", "revert.begin"), "revert.begin": ("revert.end",)}
    found: list[Stretch] = []
    begun: Event | None = None
    for event in ev.of("inject.begin", "inject.end", "revert.begin", "revert.end"):
        if begun is not None and event.event in ends[begun.event]:
            found.append((begun.mono, event.mono))
            begun = None
        if event.event in ends:
            begun = event
    return found


def on(ev: Evidence, receipt: Json) -> Stretch:
    """Return when the fault of a receipt was on; to the end of the load where nobody saw it go off."""

    def mine(*names: str) -> list[Event]:
        return [e for e in ev.of(*names) if e.data.get("receipt") == receipt["id"]]

    hits, first = mine("inject.hit"), ev.t_inject
    begin = at(hits[0]) if hits else ev.ended if first is None else first
    return begin, max(begin, min((e.mono for e in mine("revert.begin", "revert.end", "proof.off")), default=ev.ended))


def looks(ev: Evidence, probe: str, subject: str | None = None, *, ok: bool = True) -> list[float]:
    """Return when a probe looked (mono seconds); with `ok` only when it could measure."""
    return [
        float(s["mono"])
        for s in ev.samples
        if s["probe"] == probe and (subject is None or s.get("subject") == subject) and (s["ok"] or not ok)
    ]
