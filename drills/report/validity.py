"""Whether the measurement may be believed, what the run cannot show, and how to repeat it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from drills import verdict
from drills.checks import validity
from drills.checks.validity import Gate
from drills.lang import ENGLISH, mark, speaking, t
from drills.model import Verdict
from drills.report import words
from drills.report.escape import code, fence, prose
from drills.report.facts import Facts, lines_of

LAB: Final = mark(
    "The lab was drilled: unless the versions below name a real engine it is an emulator, and the GPUs are a stand-in "
    "for `nvidia-smi` and NVML. A real engine and a real reset take other times."
)
ONE_INJECTION: Final = mark(
    "One injection: the intervals speak of this run. Requests in one outage are not independent, "
    "and one drill that went well bounds no failure rate."
)


#: The gate without which most others cannot hold.
COMPLETED: Final = mark("run completed")


def gate_rows(facts: Facts) -> list[list[str]]:
    """Return each gate with its value, what it needs, whether it holds or why not, and where that was read."""
    rows = [_steady(facts)]
    for gate in validity.gates(facts.evidence):
        unit = _UNITS.get(gate.name, "")
        value = None if gate.value is None else words.quantity(gate.value, unit)
        bound = (
            "—" if gate.bound is None else t(_LIMITS.get(gate.name, "{bound}"), bound=words.quantity(gate.bound, unit))
        )
        told, source = _VALUES.get(gate.name, _unsaid)(facts)
        holds = t("**no**: {reason}", reason=prose(gate.broken)) if gate.broken else t("yes")
        rows.append([prose(t(gate.name)), value or told, bound, holds, source])
    return rows


_UNITS = {"handled on time": "ratio", "schedule lag": "s", "generator CPU": "ratio"}
_LIMITS = {
    "handled on time": mark("at least {bound}"),
    "schedule lag": mark("at most {bound}"),
    "generator CPU": mark("below {bound}"),
}


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
    name, needed, gate = t("steady state before"), t("every replica answers"), facts.evidence.last("gate")
    if gate is None:
        return [name, t(words.NO_DATA), needed, t(words.NO_DATA), "—"]
    replicas = gate.data.get("replicas") or []
    sound = t(
        "{n} of {replicas} answered",
        n=sum(1 for replica in replicas if replica.get("ok")),
        replicas=words.count(len(replicas), "replica"),
    )
    return [name, sound, needed, t("yes") if gate.data.get("ok") else t("**no**"), lines_of(gate)]


def _unsaid(_facts: Facts) -> tuple[str, str]:
    return "—", "—"


def _completed(facts: Facts) -> tuple[str, str]:
    end = facts.first("end")
    return (prose(end.data.get("status")), lines_of(end)) if end else (t(words.NO_DATA), "—")


def _files(facts: Facts) -> tuple[str, str]:
    events, attempts = words.count(len(facts.events), "event"), words.count(facts.evidence.ledger.height, "attempt")
    return words.one_clause([events, attempts]), t("all files")


def _alive(facts: Facts) -> tuple[str, str]:
    stopped = facts.evidence.last("load.stopped")
    if stopped is None:
        return t(words.NO_DATA), "—"
    return t("died") if stopped.data.get("died") else t("ended when told to"), lines_of(stopped)


_ON: Final = mark("on: {proof}")
_OFF: Final = mark("off: {proof}")
_OVER: Final = mark("nothing of ours left in place: {proof}")


def _proven(facts: Facts) -> tuple[str, str]:
    parts = []
    off = _OFF if facts.held else _OVER
    for name, message in (("proof.on", _ON), ("proof.off", off)):
        answers = [event.data.get("ok") for event in facts.of(name)]
        said = t("proven") if answers and all(answers) else t("not proven") if answers else t(words.NO_DATA)
        parts.append(t(message, proof=said))
    return words.clauses(parts), lines_of(*facts.of("proof.on", "proof.off"))


def _accounted(facts: Facts) -> tuple[str, str]:
    records, stopped = facts.evidence.requests.height, facts.evidence.last("load.stopped")
    drawn = stopped.data.get("drawn") if stopped else None
    told = t("{n:,} arrivals drawn", n=drawn) if isinstance(drawn, int) else t("arrivals drawn: no data")
    return words.one_clause([words.count(records, "record"), told]), f"requests.ndjson, {lines_of(stopped)}"


def _baseline(facts: Facts) -> tuple[str, str]:
    frame = facts.cohorts["baseline"]
    if frame.is_empty():
        return t(words.NO_DATA), "requests.ndjson"
    broke, total = int(frame["violation"].sum()), frame.height
    return t("{n} of {total:,} broke it", n=broke, total=total), "requests.ndjson"


def _undisturbed(facts: Facts) -> tuple[str, str]:
    return t("changed") if facts.of("changed_by_others") else t("no change by others"), "journal"


#: What is said of the gates that have no number of their own: value and source.
_VALUES: dict[str, Callable[[Facts], tuple[str, str]]] = {
    COMPLETED: _completed,
    mark("undisturbed"): _undisturbed,
    mark("files whole"): _files,
    mark("load process alive"): _alive,
    mark("fault proven on and off"): _proven,
    mark("all arrivals accounted for"): _accounted,
    mark("records agree with themselves"): lambda _facts: ("—", "requests.ndjson"),
    mark("handled on time"): lambda _facts: (t(words.NO_DATA), "requests.ndjson"),
    mark("schedule lag"): lambda _facts: (t(words.NO_DATA), "requests.ndjson"),
    mark("generator CPU"): lambda facts: (
        t(words.NO_DATA),
        "samples.ndjson, " + lines_of(facts.evidence.last("load.stopped")),
    ),
    mark("baseline in the SLA"): _baseline,
}


def limits(facts: Facts) -> list[str]:
    """Return what this run cannot show."""
    lines = [t(LAB)] if facts.target.get("kind") == "lab" else []
    told = facts.header.get("facts") or {}
    lines += [prose(note) for note in [*(told.get("notes") or []), *(facts.evidence.plan.get("notes") or [])]]
    if facts.hit is not None:
        lines.append(t(ONE_INJECTION))
        faults = facts.experiment.get("faults") or []
        emulated = [prose(fault["emulates"]) for fault in faults if fault.get("emulates")]
        lines += [t("Emulated: {what}.", what=what) for what in emulated]
    load = (facts.experiment.get("load") or {}).get("arrivals") or {}
    if load.get("kind") == "users":
        lines.append(t("Closed loop: users wait for their answers, so the load sinks when the service is slow."))
    if ((facts.target.get("alerts") or {}).get("mode")) == "observe":
        lines.append(t("Paging path not proven: the expected alerts were silenced for the victim."))
    lines += _unannounced(facts)
    lines += [
        t(
            "Autoscaled meanwhile: {what}; not back when the run ended.",
            what=prose(validity.change_words(event.data)),
        )
        for event in facts.of("scaled.left")
    ]
    defect = facts.evidence.plan.get("defect")
    if defect:
        lines.append(t("A defect was planted on purpose: {defect}.", defect=code(defect)))
    return lines + _foreign(facts) + _stale(facts) + _damage(facts) + _blind(facts)


def _unannounced(facts: Facts) -> list[str]:
    """Say that people may have been paged without a word."""
    shared, mode = facts.target.get("kind") != "lab", (facts.target.get("alerts") or {}).get("mode", "page")
    if not shared or mode != "page" or facts.hit is None or facts.of("announced"):
        return []
    return [t("Begin and end were announced to nobody who may be paged: the target names no Alertmanager.")]


def _foreign(facts: Facts) -> list[str]:
    """Say why the reasons of the verdict are in another language than the page."""
    told = t("The reasons of the verdict are in English: what this version finds in these files is another one.")
    return [told] if facts.source.foreign else []


def _stale(facts: Facts) -> list[str]:
    """Say that the verdict shown above is not the one that these files give."""
    if not facts.verdict:
        return []
    with speaking(ENGLISH):  # as it is stored
        judged = verdict.of(facts.evidence)
    said = verdict.stale(facts.source.folder, judged)
    return [t("**{problem}**.", problem=prose(said))] if said else []


def _damage(facts: Facts) -> list[str]:
    source = facts.source
    lines = [t("{file} is not there: what rests on it says no data.", file=f"`{name}`") for name in source.missing]
    lines += [t("{file} ends in a torn line, which was left out.", file=f"`{name}`") for name in source.torn]
    return lines + [t("{problem}.", problem=prose(problem)) for problem in facts.evidence.problems]


def _blind(facts: Facts) -> list[str]:
    """Return how often each probe could not measure."""
    tried: dict[str, list[int]] = {}
    for sample in facts.evidence.samples:
        tally = tried.setdefault(str(sample.get("probe")), [0, 0])
        tally[0] += 1
        tally[1] += not sample.get("ok")
    return [
        t(
            "Probe {probe} could not measure {n:,} of {times} (`samples.ndjson`).",
            probe=code(name),
            n=bad,
            times=words.count(total, "time"),
        )
        for name, (total, bad) in sorted(tried.items())
        if bad
    ]


def command(facts: Facts) -> str:
    """Return the exact command as a block."""
    given = facts.header.get("command")
    text = " ".join(str(part) for part in given) if isinstance(given, list) else given
    return fence(text, "sh") if text else t(words.NO_DATA)


def identity(facts: Facts) -> list[str]:
    """Return seed, plan and the program's own version."""
    header, plan = facts.header, facts.evidence.plan
    tool = header.get("tool") or {}
    commit = code(tool.get("git"))
    if tool.get("dirty"):
        commit = t("{commit}, with uncommitted changes", commit=commit)
    return [
        t("seed {seed}, plan {plan}", seed=code(header.get("seed", plan.get("seed"))), plan=code(plan.get("hash"))),
        t(", ").join([f"drill {code(tool.get('version'))}", f"git {commit}", f"Python {code(header.get('python'))}"]),
    ]


def files(facts: Facts) -> list[list[str]]:
    """Return the run's files with their checksums."""
    return [[code(name), code(digest)] for name, digest in facts.files]
