"""What was drilled, with what, and by whom: the identity of a run."""

from __future__ import annotations

from dataclasses import dataclass

from drills.model import Json
from drills.report import words
from drills.report.escape import code, prose
from drills.report.facts import Facts

#: More replicas than these are counted, not named.
NAMES_MAX = 12


@dataclass(frozen=True)
class Topology:
    """What served: replicas by role, as the gate saw them, and where users' requests go in."""

    primaries: tuple[str, ...]
    fallbacks: tuple[str, ...]
    expected: int | None
    endpoint: str
    model: str
    entry: str  # which part of the target that is


def topology(facts: Facts) -> Topology:
    """Return what served."""
    gate = facts.evidence.last("gate")
    listed = (gate.data.get("replicas") or []) if gate else []
    roles = {str(replica["name"]): str(replica.get("role") or "primary") for replica in listed}
    entry = (facts.header.get("facts") or {}).get("entry")
    return Topology(
        primaries=tuple(sorted(name for name, role in roles.items() if role == "primary")),
        fallbacks=tuple(sorted(name for name, role in roles.items() if role != "primary")),
        expected=facts.evidence.expected_replicas,
        endpoint=str(facts.target.get("endpoint") or ""),
        model=str(facts.target.get("model") or ""),
        entry=str((entry or {}).get("use") or "") if isinstance(entry, dict) else "",
    )


def environment(facts: Facts) -> str:
    """Return what kind of place the target is, by its own file: lab, staging, production."""
    limits = facts.target.get("limits")
    return str((limits or {}).get("environment") or "") if isinstance(limits, dict) else ""


def versions(facts: Facts) -> Json:
    """Return name → version of the parts that told theirs, the GPUs' driver included."""
    told = dict(facts.header.get("versions") or {})
    drivers = {
        str(sample["values"]["driver_version"])
        for sample in facts.evidence.looks("gpu")
        if sample["ok"] and sample["values"].get("driver_version")
    }
    return told | ({"GPU driver": ", ".join(sorted(drivers))} if drivers else {})


def rows(facts: Facts) -> list[list[str]]:
    """Return the identity as a table: what, and its value."""
    target, served = facts.target, topology(facts)
    kind = prose(target.get("kind") or "unknown")
    place = prose(environment(facts)) or "not said"
    entry = f", at its {prose(served.entry)}" if served.entry else ""
    expected = f" of {served.expected} expected" if served.expected is not None else ""
    primaries = f"{words.count(len(served.primaries), 'primary', 'primaries')}{expected}{_names(served.primaries)}"
    fallbacks = f"; {words.count(len(served.fallbacks), 'fallback')}{_names(served.fallbacks)}"
    oncall = facts.header.get("oncall")
    known = versions(facts)
    return [
        ["target", f"{code(target.get('name') or 'unknown')}, kind {kind}"],
        ["environment", place],
        ["entry", f"{code(served.endpoint)}{entry}" if served.endpoint else words.NO_DATA],
        ["model", code(served.model) if served.model else words.NO_DATA],
        ["replicas", primaries + (fallbacks if served.fallbacks else "") if served.primaries else words.NO_DATA],
        ["versions", ", ".join(f"{prose(n)} {code(v)}" for n, v in sorted(known.items())) or words.NO_DATA],
        ["on call", prose(oncall) if oncall else "nobody was named"],
    ]


def _names(names: tuple[str, ...]) -> str:
    return f" ({words.listed([code(name) for name in names])})" if 0 < len(names) <= NAMES_MAX else ""
