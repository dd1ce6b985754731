"""Whether somebody looked all the time: the longest stretch without a look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from drills.evidence import Evidence, at
from drills.model import Event, Json

Stretch = tuple[float, float]

#: Longer than this no probe is silent while the load is on, nor the generator; deeds take their own time.
PROBE_GAP_S = 10.0
#: A look at the GPUs starts a program on their host; what it sees changes over minutes.
GPU_GAP_S = 30.0
#: A completion takes no longer than this, so that its answer may be of a process that is gone by then.
ANSWER_LATE_S = 2.0


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
    return [float(s["mono"]) for s in ev.looks(probe, subject) if s["ok"] or not ok]


def replicas(ev: Evidence, role: str | None = None) -> list[str]:
    """Return the replicas that were there before the load, of a role or all: each of them has to be watched."""
    gate = ev.last("gate")
    found = (gate.data.get("replicas") or ()) if gate else ()
    return sorted({str(r["name"]) for r in found if role is None or r.get("role", "primary") == role})


def away(ev: Evidence, replica: str) -> list[Stretch]:
    """Return when a replica could not be asked anything: from the end of its process until it answers again."""
    life = [e for e in ev.of("replica", "completion") if e.data.get("replica") == replica]
    told = [at(e) for e in life if e.event == "completion" or e.data.get("change") == "ready"]
    # What was asked of the old process may be written down a moment after its end.
    answered = [mono - ANSWER_LATE_S for mono in looks(ev, "completion", replica)]
    back = sorted([*told, *answered])
    begins = [at(e) for e in life if e.event == "replica" and e.data.get("change") in ("gone", "notready")]
    return [(begin, next((mono for mono in back if mono > begin), max(begin, ev.ended))) for begin in begins]


def failing(ev: Evidence, replica: str) -> list[Stretch]:
    """Return when completions of a replica failed, each time from the look before to the look after."""
    seen = [(float(s["mono"]), bool(s["ok"])) for s in ev.samples if _is(s, "completion", replica)]
    return [(before, after) for (before, was), (after, now) in pairwise(sorted(seen)) if not (was and now)]


def _is(sample: Json, probe: str, subject: str | None) -> bool:
    return bool(sample["probe"] == probe and subject in (None, sample.get("subject")))


def watches_gpus(ev: Evidence) -> bool:
    """Whether somebody looks at the GPUs of this target; those of a lab are always there."""
    kind = ev.plan.get("target", {}).get("kind")
    return kind == "lab" or any(sample["probe"] == "gpu" for sample in ev.samples)


def has_prometheus(ev: Evidence) -> bool:
    """Whether the target has a Prometheus to ask for alerts, by what it told at the begin, else by the plan."""
    facts = ev.header.get("facts") or {}
    if "prometheus" in facts:
        return bool(facts["prometheus"])
    return (ev.plan["target"].get("alerts") or {}).get("latency_s") is not None
