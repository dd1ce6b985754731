"""What was not expected: facts that contributed or surprised, and where the run was not as it was planned."""

from __future__ import annotations

import polars as pl

from drills.checks.validity import change_words
from drills.evidence import at
from drills.lang import t
from drills.model import Phase, Verdict
from drills.report import detection, lessons, retries, router, words
from drills.report.escape import code, prose
from drills.report.facts import Facts, lines_of
from drills.strictjson import is_number

#: A phase, or the load, that differs from its plan by more than this is told.
PHASE_SLACK_S = 2.0
RATE_SLACK = 0.05
#: Without a fault one request costs one attempt; more than this is remarkable.
QUIET_RATIO = 1.01
#: A breaker that is open longer than this after the victim was back outlasted the fault.
BREAKER_LATE_S = 1.0


def factors(facts: Facts) -> list[str]:
    """Return what the run's files show that no plan asked for, as inert sentences; never a guess at a cause."""
    return [
        *_neighbours(facts),
        *_broken_elsewhere(facts),
        *_breakers(facts),
        *_alerts(facts),
        *_attempts(facts),
        *_timer(facts),
        *_others(facts),
    ]


def _neighbours(facts: Facts) -> list[str]:
    """Replicas that nobody aimed at, and that went away or were not ready."""
    told = []
    for event in facts.of("replica"):
        name, change = event.data.get("replica"), event.data.get("change")
        if facts.hit is None or at(event) < facts.hit or name in facts.victims or change not in ("gone", "notready"):
            continue
        told.append(
            t(
                "{replica} was not aimed at, and was {change} at {offset} ({source}).",
                replica=code(name),
                change=prose(change),
                offset=_offset(facts, at(event)),
                source=lines_of(event),
            )
        )
    hit = [event for event in facts.of("proof.on", "proof.off") if event.data.get("bystanders_ok") is False]
    return told + ([t("The fault reached more than its victims ({source}).", source=lines_of(*hit))] if hit else [])


def _broken_elsewhere(facts: Facts) -> list[str]:
    """Attempts that broke at replicas that were no victims."""
    if facts.hit is None:
        return []
    broke = ~pl.col("close").is_in(["complete", "client_gone", "open"]) & (pl.col("end") >= facts.hit)
    rows = facts.evidence.ledger.filter(broke & ~pl.col("replica").is_in(list(facts.victims)))
    counted = rows.group_by("replica").len().sort("replica").rows()
    return [
        t(
            "{attempts} broke at {replica}, which was no victim (`ledger.ndjson`).",
            attempts=words.count(int(n), "attempt"),
            replica=code(name),
        )
        for name, n in counted
    ]


def _breakers(facts: Facts) -> list[str]:
    """Breakers that the router kept open after the victim was back."""
    back = [at(e) for e in facts.of("completion") if e.data.get("ok") and e.data.get("replica") in facts.victims]
    served = next((moment for moment in sorted(back) if facts.hit is not None and moment > facts.hit), None)
    if served is None:
        return []
    told, opened = [], {c.worker: c for c in router.changes(facts) if c.what == "breaker" and c.mono < served}
    for worker, change in sorted(opened.items()):
        if change.now == "closed":
            continue
        later = [c for c in router.changes(facts) if c.worker == worker and c.what == "breaker" and c.mono >= served]
        closed = next((c.mono for c in later if c.now == "closed"), None)
        if closed is None:
            told.append(
                t(
                    "The router's breaker of {replica} was not seen closed again after the victim was back.",
                    replica=code(worker),
                )
            )
        elif closed - served > BREAKER_LATE_S:
            told.append(
                t(
                    "The router's breaker of {replica} closed {seconds} after the victim answered again "
                    "(`samples.ndjson`, probe `router`).",
                    replica=code(worker),
                    seconds=words.seconds(closed - served),
                )
            )
    return told


