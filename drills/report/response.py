"""Who did what about the fault: by itself, by the drill, or by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drills.evidence import at
from drills.lang import mark, t
from drills.model import Event
from drills.report import impact, router, words
from drills.report.escape import code, prose
from drills.report.facts import Facts, lines_of

AUTOMATIC: Final = mark("by itself")
DRILL: Final = mark("the drill")
MANUAL: Final = mark("by hand")
UNKNOWN: Final = mark("not told")
#: who put a fault back, by the journal's word
_REVERTED = {"driver": DRILL, "timer": DRILL, "recover": MANUAL}
#: the same in a sentence
_BY_ITSELF: Final = mark("{receipt} put back by the run itself: restored {restored}")
_PUT_BACK: Final = {
    "timer": mark("{receipt} put back by its timer on the target: restored {restored}"),
    "recover": mark("{receipt} put back by `drill recover`: restored {restored}"),
}
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
        Deed(c.mono, AUTOMATIC, t("the router: {what} of {worker} {was} → {now}", **router.told(c)), source)
        for c in router.changes(facts)
    ]


def _degraded(facts: Facts) -> list[Deed]:
    seen = impact.opening(facts)
    source = f"requests.ndjson arrival {seen.arrival}" if seen else ""
    return [Deed(seen.at, AUTOMATIC, t("the degradation path opened"), source)] if seen else []


def _restarted(facts: Facts) -> list[Deed]:
    started = [
        e for e in facts.of("replica") if e.data.get("change") == "started" and e.data.get("replica") in facts.victims
    ]
    return [_deed(e, _STARTED.get(str(e.data.get("by")), UNKNOWN), _start(e)) for e in started]


def _start(event: Event) -> str:
    by, replica = event.data.get("by"), code(event.data.get("replica"))
    if by:
        return t("{replica} was started again by the {who}", replica=replica, who=prose(by))
    return t("{replica} was started again by nobody known", replica=replica)


def _reverted(facts: Facts) -> list[Deed]:
    told = []
    for event in facts.of("revert.end"):
        by = str(event.data.get("by"))
        receipt, restored = code(event.data.get("receipt")), prose(event.data.get("restored"))
        what = t(_PUT_BACK.get(by, _BY_ITSELF), receipt=receipt, restored=restored)
        told.append(_deed(event, _REVERTED.get(by, UNKNOWN), what))
    return told


def _people(facts: Facts) -> list[Deed]:
    """Return what people, autoscalers and guards did."""
    told = [_deed(e, MANUAL, t("the run was stopped by {who}", who=code(e.data.get("by")))) for e in facts.of("stop")]
    told += [
        _deed(e, MANUAL, t("the run was sent {signal}", signal=code(e.data.get("signal")))) for e in facts.of("signal")
    ]
    told += [
        _deed(e, DRILL, t("guard {guard} stopped the run", guard=code(e.data.get("guard")))) for e in facts.of("guard")
    ]
    told += [_deed(e, MANUAL, t("others changed the target")) for e in facts.of("changed_by_others")]
    return told + [_deed(e, AUTOMATIC, t("scaled by {who}", who=prose(e.data.get("by")))) for e in facts.of("scaled")]


def _deed(event: Event, who: str, what: str) -> Deed:
    return Deed(at(event), who, what, lines_of(event))


def rows(facts: Facts) -> list[list[str]]:
    """Return the deeds as a table."""
    return [[words.offset(d.mono - facts.zero), t(d.who), d.what, d.source] for d in deeds(facts)]


def lines(facts: Facts) -> list[str]:
    """Return the first thing that a person did, what is left to do by hand, and the playbook."""
    hands = [deed for deed in deeds(facts) if deed.who == MANUAL]
    told = [t("First action by hand: none is recorded.")]
    if hands:
        offset = words.offset(hands[0].mono - facts.zero)
        told = [t("First action by hand: {offset} ({source}).", offset=offset, source=hands[0].source)]
    manual = [str(line) for e in facts.of("revert.end", "undo.failed") for line in e.data.get("manual") or ()]
    if manual:
        commands = words.listed([code(line) for line in dict.fromkeys(manual)])
        told.append(t("To be put back by hand: {commands}.", commands=commands))
    playbook = facts.experiment.get("playbook")
    if playbook:
        told.append(
            t(
                "Playbook: {playbook}. Which of its steps helped, and which did not, people write into `notes.md`.",
                playbook=code(playbook),
            )
        )
    return told
