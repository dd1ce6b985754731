"""What was drilled, with what, and by whom: the identity of a run."""

from __future__ import annotations

from dataclasses import dataclass

from drills.lang import t
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
    name, kind = code(target.get("name") or "unknown"), prose(target.get("kind") or "unknown")
    oncall, known = facts.header.get("oncall"), sorted(versions(facts).items())
    no_data = t(words.NO_DATA)
    return [
        [t("target"), t("{target}, kind {kind}", target=name, kind=kind)],
        [t("environment"), prose(environment(facts)) or t("not said")],
        [t("entry"), _entry(served) or no_data],
        [t("model"), code(served.model) if served.model else no_data],
        [t("replicas"), _replicas(served) or no_data],
        [t("versions"), t(", ").join(f"{prose(part)} {code(version)}" for part, version in known) or no_data],
        [t("on call"), prose(oncall) if oncall else t("nobody was named")],
    ]


def _entry(served: Topology) -> str:
    if not served.endpoint or not served.entry:
        return code(served.endpoint) if served.endpoint else ""
    return t("{endpoint}, at its {part}", endpoint=code(served.endpoint), part=prose(served.entry))


def _replicas(served: Topology) -> str:
    if not served.primaries:
        return ""
    told = words.count(len(served.primaries), "primary", "primaries")
    if served.expected is not None:
        told = t("{primaries} of {expected} expected", primaries=told, expected=served.expected)
    told += _names(served.primaries)
    if not served.fallbacks:
        return told
    return words.clauses([told, words.count(len(served.fallbacks), "fallback") + _names(served.fallbacks)])


def _names(names: tuple[str, ...]) -> str:
    return words.in_brackets(words.listed([code(name) for name in names])) if len(names) <= NAMES_MAX else ""