def _alerts(facts: Facts) -> list[str]:
    told = []
    for name in detection.unexpected_pages(facts):
        fired = detection.fired_at(facts, name)
        if fired:
            told.append(
                t(
                    "The alert {alert}, which no check expects, fired at {offset} ({source}).",
                    alert=code(name),
                    offset=_offset(facts, fired[0]),
                    source=lines_of(fired[1]),
                )
            )
    return told


def _attempts(facts: Facts) -> list[str]:
    quiet = retries.attempts_of(facts).baseline
    ratio = quiet.ratio("engine") if quiet else None
    if ratio is None or ratio <= QUIET_RATIO:
        return []
    return [t("Before the fault one request cost {ratio} attempts at the primaries already.", ratio=words.ratio(ratio))]


def _timer(facts: Facts) -> list[str]:
    first = [e for e in facts.of("revert.begin") if (e.data.get("timer") or {}).get("state") == "undone"
             if isinstance(e.data.get("timer"), dict)]  # fmt: skip
    if not first:
        return []
    return [t("The timer on the target took the fault off before the run did ({source}).", source=lines_of(*first))]


def _others(facts: Facts) -> list[str]:
    told = [
        t("Others changed the target: {change} ({source}).", change=prose(change_words(e.data)), source=lines_of(e))
        for e in facts.of("changed_by_others")
    ]
    return told + [
        t(
            "Meanwhile scaled by {who}: {change} ({source}).",
            who=prose(e.data.get("by")),
            change=prose(change_words(e.data)),
            source=lines_of(e),
        )
        for e in facts.of("scaled")
    ]


def _offset(facts: Facts, mono: float) -> str:
    return words.offset(mono - facts.zero)


# ---- the plan -----------------------------------------------------------------------------------------


def deviations(facts: Facts) -> list[str]:
    """Return where the run was not as it was planned."""
    return [*_phases(facts), *_load(facts), *_stopped(facts), *_not_judged(facts)]


def _phases(facts: Facts) -> list[str]:
    planned = facts.evidence.plan.get("phases") or {}
    told = []
    for phase in Phase:
        asked, stretch = planned.get(f"{phase}_s"), facts.phase(phase)
        if not is_number(asked) or not asked:
            continue
        if stretch is None:
            told.append(
                t(
                    "The phase {phase} was planned for {seconds} and did not begin.",
                    phase=phase,
                    seconds=words.seconds(asked),
                )
            )
            continue
        if phase == Phase.RECOVERY:  # ends as soon as every check is decided
            continue
        took = stretch.end - stretch.begin
        if abs(took - float(asked)) > PHASE_SLACK_S:
            told.append(
                t(
                    "The phase {phase} took {seconds}; {planned} were planned.",
                    phase=phase,
                    seconds=words.seconds(took),
                    planned=words.seconds(asked),
                )
            )
    return told


def _load(facts: Facts) -> list[str]:
    rate = ((facts.experiment.get("load") or {}).get("arrivals") or {}).get("rate")
    begun = facts.first("load.started")
    length = facts.evidence.ended - begun.mono if begun else 0.0
    if not is_number(rate) or not rate or length < 1.0:
        return []
    offered = facts.evidence.requests.height / length
    # Arrivals by chance (Poisson) differ by their square root; three of those are no deviation.
    chance = 3.0 / (float(rate) * length) ** 0.5
    if abs(offered / float(rate) - 1.0) <= max(RATE_SLACK, chance):
        return []
    return [
        t(
            "{offered:.3g} requests/s were offered; {planned:g} were planned (`requests.ndjson`).",
            offered=offered,
            planned=rate,
        )
    ]


def _stopped(facts: Facts) -> list[str]:
    end = facts.first("end")
    status = None if end is None else end.data.get("status")
    if status == "completed":
        return []
    if status:
        return [t("The run was {status}.", status=prose(status))]
    return [t("The run was cut short: its journal has no end.")]


def _not_judged(facts: Facts) -> list[str]:
    return [
        t(
            "{check} was not judged: {reason}.",
            check=code(lessons.label(check)),
            reason=prose(check.get("reason") or t("no reason given")),
        )
        for check in facts.checks
        if check.get("verdict") == Verdict.NOT_JUDGED
    ]
