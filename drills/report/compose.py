"""A run's facts → postmortem.json. The page says the same: both are made of the same numbers by the same functions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from drills.checks import measures, validity
from drills.model import Json
from drills.report import (
    actions,
    budget,
    detection,
    document,
    drilled,
    factors,
    impact,
    lessons,
    response,
    retries,
    stages,
    waste,
)
from drills.report import validity as gates
from drills.report.document import Postmortem
from drills.report.facts import Facts
from drills.report.pictures import Picture
from drills.report.timeline import timeline
from drills.strictjson import is_number


def encode(made: Postmortem) -> bytes:
    """Return the content of postmortem.json."""
    text = json.dumps(_plain(made.model_dump(mode="python")), indent=2, sort_keys=True, ensure_ascii=False)
    return (text + "\n").encode("utf-8", "backslashreplace")  # half a surrogate stays the escape that it was


def _plain(value: Any) -> Any:
    """Round times to the microsecond; what is no number is null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def postmortem(facts: Facts, pictures: Iterable[Picture], time_zone: str | None = None) -> Postmortem:
    """Return the document of a run."""
    lines, left_out = timeline(facts)
    return Postmortem(
        identity=_identity(facts, time_zone),
        served=_served(facts),
        outcome=_outcome(facts),
        zero=document.Zero(what=facts.zero_name, utc=_utc(facts, facts.zero)),
        phases=[
            document.Stretch(name=p.name, begin_s=p.begin - facts.zero, end_s=p.end - facts.zero) for p in facts.phases
        ],
        faults=_faults(facts),
        impact=_impact(facts),
        timeline=[
            document.Line(
                utc=_utc(facts, line.mono), offset_s=line.mono - facts.zero, text=line.what, source=line.source
            )
            for line in lines
        ],
        timeline_left_out=left_out,
        detection=_detection(facts),
        response=[
            document.Deed(offset_s=d.mono - facts.zero, who=d.who, text=d.what, source=d.source)
            for d in response.deeds(facts)
        ],
        downtime=_stages(facts, stages.downtime(facts)),
        gpu_reset=_stages(facts, stages.gpu_reset(facts)),
        lessons=document.Lessons(
            well=lessons.well(facts),
            badly=lessons.badly(facts),
            lucky=lessons.lucky(facts),
            factors=factors.factors(facts),
            deviations=factors.deviations(facts),
            limits=gates.limits(facts),
        ),
        actions=[
            document.Action(
                id=one.id, type=one.kind, priority=one.priority, what=one.told, done_when=one.done_when, proof=one.proof
            )
            for one in actions.actions(facts)
        ],
        validity=[
            document.Gate(gate=g.name, holds=not g.broken, reason=g.broken, value=g.value, bound=g.bound)
            for g in validity.gates(facts.evidence)
        ],
        files=[document.File(name=name, sha256=digest) for name, digest in facts.files],
        figures=[document.Figure(file=picture.file, text=picture.alt) for picture in pictures],
    )


