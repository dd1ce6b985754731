"""What is to be done: an item for each gate that does not hold, each check that failed or could not be judged, and
for what was not put back. Consequences stand beneath their cause and get no advice of their own.

Texts are plain, with names and commands in back-ticks: `escape.spans` makes Markdown of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache

from drills.checks.validity import Gate
from drills.lang import mark, t
from drills.model import Json, Verdict
from drills.report import validity, words
from drills.report.escape import plain, ticked
from drills.report.facts import Facts
from drills.report.follows import cause_of
from drills.report.lessons import failed, label

#: What kind of work an action item is, and what to look at first, by check.
ADVICE = {
    "availability": ("mitigate", mark("Find which failed requests no retry and no fallback saved")),
    "latency": ("mitigate", mark("Find what the slow requests waited for: queue, retry or a dead replica")),
    "failover": (
        "mitigate",
        mark("Make the router stop sending to a dead replica sooner: health checks, retries, breaker"),
    ),
    "recovery": ("mitigate", mark("Find which stage of the downtime split took the time")),
    "replica_restart": ("prevent", mark("Make the supervisor or controller restart the replica by itself")),
    "rejoin": ("mitigate", mark("Make the router take the restarted replica back")),
    "alert": ("detect", mark("Mend the alert: rule, labels, `for`, route, or what it is computed from")),
    "streams": ("mitigate", mark("Keep streams that no fault touched whole; drain before a planned stop")),
    "metrics": ("detect", mark("Look at the metric that crossed its threshold, and whether anybody was told")),
    "cache_recovery": (
        "mitigate",
        mark("Find why the prefix cache serves less: switched off, evicted, or other prompts"),
    ),
    "engine_vs_client": ("mitigate", mark("Look in front of the engine: router, proxy, network, queue")),
    "health_honest": ("prevent", mark("Let the health endpoint that the router asks make a real completion")),
    "accounted": ("process", mark("Find the requests that nobody answered")),
    "untouched": ("prevent", mark("Find why replicas that were not aimed at changed")),
    "retried": ("mitigate", mark("Make client or router retry what failed before its first token")),
    "retry_storm": ("prevent", mark("Give retries a budget and back-off with jitter")),
    "degraded": ("mitigate", mark("Make the degradation path open in time")),
    "sessions": (
        "mitigate",
        mark("Let chats go on at another replica: retries, and no state that only one of them has"),
    ),
    "goodput": ("mitigate", mark("Find what most answers fell short of: length, first token, gaps or end")),
}

_ROOM = mark("Give the load generator a core of its own, or ask for less load, and run it again")
#: What to do so that the next run is a measurement, by gate.
GATE_ADVICE = {
    "run completed": mark("See in the Timeline what ended it, and let a run come to its end"),
    "undisturbed": mark("See that nobody else changes the target while a drill is on, and run it again"),
    "files whole": mark(
        "See what kept the probes from looking or the files from being written (a busy machine, a full "
        "disk), and run it again"
    ),
    "load process alive": mark("See in `load.log` why the generator died, and run it again"),
    "fault proven on and off": mark(
        "See in the Timeline what the proof saw: a fault that did not bite, or stays, shows nothing"
    ),
    "all arrivals accounted for": mark(
        "See in `load.log` where the records of the missing arrivals went, and run it again"
    ),
    "records agree with themselves": mark(
        "Find which records of `requests.ndjson` contradict themselves: damaged, or written by another version"
    ),
    "handled on time": _ROOM,
    "schedule lag": _ROOM,
    "generator CPU": _ROOM,
    "baseline in the SLA": mark(
        "Bring the service into its SLA, or the load down to what it bears, before a fault is added"
    ),
}
_MEND = mark("Mend what keeps it from holding, and run it again")

#: What is proposed with something in it; an item keeps it in English (`in_words` says it in another language).
_VALID = mark("Make the measurement valid: {gate}. {advice}")
_WHY = mark("Find out why the check {check} fails")
_JUDGEABLE = mark("Make {check} judgeable")
_RECOVER = mark("Put back what the drill changed: {command}")
_STRENGTH = mark("Look at the service and bring it back to full strength")
_PLAYBOOK = mark("Look at the service and bring it back to full strength (playbook {playbook})")
_GATE_WORDS = frozenset({*GATE_ADVICE, *GATE_ADVICE.values(), _MEND})
_PROPOSED = (_VALID, _WHY, _JUDGEABLE, _RECOVER, _STRENGTH, _PLAYBOOK, *(what for _, what in ADVICE.values()))

_NO_ID = re.compile(r"[^A-Za-z0-9_.-]+")
#: What stands in the place of a check where it is no check that proves the fix, but how a run of any drill ended.
RESTORED, LEFT = "restored", "left"


@dataclass(frozen=True)
class Action:
    """One thing to do, and the check whose pass proves it done. The id is the same from run to run.

    `what` is the same too, in English; `told` is how this run tells it, with what was seen in it.
    """

    id: str
    kind: str  # prevent | detect | mitigate | process
    priority: str  # P1..P4, proposed
    what: str
    told: str
    done_when: str
    target: str
    proof: Json  # drill, check, params


def actions(facts: Facts) -> list[Action]:
    """Return action items: gates first, then failing checks with what follows from them, then the rest."""
    broken = validity.broken(facts)
    failing = [check for check in facts.checks if check.get("verdict") == Verdict.FAIL]
    items = [_gate(facts, gate) for gate in broken]
    for check in failing:
        if cause_of(check, failing) is None:
            items.append(_failing(facts, check))
            items += [_follower(facts, check, other) for other in failing if cause_of(other, failing) is check]
    items += _unjudged(facts, broken)
    return items + _put_back(facts)


def none(facts: Facts) -> str:
    """Return what is said in the place of action items when there are none."""
    if not facts.checks:
        return t("no data: there is no verdict yet, `drill judge` makes it")
    if all(check.get("verdict") == Verdict.NOT_JUDGED for check in facts.checks):
        return t("no data: no check was judged")
    return t("none: nothing failed and everything could be judged")


def in_words(what: str) -> str:
    """Return what an item says in the language that is spoken, where it is a proposal of ours; else as it stands."""
    for message in _PROPOSED:
        if found := _pattern(message).fullmatch(what):
            given = found.groupdict()
            return t(message, **{name: t(one) if one in _GATE_WORDS else one for name, one in given.items()})
    return what


@cache
def _pattern(message: str) -> re.Pattern[str]:
    """Return what matches a message with anything in its places."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(message)), re.DOTALL)


