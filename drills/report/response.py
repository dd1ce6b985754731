"""Who did what about the fault: by itself, by the drill, or by hand."""

from __future__ import annotations

from dataclasses import dataclass

from drills.evidence import at
from drills.model import Event
from drills.report import impact, router, words
from drills.report.escape import code, prose
from drills.report.facts import Facts, lines_of

AUTOMATIC, DRILL, MANUAL, UNKNOWN = "by itself", "the drill", "by hand", "not told"
#: who put a fault back, by the journal's word
_REVERTED = {"driver": DRILL, "timer": DRILL, "recover": MANUAL}
_STARTED = {"supervisor": AUTOMATIC, "controller": AUTOMATIC, "drill": DRILL}


@dataclass(frozen=True)
class Deed:
    """One thing that was done about the fault: when (mono), who, what (inert Markdown), and where that was read."""

    mono: float
    who: str
    what: str
    source: str


def deeds(facts: Facts) -> list[Deed]:
    """Return what was done from the injection on, in order of time."""
    if facts.hit is None:
        return []
    found = [*_routed(facts), *_degraded(facts), *_restarted(facts), *_reverted(facts), *_people(facts)]
    return sorted((deed for deed in found if deed.mono >= facts.zero), key=lambda deed: deed.mono)


def _routed(facts: Facts) -> list[Deed]:
    source = "samples.ndjson, probe router"
    return [
        Deed(c.mono, AUTOMATIC, f"the router: {c.what} of {code(c.worker)} {c.was} → {c.now}", source)
        for c in router.changes(facts)
    ]


def _degraded(facts: Facts) -> list[Deed]:
    seen = impact.opening(facts)
    source = f"requests.ndjson arrival {seen.arrival}" if seen else ""
    return [Deed(seen.at, AUTOMATIC, "the degradation path opened", source)] if seen else []


def _restarted(facts: Facts) -> list[Deed]:
    started = [
        e for e in facts.of("replica") if e.data.get("change") == "started" and e.data.get("replica") in facts.victims
    ]
    return [_deed(e, _STARTED.get(str(e.data.get("by")), UNKNOWN), _start(e)) for e in started]


def _start(event: Event) -> str:
    by = event.data.get("by")
    who = f"by the {prose(by)}" if by else "by nobody known"
    return f"{code(event.data.get('replica'))} was started again {who}"


def _reverted(facts: Facts) -> list[Deed]:
    told = []
    for event in facts.of("revert.end"):
        by = str(event.data.get("by"))
        how = {"timer": "its timer on the target", "recover": "`drill recover`"}.get(by, "the run itself")
        what = f"{code(event.data.get('receipt'))} put back by {how}: restored {prose(event.data.get('restored'))}"
        told.append(_deed(event, _REVERTED.get(by, UNKNOWN), what))
    return told


def _people(facts: Facts) -> list[Deed]:
    """Return what people, autoscalers and guards did."""
    told = [_deed(e, MANUAL, f"the run was stopped by {code(e.data.get('by'))}") for e in facts.of("stop")]
    told += [_deed(e, MANUAL, f"the run was sent {code(e.data.get('signal'))}") for e in facts.of("signal")]
    told += [_deed(e, DRILL, f"guard {code(e.data.get('guard'))} stopped the run") for e in facts.of("guard")]
    told += [_deed(e, MANUAL, "others changed the target") for e in facts.of("changed_by_others")]
    return told + [_deed(e, AUTOMATIC, f"scaled by {prose(e.data.get('by'))}") for e in facts.of("scaled")]


def _deed(event: Event, who: str, what: str) -> Deed:
    return Deed(at(event), who, what, lines_of(event))


def rows(facts: Facts) -> list[list[str]]:
    """Return the deeds as a table."""
    return [[words.offset(d.mono - facts.zero), d.who, d.what, d.source] for d in deeds(facts)]


def lines(facts: Facts) -> list[str]:
    """Return the first thing that a person did, what is left to do by hand, and the playbook."""
    hands = [deed for deed in deeds(facts) if deed.who == MANUAL]
    first = f"{words.offset(hands[0].mono - facts.zero)} ({hands[0].source})" if hands else "none is recorded"
    told = [f"First action by hand: {first}."]
    manual = [str(line) for e in facts.of("revert.end", "undo.failed") for line in e.data.get("manual") or ()]
    if manual:
        told.append(f"To be put back by hand: {words.listed([code(line) for line in dict.fromkeys(manual)])}.")
    playbook = facts.experiment.get("playbook")
    if playbook:
        told.append(
            f"Playbook: {code(playbook)}. Which of its steps helped, and which did not, people write into `notes.md`."
        )
    return told