def _utc(facts: Facts, mono: float) -> str:
    return datetime.fromtimestamp(round(facts.wall(mono), 6), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _identity(facts: Facts, time_zone: str | None) -> document.Identity:
    header, plan, experiment = facts.header, facts.evidence.plan, facts.experiment
    end, seed = facts.first("end"), header.get("seed", plan.get("seed"))
    command = header.get("command")
    return document.Identity(
        run=facts.evidence.run,
        experiment=facts.name,
        title=str(experiment.get("title") or facts.name),
        hypothesis=str(experiment.get("hypothesis") or ""),
        playbook=_text(experiment.get("playbook")),
        began=_utc(facts, facts.events[0].mono),
        length_s=facts.events[-1].mono - facts.events[0].mono,
        status=None if end is None else str(end.data.get("status")),
        reason="" if end is None else str(end.data.get("reason") or ""),
        defect=_text(plan.get("defect")),
        oncall=_text(header.get("oncall")),
        seed=seed if isinstance(seed, int) else None,
        plan=_text(plan.get("hash")),
        command=" ".join(str(word) for word in command) if isinstance(command, list) else _text(command),
        tool={str(key): value for key, value in (header.get("tool") or {}).items()},
        python=_text(header.get("python")),
        time_zone=time_zone,
    )


def _served(facts: Facts) -> document.Served:
    seen = drilled.topology(facts)
    return document.Served(
        target=str(facts.target.get("name") or ""),
        kind=str(facts.target.get("kind") or ""),
        environment=drilled.environment(facts),
        endpoint=seen.endpoint,
        model=seen.model,
        entry=seen.entry,
        primaries=list(seen.primaries),
        fallbacks=list(seen.fallbacks),
        expected_replicas=seen.expected,
        versions={str(name): str(version) for name, version in drilled.versions(facts).items()},
    )


def _outcome(facts: Facts) -> document.Outcome:
    said = facts.verdict
    return document.Outcome(
        verdict=_text(said.get("verdict")),
        left=str(said.get("left") or facts.data("left").get("left") or "unknown"),
        restored=str(said.get("restored") or "unknown"),
        reason=str(said.get("reason") or ""),
    )


def _faults(facts: Facts) -> list[document.Fault]:
    return [
        document.Fault(
            fault=str(receipt["fault"]),
            params=dict(receipt.get("params") or {}),
            victims=[str(victim["name"]) for victim in receipt["victims"]],
            gpus=[str(uuid) for victim in receipt["victims"] for uuid in victim.get("gpus") or ()],
        )
        for receipt in facts.evidence.receipts
    ]


def _impact(facts: Facts) -> document.Impact:
    seen = impact.streams(facts)
    answers, begun = impact.degraded(facts, "fault")
    return document.Impact(
        arrivals=[_arrivals(key, counts) for key, counts in impact.by_class(facts).items()],
        latencies=[
            document.Quantile(
                metric=q.metric,
                quantile=q.quantile,
                cohort=q.cohort,
                value_s=_endless(q.value_s),
                n=q.n,
                interval_s=[_endless(end) for end in q.interval] if q.interval else None,
            )
            for q in impact.quantiles(facts)
        ],
        streams=document.Streams(in_flight=seen.in_flight, cut=seen.cut) if seen else None,
        worst=[
            document.Worst(length_s=span_s, begin_s=w.begin_s, n=w.n, violations=w.violations)
            for span_s in (impact.WINDOW_S, impact.MINUTE_S)
            if (w := impact.worst_window(facts, span_s))
        ],
        degraded=answers,
        begun_after_injection=begun,
        budgets=[
            document.Budget(
                promise=b.promise,
                allowed_share=b.share,
                bad=b.bad,
                n=b.n,
                allowed_in_30_days=b.allowed,
                burnt=b.burnt,
            )
            for b in budget.budgets(facts)
        ],
        retries=_retries(facts),
    )


def _arrivals(key: tuple[str, str], counts: dict[str, int]) -> document.Arrivals:
    return document.Arrivals(
        outcome=key[0],
        error=key[1] or None,
        baseline=counts["baseline"],
        caught=counts["caught"],
        fault=counts["fault"],
        whole_run=counts["whole run"],
    )


def _endless(value: float | None) -> document.Cell:
    return "inf" if value is not None and math.isinf(value) else value


def _retries(facts: Facts) -> document.Retries:
    attempts = retries.attempts_of(facts)
    cost, lost = retries.cost(facts, attempts), waste.waste(facts, attempts)
    return document.Retries(
        client=cost.client if cost else None,
        primaries=cost.primaries if cost else None,
        fallbacks=cost.fallbacks if cost else None,
        swallowed_by_network=cost.swallowed if cost else None,
        tokens_in_vain=lost.generated if lost else None,
        prompt_tokens_again=lost.prefilled if lost else None,
        amplification=[
            document.Amplification(place=r.place, baseline=r.before, fault=r.during, worst_10_s=r.worst)
            for r in retries.ratios(facts, attempts)
        ],
    )


def _detection(facts: Facts) -> document.Detection:
    found = detection.delay(facts)
    router = measures.split(facts.evidence).get("detect_s") if facts.hit is not None else None
    return document.Detection(
        alerts=[_alert(facts, name) for name in detection.shown(facts)],
        router_s=float(router) if is_number(router) and router is not None else None,
        alert=found.alert if found else None,
        after_injection_s=found.after_injection_s if found else None,
        after_first_violation_s=found.after_violation_s if found else None,
        allowed_s=found.allowed_s if found else None,
    )


def _alert(facts: Facts, name: str) -> document.Alert:
    moments = {state: detection.moment(facts, name, state) for state in detection.STATES}
    since: Json = {state: None if m is None else m[0] - facts.zero for state, m in moments.items()}
    return document.Alert(
        alert=name,
        expected=name in detection.expected(facts),
        pending_s=since["pending"],
        firing_s=since["firing"],
        notified_s=since["notified"],
        resolved_s=since["inactive"],
        resolution_notified_s=since["resolution notified"],
    )


def _stages(facts: Facts, reached: list[stages.Stage]) -> list[document.Stage]:
    return [
        document.Stage(name=s.name, offset_s=None if s.at is None else s.at - facts.zero, source=s.source)
        for s in reached
    ]
