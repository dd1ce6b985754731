"""The first paragraph of a postmortem: what was done, what users saw, what came of it."""

from __future__ import annotations

from drills.checks import measures
from drills.evidence import at
from drills.lang import t
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
        return t("Nothing was injected: {reason}.", reason=prose(reason)) if reason else t("Nothing was injected.")
    victims = [code(name) if facts.route else _victim(victim) for name, victim in facts.victims.items()]
    said = {
        "time": words.clock(facts.wall(facts.hit)),
        "fault": words.listed([_fault(facts, receipt) for receipt in facts.evidence.receipts]) or code(facts.name),
        "names": words.listed(victims) or t("no replica"),
        "of": _of(facts),
        "load": t(" under {load}", load=_load(facts)) if _load(facts) else "",
    }
    if facts.control:
        return t(
            "At {time} UTC the control {fault} went through every step on {names}{of}{load}, and touched nothing.",
            **said,
        )
    return t("At {time} UTC {fault} hit {names}{of}{load}.", **said)


def _of(facts: Facts) -> str:
    """Say of how many replicas the victims are, where that is known."""
    expected, hit = facts.evidence.expected_replicas, len(facts.victims)
    if not expected:
        return ""
    replicas = words.count(expected, "replica")
    return (
        t(", one of {replicas},", replicas=replicas)
        if hit == 1
        else t(", {n} of {replicas},", n=hit, replicas=replicas)
    )


def _fault(facts: Facts, receipt: Json) -> str:
    given = [receipt.get("params") or {}]
    given += [item["params"] for item in facts.planned("faults") if item["name"] == receipt.get("fault")]
    # A receipt may keep the whole map of `how` by kind of target; the plan has the one that was used.
    how = next((params["how"] for params in given if isinstance(params.get("how"), str)), None)
    return code(receipt.get("fault")) + words.in_brackets(prose(how) if isinstance(how, str) else "")


def _victim(victim: Json) -> str:
    gpus = [code(uuid) for uuid in victim.get("gpus") or []]
    return code(victim.get("name")) + words.in_brackets(f"GPU {words.listed(gpus)}" if gpus else "")


def _load(facts: Facts) -> str:
    arrivals = (facts.experiment.get("load") or {}).get("arrivals") or {}
    if isinstance(arrivals.get("rate"), int | float):
        return t("{rate:g} requests/s ({kind})", rate=arrivals["rate"], kind=prose(arrivals.get("kind")))
    users = arrivals.get("users")
    return t("{n} users in a closed loop", n=users) if isinstance(users, int) else ""


def _saw(facts: Facts) -> str:
    p99 = impact.quantile_of(facts, "fault", "ttft", 0.99)
    before = impact.quantile_of(facts, "baseline", "ttft", 0.99)
    if not p99.n:
        return t(
            "No request began after an injection; p99 time to first token before it: {p99}.",
            p99=words.seconds(before.value_s),
        )
    text = t(
        "Of {requests} begun after the injection the p99 time to first token was {p99} (baseline {baseline})",
        requests=words.count(p99.n, "request"),
        p99=words.seconds(p99.value_s),
        baseline=words.seconds(before.value_s),
    )
    if facts.control:
        return t("{latency}; no effect is claimed.", latency=text)
    return t("{latency}; {streams}; {failover}.", latency=text, streams=streams(facts), failover=_failover(facts))


def streams(facts: Facts) -> str:
    """Return how many streams in flight on the victims were cut."""
    seen = impact.streams(facts)
    several = len(facts.victims) > 1
    if seen is None:
        return t("streams cut on the victim: no data")
    if not seen.in_flight:
        return t("no stream was in flight on the victims") if several else t("no stream was in flight on the victim")
    number, total = seen.cut, words.count(seen.in_flight, "stream")
    if several:
        return t("{n} of {streams} in flight on the victims were cut", n=number, streams=total)
    return t("{n} of {streams} in flight on the victim were cut", n=number, streams=total)


def _failover(facts: Facts) -> str:
    if facts.route:
        return t("nobody was left to fail over to, {instead}", instead=_instead(facts))
    moved = measures.failover(facts.evidence)
    if moved is None or not moved.n:
        return t("failover: no data")
    if not moved.affected:
        return t("failover took 0 s: no later request was hurt")
    return t("failover took {duration}", duration=words.seconds(moved.value_s))


