"""Whether the measurement may be believed, what the run cannot show, and how to repeat it."""

from __future__ import annotations

import polars as pl

from drills import stats
from drills.model import Event, Json, Outcome, Verdict
from drills.report import words
from drills.report.escape import code, fence, prose
from drills.report.facts import Facts, lines_of
from drills.report.source import checksums

ON_TIME_MIN = 0.98
LAG_SHARE_OF_SLA = 0.05
CPU_MAX = 0.8

LAB = (
    "The lab was drilled: unless the versions below name a real engine it is an emulator, and the GPUs are a stand-in "
    "for `nvidia-smi` and NVML. A real engine and a real reset take other times."
)
ONE_INJECTION = (
    "One injection: the intervals speak of this run. Requests in one outage are not independent, "
    "and one drill that went well bounds no failure rate."
)


def gate_rows(facts: Facts) -> list[list[str]]:
    """Return each gate with its value, what it needed and whether it was met."""
    stopped = facts.evidence.last("load.stopped")
    data = stopped.data if stopped else {}
    rows = [_steady(facts), _on_time(facts, data), _lag(facts, data, stopped), _cpu(data, stopped)]
    return [*rows, _accounted(facts, data, stopped), _baseline(facts), *_proofs(facts), _load_alive(data, stopped)]


def _row(gate: str, value: str, needed: str, met: bool | None, source: str) -> list[str]:
    return [gate, value, needed, {True: "yes", False: "**no**", None: words.NO_DATA}[met], source]


def _steady(facts: Facts) -> list[str]:
    gate = facts.evidence.last("gate")
    if gate is None:
        return _row("steady state before", words.NO_DATA, "every replica answers, no page", None, "—")
    replicas = gate.data.get("replicas") or []
    sound = f"{sum(1 for r in replicas if r.get('ok'))} of {words.count(len(replicas), 'replica')} answered"
    return _row(
        "steady state before", sound, "every replica answers, no page", bool(gate.data.get("ok")), lines_of(gate)
    )


def _on_time(facts: Facts, data: Json) -> list[str]:
    needed, drawn = f"at least {words.share(ON_TIME_MIN)}", data.get("drawn")
    if not drawn:
        return _row("arrivals handled on time", words.NO_DATA, needed, None, "—")
    shed = pl.col("outcome") == Outcome.SHED
    bound_s = LAG_SHARE_OF_SLA * facts.sla_ttft_s
    handled = facts.evidence.requests.filter(shed | (pl.col("lag") <= bound_s)).height / drawn
    return _row("arrivals handled on time", words.share(handled), needed, handled >= ON_TIME_MIN, "requests.ndjson")


def _lag(facts: Facts, data: Json, stopped: Event | None) -> list[str]:
    bound_s, lag_ms = LAG_SHARE_OF_SLA * facts.sla_ttft_s, data.get("lag_p99_ms")
    value_s = None if lag_ms is None else lag_ms / 1000
    met = None if value_s is None else value_s <= bound_s
    return _row(
        "schedule lag, p99", words.seconds(value_s), f"at most {words.seconds(bound_s)}", met, lines_of(stopped)
    )


def _cpu(data: Json, stopped: Event | None) -> list[str]:
    cpu = data.get("cpu_max")
    met = None if cpu is None else cpu < CPU_MAX
    return _row(
        "generator's CPU, most", words.share(cpu), f"below {words.share(CPU_MAX)} of a core", met, lines_of(stopped)
    )


def _accounted(facts: Facts, data: Json, stopped: Event | None) -> list[str]:
    records, drawn = facts.evidence.requests.height, data.get("drawn")
    if drawn is None:
        return _row("every arrival accounted for", f"{records:,} records", "one record each", None, "requests.ndjson")
    value = f"{records:,} records of {drawn:,} arrivals"
    return _row(
        "every arrival accounted for",
        value,
        "one record each",
        records == drawn,
        f"{lines_of(stopped)}, requests.ndjson",
    )