def ended_early(facts: Facts) -> bool:
    """Whether the run did not come to its end, so that what it could not judge says nothing."""
    return any(gate.name == validity.COMPLETED for gate in validity.broken(facts))


def _gate(facts: Facts, gate: Gate) -> Action:
    advice = GATE_ADVICE.get(gate.name, _MEND)
    what = _VALID.format(gate=gate.name, advice=advice)
    told = t(
        "Make the measurement valid: {gate}: {reason}. {advice}",
        gate=t(gate.name),
        reason=plain(gate.broken),
        advice=t(advice),
    )
    done = t("{gate} holds in {command}", gate=ticked(t(gate.name)), command=_again(facts))
    return _action(facts, gate.name, {}, ("process", "P3"), (what, told, done))


def _again(facts: Facts) -> str:
    return ticked(f"drill run {facts.name}")


def _failing(facts: Facts, check: Json) -> Action:
    kind, what = _advised(check)
    told = t("{what}. Seen: {seen}", what=in_words(what), seen=_seen(check))
    return _of(facts, check, kind, "P2", what, told)


def _follower(facts: Facts, cause: Json, check: Json) -> Action:
    kind, what = _advised(check)
    told = t(
        "Follows from {check}; look again when that passes. Seen: {seen}",
        check=ticked(label(cause)),
        seen=_seen(check),
    )
    return _of(facts, check, kind, "P2", what, told)


def _advised(check: Json) -> tuple[str, str]:
    return ADVICE.get(check["check"], ("mitigate", _WHY.format(check=ticked(check["check"]))))


def _seen(check: Json) -> str:
    return failed(check, show=plain)


def _unjudged(facts: Facts, broken: list[Gate]) -> list[Action]:
    """Return what could not be judged; in a run that did not come to its end that is why."""
    early = any(gate.name == validity.COMPLETED for gate in broken)
    items = []
    for check in (check for check in facts.checks if check.get("verdict") == Verdict.INCONCLUSIVE):
        reason = words.in_brackets(plain(check.get("reason") or ""))
        what = _JUDGEABLE.format(check=ticked(label(check)))
        follows = t("Follows from {gate}; look again when that holds", gate=ticked(t(validity.COMPLETED)))
        items.append(_of(facts, check, "process", "P3", what, f"{follows if early else in_words(what)}{reason}"))
    return items


def _put_back(facts: Facts) -> list[Action]:
    run, verdict = str(facts.header.get("run")), facts.verdict
    items = []
    if verdict.get("restored") in ("dirty", "unknown"):
        manual = [str(line) for event in facts.of("revert.end") for line in event.data.get("manual") or []]
        hint = t(", then by hand: {commands}", commands=words.listed([ticked(line) for line in manual]))
        what = _RECOVER.format(command=ticked(f"drill recover {run}"))
        told = f"{in_words(what)}{hint if manual else ''}"
        texts = (what, told, t("`drill status` lists nothing"))
        items.append(_action(facts, RESTORED, {}, ("process", "P1"), texts, f"{facts.name}-restore"))
    if verdict.get("left") in ("degraded", "unknown"):
        playbook = facts.experiment.get("playbook")
        what = _PLAYBOOK.format(playbook=ticked(playbook)) if playbook else _STRENGTH
        texts = (what, in_words(what), t("every replica completes a request"))
        items.append(_action(facts, LEFT, {}, ("mitigate", "P1"), texts, f"{facts.name}-left"))
    return items


def _of(facts: Facts, check: Json, kind: str, priority: str, what: str, told: str) -> Action:
    done = t("{check} passes in {command}", check=ticked(label(check)), command=_again(facts))
    return _action(facts, check["check"], check.get("params") or {}, (kind, priority), (what, told, done))


def _action(
    facts: Facts, name: str, params: Json, sort: tuple[str, str], texts: tuple[str, str, str], word: str = ""
) -> Action:
    target, proof = str(facts.target.get("name") or ""), {"drill": facts.name, "check": name, "params": params}
    return Action(_id(word or name, target, proof), *sort, *texts, target, proof)


def _id(word: str, target: str, proof: Json) -> str:
    """Return an id that stays the same as long as experiment, target, check (or gate) and its parameters do."""
    key = json.dumps([target, proof], sort_keys=True)
    return f"{_NO_ID.sub('_', word)[:60]}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"
