"""What to learn: what went well, badly, where we were lucky, and what is to be done about it."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass

from drills.model import Json, Verdict
from drills.report import impact, words
from drills.report.escape import code, prose
from drills.report.facts import Facts

#: A pass that used up more than 80 % of what was allowed may fail next month.
MARGIN_MIN = 0.2

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


@dataclass(frozen=True)
class Action:
    """One thing to do, with the check whose pass proves it done. The id is the same from run to run."""

    id: str
    kind: str  # prevent | detect | mitigate | process
    what: str
    proof: str


def label(check: Json) -> str:
    """Return a check's name with what tells it from its siblings, e.g. `latency (ttft p99, fault)`, unescaped."""
    params = check.get("params") or {}
    parts = [str(params[key]) for key in ("name", "metric") if params.get(key)]
    if isinstance(params.get("quantile"), float):
        parts.append(f"p{params['quantile'] * 100:g}")
    parts += [str(params["cohort"])] if params.get("cohort") else []
    return f"{check['check']} ({', '.join(parts)})" if parts else str(check["check"])


def margin(check: Json) -> float | None:
    """Return the unused share of what was allowed, None where value and bound cannot be compared."""
    value, bound = _number(check.get("value")), _number(check.get("bound"))
    if value is None or bound is None or check.get("unit") not in ("s", "ratio"):
        return None  # of a count there is no share to spare: all that may be cut was cut, and that is no luck
    if value <= bound:
        return None if bound <= 0 else (bound - value) / bound
    # More is better: of a share, the room is what is left to the whole.
    room = 1 - bound if check.get("unit") == "ratio" and bound < 1 else bound
    return None if room <= 0 else (value - bound) / room


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and isinstance(value, int | float) else None


def measured(check: Json) -> str:
    """Return value and bound in words; of a count the check's own words, which say of what."""
    unit = str(check.get("unit") or "")
    if unit == "count" and check.get("reason"):
        return prose(check["reason"])
    value, bound = words.quantity(check.get("value"), unit), words.quantity(check.get("bound"), unit)
    return prose(value) if check.get("bound") is None else f"{prose(value)} (bound {prose(bound)})"


def _with(facts: Facts, verdict: Verdict) -> list[Json]:
    return [check for check in facts.checks if check.get("verdict") == verdict]


def _narrow(check: Json) -> bool:
    left = margin(check)
    return left is not None and left < MARGIN_MIN


def well(facts: Facts) -> list[str]:
    """Return what passed with room to spare."""
    return [f"{code(label(c))}: {measured(c)}" for c in _with(facts, Verdict.PASS) if not _narrow(c)]


def badly(facts: Facts) -> list[str]:
    """Return what failed."""
    lines = [f"{code(label(c))}: {measured(c)}{'' if _counted(c) else _reason(c)}" for c in _with(facts, Verdict.FAIL)]
    if facts.verdict.get("left") in ("degraded", "unknown"):
        lines.append(f"how the service was left: {prose(facts.verdict['left'])}")
    if facts.verdict.get("restored") in ("dirty", "unknown"):
        lines.append(f"not everything is known to be put back: restored {prose(facts.verdict['restored'])}")
    return lines


def _counted(check: Json) -> bool:
    return check.get("unit") == "count"


def _reason(check: Json) -> str:
    return f" ({prose(check['reason'])})" if check.get("reason") else ""


def lucky(facts: Facts) -> list[str]:
    """Return narrow passes, idle victims, degraded answers and what could not be judged."""
    lines = []
    for check in _with(facts, Verdict.PASS):
        left = margin(check)
        if left is not None and left < MARGIN_MIN:
            lines.append(f"{code(label(check))} passed with {words.share(max(left, 0.0))} to spare: {measured(check)}")
    seen = impact.streams(facts)
    if seen and facts.victims and seen.in_flight == 0:
        lines.append("the victim was idle at the injection: no stream was in flight on it")
    answers, begun = impact.degraded(facts, "fault")
    if answers:
        count = words.count(answers, "answer")
        lines.append(f"{count} of {begun:,} came from the degradation path: users got less than they asked for")
    lines += [f"{code(label(c))} could not be judged{_reason(c)}" for c in _with(facts, Verdict.INCONCLUSIVE)]
    return lines


def actions(facts: Facts) -> list[Action]:
    """Return action items from failing and inconclusive checks and from what was not put back."""
    items = []
    for check in _with(facts, Verdict.FAIL):
        kind, advice = ADVICE.get(check["check"], ("mitigate", "Find out why the check fails"))
        items.append(Action(_id(facts, check), kind, f"{advice}. Seen: {measured(check)}", _proof(facts, check)))
    for check in _with(facts, Verdict.INCONCLUSIVE):
        what = f"Make {code(label(check))} judgeable{_reason(check)}"
        items.append(Action(_id(facts, check), "process", what, _proof(facts, check)))
    items += _put_back(facts)
    return items


def _put_back(facts: Facts) -> list[Action]:
    run, verdict = str(facts.header.get("run")), facts.verdict
    items = []
    if verdict.get("restored") in ("dirty", "unknown"):
        manual = [str(line) for event in facts.of("revert.end") for line in event.data.get("manual") or []]
        hint = f", then by hand: {words.listed([code(line) for line in manual])}" if manual else ""
        what = f"Put back what the drill changed: {code(f'drill recover {run}')}{hint}"
        items.append(Action(f"{facts.name}-restore", "process", what, f"{code('drill status')} lists nothing"))
    if verdict.get("left") in ("degraded", "unknown"):
        playbook = facts.experiment.get("playbook")
        where = f" (playbook {code(playbook)})" if playbook else ""
        proof = "every replica completes a request"
        items.append(
            Action(
                f"{facts.name}-left",
                "mitigate",
                f"Look at the service and bring it back to full strength{where}",
                proof,
            )
        )
    return items


def _id(facts: Facts, check: Json) -> str:
    """Return an id that stays the same as long as experiment, check and its parameters do."""
    key = json.dumps([facts.name, check["check"], check.get("params") or {}], sort_keys=True)
    return f"{check['check']}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def _proof(facts: Facts, check: Json) -> str:
    return f"{code(label(check))} passes in {code(f'drill run {facts.name}')}"
