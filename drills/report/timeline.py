"""The timeline: each event of the journal as one plain sentence with its time, offset and line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from drills.checks import measures
from drills.checks.validity import change_words
from drills.custody import is_wall
from drills.evidence import at
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
    found: tuple[list[Line], int] = facts.evidence.once("timeline", lambda: _timeline(facts))
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
    less = ", less once every check is decided" if phases.get("recovery_auto") else ""
    return f"phase recovery begins, planned until {words.offset(end)}{less}"


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
        first = "degradation open: first request that got a degraded answer in time"
        text = f"{first}, {words.seconds(opened.after_s)} after the first that needed one"
        lines.append(Line(opened.at, text, f"requests.ndjson arrival {opened.arrival}, verdict.json: `degraded`"))
    broke = facts.first_violation
    if broke is not None:
        text = f"first arrival after the injection that broke the SLA ({_outcome(broke)})"
        lines.append(Line(broke["intended"], text, f"requests.ndjson arrival {broke['arrival']}"))
    hurt = facts.rebuffed()
    off_s = facts.evidence.ledger_error_s
    error = f", ±{words.seconds(off_s)}" if off_s else ""
    for word, row in (("first", hurt[0]), ("last", hurt[-1])) if hurt else ():
        text = f"{word} attempt on {code(row['replica'])} that broke ({prose(row['close'])})"
        lines.append(Line(row["end"], text, f"ledger.ndjson {code(row['id'])}{error}"))
    return lines


def _from_router(facts: Facts) -> list[Line]:
    """Return how the router saw its workers: health and breakers that changed."""
    return [
        Line(
            change.mono,
            f"router: {change.what} of {code(change.worker)} is {change.now}, was {change.was}",
            "samples.ndjson, probe router",
        )
        for change in router.changes(facts)
    ]


def _in_band(facts: Facts) -> list[Line]:
    """Return when traffic was back in its band, where it had left it."""
    back = measures.recovery(facts.evidence) if facts.hit is not None and not facts.control else None
    if back is None or back.value_s is None or back.reason or measures.never_out(facts.evidence):
        return []
    text = "traffic is back in its band: every 10 s window from here on is in the SLA"
    return [Line(back.since + back.value_s, text, "requests.ndjson")]


def _outcome(record: Json) -> str:
    return prose(f"{record['outcome']}: {record['error']}" if record.get("error") else record["outcome"])


def _names(items: object) -> str:
    names = items if isinstance(items, list) else [items]
    return words.listed([code(name) for name in names]) or "none"


def _gate(data: Json) -> str:
    replicas = data.get("replicas") or []
    sound = sum(1 for replica in replicas if replica.get("ok"))
    text = f"steady-state gate {_passed(data)}: {sound} of {words.count(len(replicas), 'replica')} answered"
    firing = data.get("alerts") or []
    return text + (f"; firing: {_names(firing)}" if firing else "") + _because(data)


def _passed(data: Json) -> str:
    return "passed" if data.get("ok") else "did not pass"


def _because(data: Json) -> str:
    return f" ({prose(data['reason'])})" if data.get("reason") else ""


def _refusals(data: Json) -> str:
    refusals = data.get("refusals") or []
    return f"preflight {_passed(data)}" + "".join(f"; {prose(reason)}" for reason in refusals)


def _proof(data: Json) -> str:
    word = {True: "proven", False: "**not** there", None: "not provable either way"}[data.get("ok")]
    facts = [_evidence(item) for item in data.get("evidence") or [] if isinstance(item, dict)]
    beside: dict[Any, str] = {True: "; bystanders untouched", False: "; **bystanders were hit too**"}
    others = beside.get(data.get("bystanders_ok"), "")
    return f"{word}{': ' + '; '.join(facts) if facts else ''}{others}"


def _off(data: Json) -> str:
    """Say that a fault is off; of a deed that is done and over that nothing of ours is left of it."""
    return f"{'nothing of ours is left in place' if data.get('held') is False else 'fault off'}: {_proof(data)}"


def _metrics(data: Json) -> str:
    names = data.get("names") or {}
    absent = [name for name in data.get("absent") or [] if not _told_by_others(str(name), names)]
    more = f"; absent at that moment: {_names(absent)}" if absent else ""
    return f"metrics of {code(data.get('replica'))} read{more}"


#: Old names, and those of newer engines that tell the same.
_NEWER = {"prefix_hit_rate": ("prefix_hits", "prefix_queries"), "swapped": ("preemptions",)}


def _told_by_others(name: str, names: Json) -> bool:
    return name in _NEWER and all(newer in names for newer in _NEWER[name])


def _evidence(item: Json) -> str:
    seen = [f"{prose(key)}: {_value(value)}" for key, value in item.items() if isinstance(value, bool)]
    meaning = prose(item["meaning"]) if item.get("meaning") else ", ".join(seen)
    return prose(item.get("what", item)) + (f" ({meaning})" if meaning else "")


def _step(data: Json) -> str:
    known = {"receipt", "step", "ok"}
    told = {key: value for key, value in data.items() if key not in known and value not in ("", None, [])}
    more = ", ".join(f"{prose(key)} {_value(value)}" for key, value in told.items())
    failed = " **failed**" if data.get("ok") is False else ""
    return f"step {code(data.get('step'))}{failed}{': ' + more if more else ''}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:.6g}"
    return code(" ".join(str(part) for part in value) if isinstance(value, list) else value)


def _replica(data: Json) -> str:
    pid = f", pid {data['pid']}" if isinstance(data.get("pid"), int) else ""
    pod = f", pod {code(data['pod'])}" if data.get("pod") else ""
    restarts = f", restarts {data['restarts']}" if isinstance(data.get("restarts"), int) else ""
    by = f", by {prose(data['by'])}" if data.get("by") else ""
    return f"replica {code(data.get('replica'))}: {prose(data.get('change'))}{pid}{pod}{restarts}{by}"


def _completion(data: Json) -> str:
    if not data.get("ok"):
        return f"completion straight from {code(data.get('replica'))} failed: {code(data.get('error'))}"
    ttft = data.get("ttft_ms")
    speed = f", first token after {words.seconds(ttft / 1000)}" if isinstance(ttft, int | float) else ""
    gpu = f", on GPU {code(data['gpu'])}" if data.get("gpu") else ""
    return f"good completion straight from {code(data.get('replica'))}{speed}{gpu}"


def _alert(data: Json) -> str:
    where = (data.get("labels") or {}).get("replica")
    return f"alert {code(data.get('alert'))}{f' for {code(where)}' if where else ''}: {prose(data.get('state'))}"


def _fired(timer: object) -> str:
    """Say that the timer on the target had been quicker, and when."""
    if not isinstance(timer, dict) or timer.get("state") != "undone":
        return ""
    since: Any = timer.get("at")
    when = f" at {datetime.fromtimestamp(since, UTC):%H:%M:%S} UTC" if is_wall(since) else ""
    return f"; **its timer on the target had taken it off{when}**"


def _reverted(data: Json) -> str:
    manual = data.get("manual") or []
    text = f"{_of(data)}revert ended, by {prose(data.get('by'))}: restored {prose(data.get('restored'))}"
    return text + (f"; by hand: {_names(manual)}" if manual else "")


def _reasons(data: Json) -> str:
    return "; ".join(prose(str(why).removeprefix("# ")) for why in data.get("why") or []) or "no reason given"


def _guard(data: Json) -> str:
    query = f" {code(data['query'])}" if data.get("query") else ""
    return f"**guard** {code(data.get('guard'))}{query}: {_value(data.get('value'))}, bound {_value(data.get('bound'))}"


def _announced(data: Json) -> str:
    failed = f", **which failed**: {prose(data['error'])}" if data.get("error") else ""
    return f"{prose(data.get('what'))} of the drill announced by the alert {code(data.get('alert'))}{failed}"


def _what(data: Json) -> str:
    return "deed beside it" if data.get("beside") is True else "fault"


def _of(data: Json) -> str:
    """Say whose revert it is, where it is none of a fault."""
    return f"{code(data.get('receipt'))}: " if data.get("beside") is True else ""


def _load_stopped(data: Json) -> str:
    died = " **because the generator died**" if data.get("died") else ""
    return f"load off{died}: {data.get('records')} records of {data.get('drawn')} arrivals{_because(data)}"


def _left(data: Json) -> str:
    bad = [replica.get("name") for replica in data.get("replicas") or [] if not replica.get("ok")]
    return f"service left {prose(data.get('left'))}" + (f"; not answering: {_names(bad)}" if bad else "")


_SENTENCES: dict[str, Callable[[Json], str]] = {
    "header": lambda d: f"run {code(d.get('run'))} of {code(d.get('experiment'))} begins",
    "lock.taken": lambda d: f"lock taken by {code(d.get('by'))}",
    "lock.released": lambda _: "lock released",
    "preflight": _refusals,
    "gate": _gate,
    "load.started": lambda d: f"load on (pid {d.get('pid')})",
    "phase": lambda d: f"phase {prose(d.get('phase'))} begins, planned {words.seconds(d.get('planned_s'))}",
    "receipt": lambda d: f"receipt {code((d.get('receipt') or {}).get('id'))} written, before the {_what(d)}",
    "timer.armed": lambda d: f"undo timer armed on {code(d.get('host'))}: {words.seconds(d.get('deadline_s'))}",
    "timer.disarmed": lambda _: "undo timer disarmed",
    "unreachable": lambda d: f"target not to be asked ({prose(d.get('asked'))}): {prose(d.get('reason'))}",
    "inject.begin": lambda d: f"injection of {code(d.get('fault'))} begins",
    "inject.hit": lambda d: f"**the fault hits** {_names(d.get('victims') or [])}",
    "inject.step": _step,
    "inject.end": lambda _: "injection ends",
    "proof.on": lambda d: f"fault on: {_proof(d)}",
    "proof.off": _off,
    "revert.begin": lambda d: f"{_of(d)}revert begins, by {prose(d.get('by'))}{_fired(d.get('timer'))}",
    "revert.end": _reverted,
    "beside.inject.begin": lambda d: f"{code(d.get('fault'))} begins",
    "beside.inject.step": _step,
    "beside.inject.end": lambda d: f"{code(d.get('receipt'))}: done",
    "beside.proof.on": lambda d: f"{code(d.get('fault'))} on: {_proof(d)}",
    "beside.proof.off": lambda d: f"{code(d.get('fault'))} off: {_proof(d)}",
    "replica": _replica,
    "completion": _completion,
    "metrics.names": _metrics,
    "alert": _alert,
    "notified": lambda d: f"{_told(d)}: {code(d.get('alert'))} {prose(d.get('status'))}",
    "guard": _guard,
    "signal": lambda d: f"**signal** {code(d.get('signal'))}",
    "stop": lambda d: f"**stopped** by {code(d.get('by'))} ({prose(d.get('how'))})",
    "changed_by_others": lambda d: f"**changed by others**: {prose(change_words(d))}",
    "scaled": lambda d: f"scaled by {prose(d.get('by'))}: {prose(change_words(d))}",
    "scaled.back": lambda d: f"scaled back: {prose(d.get('subject'))} is as it was",
    "scaled.left": lambda d: f"**not scaled back yet**: {prose(change_words(d))}",
    "announced": _announced,
    "load.stopping": lambda _: "no new arrivals",
    "load.stopped": _load_stopped,
    "collected": lambda d: f"collected {code(d.get('file'))}: {words.count(int(d.get('lines') or 0), 'line')}",
    "undo.needless": lambda d: f"nothing to undo: {_reasons(d)}",
    "undo.failed": lambda d: f"**undo failed**; by hand: {_names(d.get('manual') or [])}",
    "broken": lambda d: f"**broken**: {code(d.get('step'))}: {code(d.get('error'))}",
    "left": _left,
    "end": lambda d: f"run {prose(d.get('status'))}{_because(d)}",
}


def _told(data: Json) -> str:
    """Say how it is known: from the receiver itself, or from the counters of whoever sent it."""
    return "notification sent by Alertmanager" if data.get("source") == "alertmanager" else "notification received"
