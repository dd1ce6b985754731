"""The timeline: each event of the journal as one plain sentence with its time, offset and line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from drills.checks import measures
from drills.checks.validity import change_words
from drills.custody import is_wall
from drills.evidence import at
from drills.lang import mark, spoken, t
from drills.model import Event, Json, Phase
from drills.report import impact, router, words
from drills.report.escape import code, prose
from drills.report.facts import Facts

#: Longer timelines lose their middle, and say so.
LINES_MAX = 250


@dataclass(frozen=True)
class Line:
    """One line: mono of what happened, the sentence (inert Markdown), and where it was read."""

    mono: float
    what: str
    source: str


def timeline(facts: Facts) -> tuple[list[Line], int]:
    """Return the lines in order of time, and how many were left out of the middle."""
    found: tuple[list[Line], int] = facts.evidence.once(f"timeline {spoken()}", lambda: _timeline(facts))
    return found


def _timeline(facts: Facts) -> tuple[list[Line], int]:
    lines = [Line(at(event), _recovery(facts, event) or sentence(event), _source(event)) for event in facts.events]
    lines += [*_from_requests(facts), *_from_router(facts), *_in_band(facts)]
    lines.sort(key=lambda line: line.mono)
    surplus = len(lines) - LINES_MAX
    if surplus <= 0:
        return lines, 0
    head = LINES_MAX * 4 // 5
    return lines[:head] + lines[head + surplus :], surplus


def sentence(event: Event) -> str:
    """Return what an event says, as inert Markdown; events unknown here are shown as they are."""
    word = _SENTENCES.get(event.event)
    if word is None:
        return f"{code(event.event)} {code(event.data)}" if event.data else code(event.event)
    return word(event.data)


def _recovery(facts: Facts, event: Event) -> str:
    """Say until when the recovery is planned, in the timeline's own offsets; empty for every other event.

    Its length is planned from the injection, or for a fault that is held from the moment it is proven off.
    """
    phases = facts.evidence.plan.get("phases") or {}
    since = {"injection": facts.hit, "off": facts.evidence.t_off}.get(str(phases.get("recovery_from")))
    if event.event != "phase" or event.data.get("phase") != Phase.RECOVERY or since is None:
        return ""
    end = since + float(phases["recovery_s"]) - facts.zero
    until = words.offset(end)
    if phases.get("recovery_auto"):
        return t("phase recovery begins, planned until {offset}, less once every check is decided", offset=until)
    return t("phase recovery begins, planned until {offset}", offset=until)


def _source(event: Event) -> str:
    origin = event.data.get("source")
    return f"journal {event.n}" + (f", {prose(origin)}" if isinstance(origin, str) else "")


def _from_requests(facts: Facts) -> list[Line]:
    """Return what no event tells: the first broken promise, the opening of the degradation, the attempts that broke."""
    if facts.hit is None:
        return []
    lines = []
    opened = impact.opening(facts)
    if opened:
        text = t(
            "degradation open: first request that got a degraded answer in time, {duration} after the first that "
            "needed one",
            duration=words.seconds(opened.after_s),
        )
        lines.append(Line(opened.at, text, f"requests.ndjson arrival {opened.arrival}, verdict.json: `degraded`"))
    broke = facts.first_violation
    if broke is not None:
        text = t("first arrival after the injection that broke the SLA ({outcome})", outcome=_outcome(broke))
        lines.append(Line(broke["intended"], text, f"requests.ndjson arrival {broke['arrival']}"))
    hurt = facts.rebuffed()
    off_s = facts.evidence.ledger_error_s
    error = f", ±{words.seconds(off_s)}" if off_s else ""
    for attempt, row in ((_FIRST, hurt[0]), (_LAST, hurt[-1])) if hurt else ():
        text = t(attempt, replica=code(row["replica"]), how=prose(row["close"]))
        lines.append(Line(row["end"], text, f"ledger.ndjson {code(row['id'])}{error}"))
    return lines


_FIRST: Final = mark("first attempt on {replica} that broke ({how})")
_LAST: Final = mark("last attempt on {replica} that broke ({how})")


def _from_router(facts: Facts) -> list[Line]:
    """Return how the router saw its workers: health and breakers that changed."""
    return [
        Line(
            change.mono,
            t("router: {what} of {worker} is {now}, was {was}", **router.told(change)),
            "samples.ndjson, probe router",
        )
        for change in router.changes(facts)
    ]


def _in_band(facts: Facts) -> list[Line]:
    """Return when traffic was back in its band, where it had left it."""
    back = measures.recovery(facts.evidence) if facts.hit is not None and not facts.control else None
    if back is None or back.value_s is None or back.reason or measures.never_out(facts.evidence):
        return []
    text = t("traffic is back in its band: every 10 s window from here on is in the SLA")
    return [Line(back.since + back.value_s, text, "requests.ndjson")]


def _outcome(record: Json) -> str:
    return prose(f"{record['outcome']}: {record['error']}" if record.get("error") else record["outcome"])


def _names(items: object) -> str:
    names = items if isinstance(items, list) else [items]
    return words.listed([code(name) for name in names]) or t("none")


def _gate(data: Json) -> str:
    replicas = data.get("replicas") or []
    sound = sum(1 for replica in replicas if replica.get("ok"))
    message = _GATE_PASSED if data.get("ok") else _GATE_CLOSED
    text = t(message, n=sound, replicas=words.count(len(replicas), "replica"))
    firing = data.get("alerts") or []
    return text + (t("; firing: {alerts}", alerts=_names(firing)) if firing else "") + _because(data)


_GATE_PASSED: Final = mark("steady-state gate passed: {n} of {replicas} answered")
_GATE_CLOSED: Final = mark("steady-state gate did not pass: {n} of {replicas} answered")


def _because(data: Json) -> str:
    return words.in_brackets(prose(data["reason"])) if data.get("reason") else ""


def _refusals(data: Json) -> str:
    refusals = data.get("refusals") or []
    told = t("preflight passed") if data.get("ok") else t("preflight did not pass")
    return words.clauses([told, *(prose(reason) for reason in refusals)])


def _proof(data: Json) -> str:
    word = {True: t("proven"), False: t("**not** there"), None: t("not provable either way")}[data.get("ok")]
    facts = words.clauses(_evidence(item) for item in data.get("evidence") or [] if isinstance(item, dict))
    told = t("{proof}: {seen}", proof=word, seen=facts) if facts else word
    beside: dict[Any, str] = {True: t("bystanders untouched"), False: t("**bystanders were hit too**")}
    others = beside.get(data.get("bystanders_ok"))
    return words.clauses([told, others]) if others else told


def _off(data: Json) -> str:
    """Say that a fault is off; of a deed that is done and over that nothing of ours is left of it."""
    if data.get("held") is False:
        return t("nothing of ours is left in place: {proof}", proof=_proof(data))
    return t("fault off: {proof}", proof=_proof(data))


def _metrics(data: Json) -> str:
    names = data.get("names") or {}
    absent = [name for name in data.get("absent") or [] if not _told_by_others(str(name), names)]
    read = t("metrics of {replica} read", replica=code(data.get("replica")))
    return t("{read}; absent at that moment: {names}", read=read, names=_names(absent)) if absent else read


#: Old names, and those of newer engines that tell the same.
_NEWER = {"prefix_hit_rate": ("prefix_hits", "prefix_queries"), "swapped": ("preemptions",)}


def _told_by_others(name: str, names: Json) -> bool:
    return name in _NEWER and all(newer in names for newer in _NEWER[name])


def _evidence(item: Json) -> str:
    seen = [f"{prose(key)}: {_value(value)}" for key, value in item.items() if isinstance(value, bool)]
    meaning = prose(item["meaning"]) if item.get("meaning") else t(", ").join(seen)
    return prose(item.get("what", item)) + words.in_brackets(meaning)


def _step(data: Json) -> str:
    known = {"receipt", "step", "ok"}
    told = {key: value for key, value in data.items() if key not in known and value not in ("", None, [])}
    more = t(", ").join(f"{prose(key)} {_value(value)}" for key, value in told.items())
    message = _STEP_FAILED if data.get("ok") is False else _STEP
    step = t(message, step=code(data.get("step")))
    return t("{step}: {seen}", step=step, seen=more) if more else step


_STEP: Final = mark("step {step}")
_STEP_FAILED: Final = mark("step {step} **failed**")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return t("yes") if value else t("no")
    if isinstance(value, int | float):
        return f"{value:.6g}"
    return code(" ".join(str(part) for part in value) if isinstance(value, list) else value)


def _replica(data: Json) -> str:
    told = [t("replica {replica}: {change}", replica=code(data.get("replica")), change=prose(data.get("change")))]
    told += [t("pid {pid}", pid=data["pid"])] if isinstance(data.get("pid"), int) else []
    told += [t("pod {pod}", pod=code(data["pod"]))] if data.get("pod") else []
    told += [t("restarts {n}", n=data["restarts"])] if isinstance(data.get("restarts"), int) else []
    told += [t("by {who}", who=prose(data["by"]))] if data.get("by") else []
    return words.one_clause(told)


def _completion(data: Json) -> str:
    if not data.get("ok"):
        return t(
            "completion straight from {replica} failed: {error}",
            replica=code(data.get("replica")),
            error=code(data.get("error")),
        )
    told, ttft = [t("good completion straight from {replica}", replica=code(data.get("replica")))], data.get("ttft_ms")
    told += [t("first token after {after}", after=words.seconds(ttft / 1000))] if isinstance(ttft, int | float) else []
    told += [t("on GPU {gpu}", gpu=code(data["gpu"]))] if data.get("gpu") else []
    return words.one_clause(told)


def _alert(data: Json) -> str:
    where = (data.get("labels") or {}).get("replica")
    alert, state = code(data.get("alert")), prose(data.get("state"))
    if where:
        return t("alert {alert} for {replica}: {state}", alert=alert, replica=code(where), state=state)
    return t("alert {alert}: {state}", alert=alert, state=state)


def _fired(timer: object) -> str:
    """Say that the timer on the target had been quicker, and when."""
    if not isinstance(timer, dict) or timer.get("state") != "undone":
        return ""
    since: Any = timer.get("at")
    if not is_wall(since):
        return t("; **its timer on the target had taken it off**")
    when = f"{datetime.fromtimestamp(since, UTC):%H:%M:%S}"
    return t("; **its timer on the target had taken it off at {time} UTC**", time=when)


def _reverted(data: Json) -> str:
    manual = data.get("manual") or []
    text = t(
        "{of}revert ended, by {who}: restored {restored}",
        of=_of(data),
        who=prose(data.get("by")),
        restored=prose(data.get("restored")),
    )
    return text + (t("; by hand: {commands}", commands=_names(manual)) if manual else "")


def _reasons(data: Json) -> str:
    return words.clauses(prose(str(why).removeprefix("# ")) for why in data.get("why") or []) or t("no reason given")


def _guard(data: Json) -> str:
    query = f" {code(data['query'])}" if data.get("query") else ""
    return t(
        "**guard** {guard}: {value}, bound {bound}",
        guard=code(data.get("guard")) + query,
        value=_value(data.get("value")),
        bound=_value(data.get("bound")),
    )


def _announced(data: Json) -> str:
    told = t(
        "{what} of the drill announced by the alert {alert}",
        what=prose(data.get("what")),
        alert=code(data.get("alert")),
    )
    return t("{told}, **which failed**: {error}", told=told, error=prose(data["error"])) if data.get("error") else told


def _receipt(data: Json) -> str:
    receipt = code((data.get("receipt") or {}).get("id"))
    if data.get("beside") is True:
        return t("receipt {receipt} written, before the deed beside it", receipt=receipt)
    return t("receipt {receipt} written, before the fault", receipt=receipt)


def _of(data: Json) -> str:
    """Say whose revert it is, where it is none of a fault."""
    return t("{receipt}: ", receipt=code(data.get("receipt"))) if data.get("beside") is True else ""


def _load_stopped(data: Json) -> str:
    message = _LOAD_DIED if data.get("died") else _LOAD_OFF
    return t(message, n=data.get("records"), total=data.get("drawn")) + _because(data)


_LOAD_OFF: Final = mark("load off: {n} records of {total} arrivals")
_LOAD_DIED: Final = mark("load off **because the generator died**: {n} records of {total} arrivals")


def _left(data: Json) -> str:
    bad = [replica.get("name") for replica in data.get("replicas") or [] if not replica.get("ok")]
    told = t("service left {left}", left=prose(data.get("left")))
    return t("{left}; not answering: {replicas}", left=told, replicas=_names(bad)) if bad else told


def _notified(data: Json) -> str:
    """Say how it is known: from the receiver itself, or from the counters of whoever sent it."""
    alert, status = code(data.get("alert")), prose(data.get("status"))
    if data.get("source") == "alertmanager":
        return t("notification sent by Alertmanager: {alert} {status}", alert=alert, status=status)
    return t("notification received: {alert} {status}", alert=alert, status=status)


_SENTENCES: dict[str, Callable[[Json], str]] = {
    "header": lambda d: t("run {run} of {drill} begins", run=code(d.get("run")), drill=code(d.get("experiment"))),
    "lock.taken": lambda d: t("lock taken by {who}", who=code(d.get("by"))),
    "lock.released": lambda _: t("lock released"),
    "preflight": _refusals,
    "gate": _gate,
    "load.started": lambda d: t("load on (pid {pid})", pid=d.get("pid")),
    "phase": lambda d: t(
        "phase {phase} begins, planned {duration}",
        phase=prose(d.get("phase")),
        duration=words.seconds(d.get("planned_s")),
    ),
    "receipt": _receipt,
    "timer.armed": lambda d: t(
        "undo timer armed on {host}: {duration}", host=code(d.get("host")), duration=words.seconds(d.get("deadline_s"))
    ),
    "timer.disarmed": lambda _: t("undo timer disarmed"),
    "unreachable": lambda d: t(
        "target not to be asked ({asked}): {reason}", asked=prose(d.get("asked")), reason=prose(d.get("reason"))
    ),
    "inject.begin": lambda d: t("injection of {fault} begins", fault=code(d.get("fault"))),
    "inject.hit": lambda d: t("**the fault hits** {names}", names=_names(d.get("victims") or [])),
    "inject.step": _step,
    "inject.end": lambda _: t("injection ends"),
    "proof.on": lambda d: t("fault on: {proof}", proof=_proof(d)),
    "proof.off": _off,
    "revert.begin": lambda d: t(
        "{of}revert begins, by {who}{timer}", of=_of(d), who=prose(d.get("by")), timer=_fired(d.get("timer"))
    ),
    "revert.end": _reverted,
    "beside.inject.begin": lambda d: t("{deed} begins", deed=code(d.get("fault"))),
    "beside.inject.step": _step,
    "beside.inject.end": lambda d: t("{deed}: done", deed=code(d.get("receipt"))),
    "beside.proof.on": lambda d: t("{deed} on: {proof}", deed=code(d.get("fault")), proof=_proof(d)),
    "beside.proof.off": lambda d: t("{deed} off: {proof}", deed=code(d.get("fault")), proof=_proof(d)),
    "replica": _replica,
    "completion": _completion,
    "metrics.names": _metrics,
    "alert": _alert,
    "notified": _notified,
    "guard": _guard,
    "signal": lambda d: t("**signal** {signal}", signal=code(d.get("signal"))),
    "stop": lambda d: t("**stopped** by {who} ({how})", who=code(d.get("by")), how=prose(d.get("how"))),
    "changed_by_others": lambda d: t("**changed by others**: {what}", what=prose(change_words(d))),
    "scaled": lambda d: t("scaled by {who}: {what}", who=prose(d.get("by")), what=prose(change_words(d))),
    "scaled.back": lambda d: t("scaled back: {what} is as it was", what=prose(d.get("subject"))),
    "scaled.left": lambda d: t("**not scaled back yet**: {what}", what=prose(change_words(d))),
    "announced": _announced,
    "load.stopping": lambda _: t("no new arrivals"),
    "load.stopped": _load_stopped,
    "collected": lambda d: t(
        "collected {file}: {lines}", file=code(d.get("file")), lines=words.count(int(d.get("lines") or 0), "line")
    ),
    "undo.needless": lambda d: t("nothing to undo: {reasons}", reasons=_reasons(d)),
    "undo.failed": lambda d: t("**undo failed**; by hand: {commands}", commands=_names(d.get("manual") or [])),
    "broken": lambda d: t("**broken**: {step}: {error}", step=code(d.get("step")), error=code(d.get("error"))),
    "left": _left,
    "end": lambda d: t("run {status}", status=prose(d.get("status"))) + _because(d),
}
