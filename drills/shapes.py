"""What the files of a run must look like before anything is read out of them.

Only what judging and reporting use is named; other keys may be there. A journal line of another shape tells
nothing, a sample neither; a plan or a verdict of another shape cannot be used at all.
"""

from __future__ import annotations

from typing import Any

from drills.strictjson import Shape, is_bool, is_count, is_list, is_number, is_object, is_text


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(is_count(n) for n in value.values())


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(is_text(word) for word in value.values())


def _figure(value: Any) -> bool:
    return is_number(value) or is_text(value)


def _named(value: Any) -> bool:
    """Whether it is `{"check": name, "params": {...}}` or `{name: {...}}`."""
    if not isinstance(value, dict) or not value:
        return False
    word = next((key for key in ("check", "fault", "guard") if key in value), None)
    params = value.get("params") if word else next(iter(value.values()))
    return (word is None or is_text(value[word])) and (params is None or is_object(params))


def _interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(end is None or is_number(end) for end in value)


_REPLICA = {"name": is_text}
_VICTIM = {"name": is_text, "uid?": is_text, "pid?": is_count, "pid_start?": is_count, "gpus?": [is_text]}
_PROOF = {"receipt?": is_text, "held?": is_bool, "ok?": is_bool, "bystanders_ok?": is_bool, "evidence?": [is_object]}
_LIFE = {"replica": is_text, "uid?": is_text, "pid?": is_count, "start?": is_count, "by?": is_text}

#: The data of the journal's events.
EVENTS: dict[str, Shape] = {
    "header": {"run?": is_text, "plan?": is_object, "tool?": is_object, "versions?": is_object,
               "facts?": {"notes?": is_list}},
    "preflight": {"refusals?": is_list},
    "gate": {"replicas?": [_REPLICA], "alerts?": is_list},
    "phase": {"phase": is_text, "planned_s?": is_number},
    "receipt": {
        "receipt": {"id": is_text, "fault": is_text, "victims": [_VICTIM], "params?": is_object,
                    "prior?": {"bystanders?": [_REPLICA]}},
    },
    "timer.armed": {"deadline_s?": is_number},
    "inject.hit": {"victims": [is_text]},
    "inject.step": {"step": is_text},
    "proof.on": _PROOF,
    "proof.off": _PROOF,
    "revert.end": {"receipt?": is_text, "restored?": is_text, "manual?": is_list},
    "replica": _LIFE | {"change": is_text},
    "completion": _LIFE | {"served_by_uid?": is_text},
    "metrics.names": {"replica": is_text, "names": _texts},
    "alert": {"alert": is_text, "state": is_text, "labels?": _texts, "source?": is_text},
    "notified": {"alert": is_text, "status": is_text, "labels?": _texts},
    "guard": {},
    "load.stopped": {"drawn?": is_count, "records?": is_count, "outcomes?": _counts, "cpu_max?": is_number},
    "collected": {"file": is_text, "lines": is_count, "clock_error_s?": is_number},
    "ledger.gap": {"replica": is_text, "since_mono": is_number, "until_mono?": is_number},
    "undo.failed": {"manual?": is_list},
    "left": {"left?": is_text, "replicas?": [_REPLICA]},
    "end": {"status": is_text},
}  # fmt: skip

SAMPLE: Shape = {"mono": is_number, "probe": is_text, "subject?": is_text, "ok": is_bool}
#: The values of a sample that measured something, where judging uses them.
VALUES: Shape = is_object

_BOUND = {"quantile": is_number, "value_s": is_number}
PLAN: Shape = {
    "target": {
        "sla": {"ttft": _BOUND, "e2e": _BOUND, "max_gap": _BOUND, "errors": is_number},
        "expected_replicas?": is_count,
        "alerts?": is_object,
    },
    "phases": {"fault_s": is_number, "recovery_s": is_number},
    "experiment": {
        "checks?": [_named], "faults?": [_named], "guards?": [_named],
        "load?": {"arrivals?": is_object},
    },
    "notes?": is_list,
}  # fmt: skip

_METRIC = {"metric": is_text, "verdict": is_text, "value?": _figure, "bound?": _figure, "unit?": is_text,
           "reason?": is_text, "source?": is_text, "side?": is_text}  # fmt: skip
VERDICT: Shape = {
    "run": is_text,
    "verdict": is_text,
    "restored": is_text,
    "left": is_text,
    "reason?": is_text,
    "checks": [
        {"check": is_text, "verdict": is_text, "params?": is_object, "value?": _figure, "bound?": _figure,
         "unit?": is_text, "n?": is_count, "interval?": _interval, "reason?": is_text, "events?": [is_count],
         "detail?": {"rows?": [_METRIC]}},
    ],
}  # fmt: skip
