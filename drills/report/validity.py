"""Whether the measurement may be believed, what the run cannot show, and how to repeat it."""

from __future__ import annotations

from collections.abc import Callable

from drills import verdict
from drills.checks import validity
from drills.checks.validity import Gate
from drills.model import Verdict
from drills.report import words
from drills.report.escape import code, fence, prose
from drills.report.facts import Facts, lines_of

LAB = (
    "The lab was drilled: unless the versions below name a real engine it is an emulator, and the GPUs are a stand-in "
    "for `nvidia-smi` and NVML. A real engine and a real reset take other times."
)
ONE_INJECTION = (
    "One injection: the intervals speak of this run. Requests in one outage are not independent, "
    "and one drill that went well bounds no failure rate."
)


#: The gate without which most others cannot hold.
COMPLETED = "run completed"


def gate_rows(facts: Facts) -> list[list[str]]:
    """Return each gate with its value, what it needs, whether it holds or why not, and where that was read."""
    rows = [_steady(facts)]
    for gate in validity.gates(facts.evidence):
        unit = _UNITS.get(gate.name, "")
        value = None if gate.value is None else words.quantity(gate.value, unit)
        bound = (
            "—" if gate.bound is None else f"{_LIMITS.get(gate.name, '')} {words.quantity(gate.bound, unit)}".strip()
        )
        told, source = _VALUES.get(gate.name, _unsaid)(facts)
        holds = f"**no**: {prose(gate.broken)}" if gate.broken else "yes"
        rows.append([prose(gate.name), value or told, bound, holds, source])
    return rows


_UNITS = {"handled on time": "ratio", "schedule lag": "s", "generator CPU": "ratio"}
_LIMITS = {"handled on time": "at least", "schedule lag": "at most", "generator CPU": "below"}


def broken(facts: Facts) -> list[Gate]:
    """Return the gates that keep the run from being judged; none beside a verdict that was given.

    Of a run that did not come to its end the rest follows, and is left out.
    """
    if facts.verdict.get("verdict") in (Verdict.PASS, Verdict.FAIL):
        return []  # of a verdict that is no longer what the files give the limits tell
    found: dict[str, Gate] = {}
    for gate in validity.gates(facts.evidence):
        if gate.broken:
            found.setdefault(gate.broken, gate)  # one reason may break several
    early = [gate for gate in found.values() if gate.name == COMPLETED]
    return early or list(found.values())


def _steady(facts: Facts) -> list[str]:
    name, needed, gate = "steady state before", "every replica answers", facts.evidence.last("gate")
    if gate is None:
        return [name, words.NO_DATA, needed, words.NO_DATA, "—"]
    replicas = gate.data.get("replicas") or []
    sound = f"{sum(1 for r in replicas if r.get('ok'))} of {words.count(len(replicas), 'replica')} answered"
    return [name, sound, needed, "yes" if gate.data.get("ok") else "**no**", lines_of(gate)]


def _unsaid(_facts: Facts) -> tuple[str, str]:
    return "—", "—"


def _completed(facts: Facts) -> tuple[str, str]:
    end = facts.first("end")
    return (prose(end.data.get("status")), lines_of(end)) if end else (words.NO_DATA, "—")


def _files(facts: Facts) -> tuple[str, str]:
    return (
        f"{words.count(len(facts.events), 'event')}, {words.count(facts.evidence.ledger.height, 'attempt')}",
        "all files",
    )


def _alive(facts: Facts) -> tuple[str, str]:
    stopped = facts.evidence.last("load.stopped")
    if stopped is None:
        return words.NO_DATA, "—"
    return "died" if stopped.data.get("died") else "ended when told to", lines_of(stopped)


def _proven(facts: Facts) -> tuple[str, str]:
    parts = []
    off = "off" if facts.held else "nothing of ours left in place"
    for name, word in (("proof.on", "on"), ("proof.off", off)):
        answers = [event.data.get("ok") for event in facts.of(name)]
        said = "proven" if answers and all(answers) else "not proven" if answers else words.NO_DATA
        parts.append(f"{word}: {said}")
    return "; ".join(parts), lines_of(*facts.of("proof.on", "proof.off"))


