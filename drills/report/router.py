"""What the router thought of its workers, as its own gauges told it: health and breakers that changed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from drills.lang import mark, t
from drills.report.escape import code
from drills.report.facts import Facts
from drills.strictjson import is_number

_WORKER = re.compile(r"^(?P<gauge>[A-Za-z0-9_:]+)\{(?:.*,)?worker=\"(?P<worker>[^\"]*)\".*\}$")
#: ending of a gauge → what it is, and the names of its states
GAUGES = {
    "_cb_state": (mark("breaker"), {0: "closed", 1: "open", 2: "half-open"}),
    "_worker_health": (mark("health"), {0: "unhealthy", 1: "healthy"}),
}


@dataclass(frozen=True)
class Change:
    """A worker that the router saw in another light than at the look before (mono seconds)."""

    mono: float
    worker: str
    what: str  # breaker | health
    was: str
    now: str


def changes(facts: Facts) -> list[Change]:
    """Return what changed from look to look, in order."""
    found: list[Change] = facts.evidence.once("router changes", lambda: _changes(facts))
    return found


def told(change: Change) -> dict[str, str]:
    """Return a change as words of a sentence, the worker as inert Markdown."""
    return {"what": t(change.what), "worker": code(change.worker), "was": change.was, "now": change.now}


def _changes(facts: Facts) -> list[Change]:
    last: dict[str, float] = {}
    found = []
    for sample in facts.evidence.looks("router"):
        values = sample["values"] if sample["ok"] else {}
        for name, value in sorted(values.items()):
            said = _WORKER.match(str(name)) if is_number(value) else None
            gauge = next((g for end, g in GAUGES.items() if said and said["gauge"].endswith(end)), None)
            if said is None or gauge is None:
                continue
            before, last[name] = last.get(name), float(value)
            if before is not None and before != value:
                what, states = gauge
                words = (states.get(int(state), f"{state:g}") for state in (before, value))
                found.append(Change(float(sample["mono"]), said["worker"], what, *words))
    return found