def _instead(facts: Facts) -> str:
    """Say how many answers were degraded, and what users got who got no such answer."""
    answers, begun = impact.degraded(facts, "fault")
    late = sum(group.n_late for group in retries.groups(facts) if group.degraded)
    text = t("{n:,} of {total:,} answers were degraded", n=answers, total=begun)
    text += words.in_brackets(t("{n:,} of them too late", n=late) if late else "")
    others = sorted((group for group in retries.groups(facts) if not group.degraded), key=lambda group: -group.n)
    told = words.listed([group.what + words.in_brackets(_first_token(group)) for group in others])
    if not told:
        return text
    if answers:
        return t("{degraded}: the others were {groups}", degraded=text, groups=told)
    return t("{degraded}: {groups}", degraded=text, groups=told)


def _first_token(group: retries.Group) -> str:
    return t("first token p50 {p50}", p50=words.seconds(group.p50_s)) if group.n_late else ""


def _outcome(facts: Facts) -> str:
    verdict = facts.verdict.get("verdict")
    if not verdict:
        return t("There is no verdict yet.")
    why = _why(facts, str(verdict))
    return t("Verdict: {verdict}{why}; {alerts}.", verdict=prose(verdict), why=why, alerts=_alerts(facts))


def _why(facts: Facts, verdict: str) -> str:
    """Say which gate or which checks made the verdict; a gate's reason is no check's."""
    if verdict == Verdict.PASS:
        return ""
    broken = validity.broken(facts)
    if broken:
        reasons = words.clauses(prose(gate.broken) for gate in broken)
        apart = _apart(facts, broken[0].name == validity.COMPLETED)
        return t(": the measurement was not valid ({reasons}){apart}", reasons=reasons, apart=apart)
    made = [check for check in facts.checks if check.get("verdict") == verdict]
    alone = [check for check in made if cause_of(check, made) is None]
    causes = [_cause(check, made) if n < CAUSES_MAX else code(label(check)) for n, check in enumerate(alone)]
    reason = facts.verdict.get("reason")
    return t(", by {checks}", checks=words.listed(causes)) if causes else words.in_brackets(prose(reason or ""))


def _cause(check: Json, made: list[Json]) -> str:
    """Return a check with its reason and with what follows from it."""
    cause = code(label(check)) + words.in_brackets(prose(check.get("reason") or ""))
    followers = [code(label(other)) for other in made if cause_of(other, made) is check]
    if not followers:
        return cause
    if len(followers) == 1:
        return t("{cause}, from which {check} follows", cause=cause, check=followers[0])
    return t("{cause}, from which {checks} follow", cause=cause, checks=words.listed(followers))


def _apart(facts: Facts, early: bool) -> str:
    """Name the checks that would not have passed in a valid measurement either."""
    unclear = "" if early else _unclear(_labels(facts, Verdict.INCONCLUSIVE))
    labels = _labels(facts, Verdict.FAIL)
    failed = t("{checks} failed", checks=words.listed(labels)) if labels else ""
    if unclear and failed:
        return t("; apart from that {inconclusive} and {failed}", inconclusive=unclear, failed=failed)
    return t("; apart from that {checks}", checks=unclear or failed) if unclear or failed else ""


def _unclear(labels: list[str]) -> str:
    if len(labels) == 1:
        return t("{check} is inconclusive", check=labels[0])
    return t("{checks} are inconclusive", checks=words.listed(labels)) if labels else ""


def _labels(facts: Facts, verdict: Verdict) -> list[str]:
    return [code(label(check)) for check in facts.checks if check.get("verdict") == verdict]


def _alerts(facts: Facts) -> str:
    names = detection.expected(facts)
    parts = [_alert(facts, name) for name in names] or [t("no alert was expected")]
    for name in detection.unexpected_pages(facts):
        fired = detection.fired_at(facts, name)
        assert fired is not None
        after = words.seconds(fired[0] - facts.zero)
        if names:
            parts.append(t("not expected: {alert} fired after {after}", alert=code(name), after=after))
        else:
            parts.append(t("{alert} fired after {after}", alert=code(name), after=after))
    return words.clauses(parts)


def _alert(facts: Facts, name: str) -> str:
    fired, told = detection.fired_at(facts, name), detection.when(facts, name, "notified")
    if fired is None:
        return t("the alert {alert} was not seen firing", alert=code(name))
    text = t("the alert {alert} fired after {after}", alert=code(name), after=words.seconds(fired[0] - facts.zero))
    if told:
        return t("{fired}, notified after {after}", fired=text, after=words.seconds(at(told) - facts.zero))
    if (facts.target.get("alerts") or {}).get("mode") == "observe":
        return t("{fired}, silenced on purpose: paging path not proven", fired=text)
    return t("{fired}, and no notification was seen", fired=text)
