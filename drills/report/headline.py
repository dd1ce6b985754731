"""The first paragraph of a postmortem: what was done, what users saw, what came of it."""

from __future__ import annotations

from drills.checks import measures
from drills.evidence import at
from drills.model import Json, Verdict
from drills.report import detection, impact, retries, validity, words
from drills.report.escape import code, prose
from drills.report.facts import Facts
from drills.report.follows import cause_of
from drills.report.lessons import label

#: Of more failing checks than these the summary gives the names alone; the verdict's table has their reasons.
CAUSES_MAX = 3


def summary(facts: Facts) -> list[str]:
    """Return three sentences: what was done, what users saw, what came of it."""
    return [_done(facts), _saw(facts), _outcome(facts)]


def defect(facts: Facts) -> str:
    """Return the name of the defect that was planted, as inert Markdown; empty without one."""
    planted = facts.evidence.plan.get("defect")
    return code(planted) if planted else ""


def _done(facts: Facts) -> str:
    if facts.hit is None:
        reason = facts.data("end").get("reason")
        return "Nothing was injected" + (f": {prose(reason)}." if reason else ".")
    victims = [code(name) if facts.route else _victim(victim) for name, victim in facts.victims.items()]
    names = words.listed(victims) or "no replica"
    expected, hit = facts.evidence.expected_replicas, len(facts.victims)
    of = f", {'one' if hit == 1 else hit} of {words.count(expected, 'replica')}," if expected else ""
    load = f" under {_load(facts)}" if _load(facts) else ""
    when = f"At {words.clock(facts.wall(facts.hit))} UTC"
    what = words.listed([_fault(facts, receipt) for receipt in facts.evidence.receipts]) or code(facts.name)
    if facts.control:
        return f"{when} the control {what} went through every step on {names}{of}{load}, and touched nothing."
    return f"{when} {what} hit {names}{of}{load}."


def _fault(facts: Facts, receipt: Json) -> str:
    given = [receipt.get("params") or {}]
    given += [item["params"] for item in facts.planned("faults") if item["name"] == receipt.get("fault")]
    # A receipt may keep the whole map of `how` by kind of target; the plan has the one that was used.
    how = next((params["how"] for params in given if isinstance(params.get("how"), str)), None)
    return code(receipt.get("fault")) + (f" ({prose(how)})" if isinstance(how, str) else "")


def _victim(victim: Json) -> str:
    gpus = [code(uuid) for uuid in victim.get("gpus") or []]
    return code(victim.get("name")) + (f" (GPU {words.listed(gpus)})" if gpus else "")


def _load(facts: Facts) -> str:
    arrivals = (facts.experiment.get("load") or {}).get("arrivals") or {}
    if isinstance(arrivals.get("rate"), int | float):
        return f"{arrivals['rate']:g} requests/s ({prose(arrivals.get('kind'))})"
    return f"{arrivals['users']} users in a closed loop" if isinstance(arrivals.get("users"), int) else ""


def _saw(facts: Facts) -> str:
    p99 = impact.quantile_of(facts, "fault", "ttft", 0.99)
    before = impact.quantile_of(facts, "baseline", "ttft", 0.99)
    if not p99.n:
        return (
            f"No request began after an injection; p99 time to first token before it: {words.seconds(before.value_s)}."
        )
    count = words.count(p99.n, "request")
    text = f"Of {count} begun after the injection the p99 time to first token was {words.seconds(p99.value_s)}"
    text += f" (baseline {words.seconds(before.value_s)})"
    if facts.control:
        return f"{text}; no effect is claimed."
    return f"{text}; {streams(facts)}; {_failover(facts)}."


def streams(facts: Facts) -> str:
    """Return how many streams in flight on the victims were cut."""
    seen = impact.streams(facts)
    where = "victims" if len(facts.victims) > 1 else "victim"
    if seen is None:
        return "streams cut on the victim: no data"
    if not seen.in_flight:
        return f"no stream was in flight on the {where}"
    return f"{seen.cut} of {words.count(seen.in_flight, 'stream')} in flight on the {where} were cut"