def _baseline(facts: Facts) -> list[str]:
    frame, needed = facts.cohorts["baseline"], "not a fail of the SLA"
    if frame.is_empty():
        return _row("baseline in the SLA", words.NO_DATA, needed, None, "requests.ndjson")
    bad, n = int(frame["violation"].sum()), frame.height
    share = 1 - facts.evidence.sla.ttft.quantile
    met = stats.judge_share(bad, n, share) != Verdict.FAIL
    return _row("baseline in the SLA", f"{bad} of {n:,} broke it", needed, met, "requests.ndjson")


def _proofs(facts: Facts) -> list[list[str]]:
    rows = []
    for name, gate in (("proof.on", "fault proven on"), ("proof.off", "fault proven off")):
        events = facts.of(name)
        answers = [event.data.get("ok") for event in events]
        met = None if not answers or None in answers else all(answers)
        value = words.NO_DATA if not answers else "proven" if met else "not provable" if met is None else "not there"
        rows.append(_row(gate, value, "proven", met, lines_of(*events)))
    return rows


def _load_alive(data: Json, stopped: Event | None) -> list[str]:
    if stopped is None:
        return _row("load kept on to the end", words.NO_DATA, "not died", None, "—")
    died = bool(data.get("died"))
    return _row("load kept on to the end", "died" if died else "yes", "not died", not died, lines_of(stopped))


def limits(facts: Facts) -> list[str]:
    """Return what this run cannot show."""
    lines = [LAB] if facts.target.get("kind") == "lab" else []
    notes = (facts.header.get("target") or {}).get("notes") if isinstance(facts.header.get("target"), dict) else None
    lines += [prose(note) for note in notes or []]
    if facts.hit is not None:
        lines.append(ONE_INJECTION)
    load = (facts.experiment.get("load") or {}).get("arrivals") or {}
    if load.get("kind") == "users":
        lines.append("Closed loop: users wait for their answers, so the load sinks when the service is slow.")
    if ((facts.target.get("alerts") or {}).get("mode")) == "observe":
        lines.append("Paging path not proven: the expected alerts were silenced for the victim.")
    defect = facts.evidence.plan.get("defect")
    if defect:
        lines.append(f"A defect was planted on purpose: {code(defect)}.")
    lines += _damage(facts) + _blind(facts)
    return lines


def _damage(facts: Facts) -> list[str]:
    source = facts.source
    lines = [f"`{name}` is not there: what rests on it says no data." for name in source.missing]
    lines += [f"`{name}` ends in a torn line, which was left out." for name in source.torn]
    return lines + [f"{prose(problem)}." for problem in facts.evidence.problems]


def _blind(facts: Facts) -> list[str]:
    """Return how often each probe could not measure."""
    tried: dict[str, list[int]] = {}
    for sample in facts.evidence.samples:
        tally = tried.setdefault(str(sample.get("probe")), [0, 0])
        tally[0] += 1
        tally[1] += not sample.get("ok")
    return [
        f"Probe {code(name)} could not measure {bad:,} of {words.count(total, 'time')} (`samples.ndjson`)."
        for name, (total, bad) in sorted(tried.items())
        if bad
    ]


def command(facts: Facts) -> str:
    """Return the exact command as a block."""
    given = facts.header.get("command")
    text = " ".join(str(part) for part in given) if isinstance(given, list) else given
    return fence(text, "sh") if text else words.NO_DATA


def identity(facts: Facts) -> list[str]:
    """Return seed, plan and versions."""
    header, plan = facts.header, facts.evidence.plan
    tool = header.get("tool") or {}
    dirty = ", with uncommitted changes" if tool.get("dirty") else ""
    lines = [
        f"seed {code(header.get('seed', plan.get('seed')))}, plan {code(plan.get('hash'))}",
        f"drill {code(tool.get('version'))}, git {code(tool.get('git'))}{dirty}, Python {code(header.get('python'))}",
    ]
    versions = header.get("versions") or {}
    return lines + [f"{prose(name)} {code(version)}" for name, version in sorted(versions.items())]


def files(facts: Facts) -> list[list[str]]:
    """Return the run's files with their checksums."""
    return [[code(name), code(digest)] for name, digest in checksums(facts.source.folder)]