def _accounted(facts: Facts) -> tuple[str, str]:
    records, stopped = facts.evidence.requests.height, facts.evidence.last("load.stopped")
    drawn = stopped.data.get("drawn") if stopped else None
    told = f"{drawn:,} arrivals drawn" if isinstance(drawn, int) else f"arrivals drawn: {words.NO_DATA}"
    return f"{words.count(records, 'record')}, {told}", f"requests.ndjson, {lines_of(stopped)}"


def _baseline(facts: Facts) -> tuple[str, str]:
    frame = facts.cohorts["baseline"]
    if frame.is_empty():
        return words.NO_DATA, "requests.ndjson"
    return f"{int(frame['violation'].sum())} of {frame.height:,} broke it", "requests.ndjson"


#: What is said of the gates that have no number of their own: value and source.
_VALUES: dict[str, Callable[[Facts], tuple[str, str]]] = {
    COMPLETED: _completed,
    "undisturbed": lambda facts: ("changed" if facts.of("changed_by_others") else "no change by others", "journal"),
    "files whole": _files,
    "load process alive": _alive,
    "fault proven on and off": _proven,
    "all arrivals accounted for": _accounted,
    "records agree with themselves": lambda _facts: ("—", "requests.ndjson"),
    "handled on time": lambda _facts: (words.NO_DATA, "requests.ndjson"),
    "schedule lag": lambda _facts: (words.NO_DATA, "requests.ndjson"),
    "generator CPU": lambda facts: (words.NO_DATA, "samples.ndjson, " + lines_of(facts.evidence.last("load.stopped"))),
    "baseline in the SLA": _baseline,
}


def limits(facts: Facts) -> list[str]:
    """Return what this run cannot show."""
    lines = [LAB] if facts.target.get("kind") == "lab" else []
    told = facts.header.get("facts") or {}
    lines += [prose(note) for note in [*(told.get("notes") or []), *(facts.evidence.plan.get("notes") or [])]]
    if facts.hit is not None:
        lines.append(ONE_INJECTION)
        faults = facts.experiment.get("faults") or []
        lines += [f"Emulated: {prose(fault['emulates'])}." for fault in faults if fault.get("emulates")]
    load = (facts.experiment.get("load") or {}).get("arrivals") or {}
    if load.get("kind") == "users":
        lines.append("Closed loop: users wait for their answers, so the load sinks when the service is slow.")
    if ((facts.target.get("alerts") or {}).get("mode")) == "observe":
        lines.append("Paging path not proven: the expected alerts were silenced for the victim.")
    lines += _unannounced(facts)
    lines += [
        f"Autoscaled meanwhile: {prose(validity.change_words(event.data))}; not back when the run ended."
        for event in facts.of("scaled.left")
    ]
    defect = facts.evidence.plan.get("defect")
    if defect:
        lines.append(f"A defect was planted on purpose: {code(defect)}.")
    return lines + _stale(facts) + _damage(facts) + _blind(facts)


def _unannounced(facts: Facts) -> list[str]:
    """Say that people may have been paged without a word."""
    shared, mode = facts.target.get("kind") != "lab", (facts.target.get("alerts") or {}).get("mode", "page")
    if not shared or mode != "page" or facts.hit is None or facts.of("announced"):
        return []
    return ["Begin and end were announced to nobody who may be paged: the target names no Alertmanager."]


def _stale(facts: Facts) -> list[str]:
    """Say that the verdict shown above is not the one that these files give."""
    said = verdict.stale(facts.source.folder, verdict.of(facts.evidence)) if facts.verdict else ""
    return [f"**{prose(said)}**."] if said else []


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
    """Return seed, plan and the program's own version."""
    header, plan = facts.header, facts.evidence.plan
    tool = header.get("tool") or {}
    dirty = ", with uncommitted changes" if tool.get("dirty") else ""
    return [
        f"seed {code(header.get('seed', plan.get('seed')))}, plan {code(plan.get('hash'))}",
        f"drill {code(tool.get('version'))}, git {code(tool.get('git'))}{dirty}, Python {code(header.get('python'))}",
    ]


def files(facts: Facts) -> list[list[str]]:
    """Return the run's files with their checksums."""
    return [[code(name), code(digest)] for name, digest in facts.files]