def _failover(facts: Facts) -> str:
    if facts.route:
        return f"nobody was left to fail over to, {_instead(facts)}"
    moved = measures.failover(facts.evidence)
    if moved is None or not moved.n:
        return "failover: no data"
    if not moved.affected:
        return "failover took 0 s: no later request was hurt"
    return f"failover took {words.seconds(moved.value_s)}"


def _instead(facts: Facts) -> str:
    """Say how many answers were degraded, and what users got who got no such answer."""
    answers, begun = impact.degraded(facts, "fault")
    late = sum(group.n_late for group in retries.groups(facts) if group.degraded)
    text = f"{answers:,} of {begun:,} answers were degraded" + (f" ({late:,} of them too late)" if late else "")
    others = sorted((group for group in retries.groups(facts) if not group.degraded), key=lambda group: -group.n)
    told = [g.what + (f" (first token p50 {words.seconds(g.p50_s)})" if g.n_late else "") for g in others]
    return f"{text}: {'the others were ' if answers else ''}{words.listed(told)}" if told else text


def _outcome(facts: Facts) -> str:
    verdict = facts.verdict.get("verdict")
    if not verdict:
        return "There is no verdict yet."
    return f"Verdict: {prose(verdict)}{_why(facts, str(verdict))}; {_alerts(facts)}."


def _why(facts: Facts, verdict: str) -> str:
    """Say which gate or which checks made the verdict; a gate's reason is no check's."""
    if verdict == Verdict.PASS:
        return ""
    broken = validity.broken(facts)
    if broken:
        reasons = "; ".join(prose(gate.broken) for gate in broken)
        return f": the measurement was not valid ({reasons}){_apart(facts, broken[0].name == validity.COMPLETED)}"
    made = [check for check in facts.checks if check.get("verdict") == verdict]
    alone = [check for check in made if cause_of(check, made) is None]
    causes = [_cause(check, made) if n < CAUSES_MAX else code(label(check)) for n, check in enumerate(alone)]
    reason = facts.verdict.get("reason")
    return f", by {words.listed(causes)}" if causes else f" ({prose(reason)})" if reason else ""


def _cause(check: Json, made: list[Json]) -> str:
    """Return a check with its reason and with what follows from it."""
    reason = f" ({prose(check['reason'])})" if check.get("reason") else ""
    followers = [code(label(other)) for other in made if cause_of(other, made) is check]
    follow = "follows" if len(followers) == 1 else "follow"
    more = f", from which {words.listed(followers)} {follow}" if followers else ""
    return f"{code(label(check))}{reason}{more}"


def _apart(facts: Facts, early: bool) -> str:
    """Name the checks that would not have passed in a valid measurement either."""
    words_of = {Verdict.FAIL: "failed"} if early else {Verdict.INCONCLUSIVE: "inconclusive", Verdict.FAIL: "failed"}
    parts = []
    for verdict, word in words_of.items():
        names = [code(label(check)) for check in facts.checks if check.get("verdict") == verdict]
        if names:
            be = "" if verdict == Verdict.FAIL else "is " if len(names) == 1 else "are "
            parts.append(f"{words.listed(names)} {be}{word}")
    return f"; apart from that {words.listed(parts)}" if parts else ""


def _alerts(facts: Facts) -> str:
    names = detection.expected(facts)
    parts = [_alert(facts, name) for name in names] or ["no alert was expected"]
    for name in detection.unexpected_pages(facts):
        fired = detection.fired_at(facts, name)
        assert fired is not None
        parts.append(
            f"{'not expected: ' if names else ''}{code(name)} fired after {words.seconds(fired[0] - facts.zero)}"
        )
    return "; ".join(parts)


def _alert(facts: Facts, name: str) -> str:
    fired, told = detection.fired_at(facts, name), detection.when(facts, name, "notified")
    if fired is None:
        return f"the alert {code(name)} was not seen firing"
    text = f"the alert {code(name)} fired after {words.seconds(fired[0] - facts.zero)}"
    silenced = (facts.target.get("alerts") or {}).get("mode") == "observe"
    unseen = "silenced on purpose: paging path not proven" if silenced else "and no notification was seen"
    noted = f"notified after {words.seconds(at(told) - facts.zero)}" if told else unseen
    return f"{text}, {noted}"
