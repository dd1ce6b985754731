"""What is to be done: an item for each gate that does not hold, each check that failed or could not be judged, and
for what was not put back. Consequences stand beneath their cause and get no advice of their own.

Texts are plain, with names and commands in back-ticks: `escape.spans` makes Markdown of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from drills.checks.validity import Gate
from drills.model import Json, Verdict
from drills.report import validity, words
from drills.report.escape import plain, ticked
from drills.report.facts import Facts
from drills.report.follows import cause_of
from drills.report.lessons import failed, label

#: What kind of work an action item is, and what to look at first, by check.
ADVICE = {
    "availability": ("mitigate", "Find which failed requests no retry and no fallback saved"),
    "latency": ("mitigate", "Find what the slow requests waited for: queue, retry or a dead replica"),
    "failover": ("mitigate", "Make the router stop sending to a dead replica sooner: health checks, retries, breaker"),
    "recovery": ("mitigate", "Find which stage of the downtime split took the time"),
    "replica_restart": ("prevent", "Make the supervisor or controller restart the replica by itself"),
    "rejoin": ("mitigate", "Make the router take the restarted replica back"),
    "alert": ("detect", "Mend the alert: rule, labels, `for`, route, or what it is computed from"),
    "streams": ("mitigate", "Keep streams that no fault touched whole; drain before a planned stop"),
    "metrics": ("detect", "Look at the metric that crossed its threshold, and whether anybody was told"),
    "cache_recovery": ("mitigate", "Find why the prefix cache serves less: switched off, evicted, or other prompts"),
    "engine_vs_client": ("mitigate", "Look in front of the engine: router, proxy, network, queue"),
    "health_honest": ("prevent", "Let the health endpoint that the router asks make a real completion"),
    "accounted": ("process", "Find the requests that nobody answered"),
    "untouched": ("prevent", "Find why replicas that were not aimed at changed"),
    "retried": ("mitigate", "Make client or router retry what failed before its first token"),
    "retry_storm": ("prevent", "Give retries a budget and back-off with jitter"),
    "degraded": ("mitigate", "Make the degradation path open in time"),
    "sessions": ("mitigate", "Let chats go on at another replica: retries, and no state that only one of them has"),
    "goodput": ("mitigate", "Find what most answers fell short of: length, first token, gaps or end"),
}

_ROOM = "Give the load generator a core of its own, or ask for less load, and run it again"
#: What to do so that the next run is a measurement, by gate.
GATE_ADVICE = {
    "run completed": "See in the Timeline what ended it, and let a run come to its end",
    "undisturbed": "See that nobody else changes the target while a drill is on, and run it again",
    "files whole": "See what kept the probes from looking or the files from being written (a busy machine, a full "
    "disk), and run it again",
    "load process alive": "See in `load.log` why the generator died, and run it again",
    "fault proven on and off": "See in the Timeline what the proof saw: a fault that did not bite, or stays, shows "
    "nothing",
    "all arrivals accounted for": "See in `load.log` where the records of the missing arrivals went, and run it again",
    "records agree with themselves": "Find which records of `requests.ndjson` contradict themselves: damaged, or "
    "written by another version",
    "handled on time": _ROOM,
    "schedule lag": _ROOM,
    "generator CPU": _ROOM,
    "baseline in the SLA": "Bring the service into its SLA, or the load down to what it bears, before a fault is added",
}


_NO_ID = re.compile(r"[^A-Za-z0-9_.-]+")
#: What stands in the place of a check where it is no check that proves the fix, but how a run of any drill ended.
RESTORED, LEFT = "restored", "left"


@dataclass(frozen=True)
class Action:
    """One thing to do, and the check whose pass proves it done. The id is the same from run to run.

    `what` is the same too; `told` is how this run tells it, with what was seen in it.
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
        return f"{words.NO_DATA}: there is no verdict yet, `drill judge` makes it"
    if all(check.get("verdict") == Verdict.NOT_JUDGED for check in facts.checks):
        return f"{words.NO_DATA}: no check was judged"
    return "none: nothing failed and everything could be judged"


def ended_early(facts: Facts) -> bool:
    """Whether the run did not come to its end, so that what it could not judge says nothing."""
    return any(gate.name == validity.COMPLETED for gate in validity.broken(facts))


def _gate(facts: Facts, gate: Gate) -> Action:
    what = f"Make the measurement valid: {gate.name}. {_advice_of(gate)}"
    told = f"Make the measurement valid: {gate.name}: {plain(gate.broken)}. {_advice_of(gate)}"
    done = f"{ticked(gate.name)} holds in {ticked(f'drill run {facts.name}')}"
    return _action(facts, gate.name, {}, ("process", "P3"), (what, told, done))


def _advice_of(gate: Gate) -> str:
    return GATE_ADVICE.get(gate.name, "Mend what keeps it from holding, and run it again")


def _failing(facts: Facts, check: Json) -> Action:
    kind, what = _advised(check)
    return _of(facts, check, kind, "P2", what, f"{what}. Seen: {_seen(check)}")


def _follower(facts: Facts, cause: Json, check: Json) -> Action:
    kind, what = _advised(check)
    told = f"Follows from {ticked(label(cause))}; look again when that passes. Seen: {_seen(check)}"
    return _of(facts, check, kind, "P2", what, told)


def _advised(check: Json) -> tuple[str, str]:
    return ADVICE.get(check["check"], ("mitigate", f"Find out why the check {ticked(check['check'])} fails"))


def _seen(check: Json) -> str:
    return failed(check, show=plain)


def _unjudged(facts: Facts, broken: list[Gate]) -> list[Action]:
    """Return what could not be judged; in a run that did not come to its end that is why."""
    early = any(gate.name == validity.COMPLETED for gate in broken)
    items = []
    for check in (check for check in facts.checks if check.get("verdict") == Verdict.INCONCLUSIVE):
        reason = f" ({plain(check['reason'])})" if check.get("reason") else ""
        what = f"Make {ticked(label(check))} judgeable"
        follows = f"Follows from {ticked(validity.COMPLETED)}; look again when that holds"
        items.append(_of(facts, check, "process", "P3", what, f"{follows if early else what}{reason}"))
    return items


def _put_back(facts: Facts) -> list[Action]:
    run, verdict = str(facts.header.get("run")), facts.verdict
    items = []
    if verdict.get("restored") in ("dirty", "unknown"):
        manual = [str(line) for event in facts.of("revert.end") for line in event.data.get("manual") or []]
        hint = f", then by hand: {words.listed([ticked(line) for line in manual])}" if manual else ""
        what = f"Put back what the drill changed: {ticked(f'drill recover {run}')}"
        texts = (what, f"{what}{hint}", "`drill status` lists nothing")
        items.append(_action(facts, RESTORED, {}, ("process", "P1"), texts, f"{facts.name}-restore"))
    if verdict.get("left") in ("degraded", "unknown"):
        playbook = facts.experiment.get("playbook")
        where = f" (playbook {ticked(playbook)})" if playbook else ""
        what = f"Look at the service and bring it back to full strength{where}"
        texts = (what, what, "every replica completes a request")
        items.append(_action(facts, LEFT, {}, ("mitigate", "P1"), texts, f"{facts.name}-left"))
    return items


def _of(facts: Facts, check: Json, kind: str, priority: str, what: str, told: str) -> Action:
    done = f"{ticked(label(check))} passes in {ticked(f'drill run {facts.name}')}"
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
