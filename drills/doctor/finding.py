"""What `drill doctor` finds: one line each, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from drills.errors import EXIT_INCONCLUSIVE, EXIT_PASS, EXIT_REFUSED
from drills.model import Json


class State(StrEnum):
    """How a thing is that drills need."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"  # it could not be looked at


@dataclass(frozen=True)
class Finding:
    """One thing that drills need. `fix` are commands, or lines for a file; `refuses`: without it a drill is refused."""

    group: str
    name: str
    state: State
    text: str
    fix: tuple[str, ...] = ()
    refuses: bool = False

    def to_json(self) -> Json:
        """Return it as `--json` shows it."""
        return {**self.__dict__, "state": str(self.state), "fix": list(self.fix)}


def ok(group: str, name: str, text: str) -> Finding:
    """Return that a thing is as it should be."""
    return Finding(group, name, State.OK, text)


def missing(group: str, name: str, text: str, *fix: str, refuses: bool = False) -> Finding:
    """Return that a thing is not there, or not as it should be."""
    return Finding(group, name, State.MISSING, text, fix, refuses)


def unknown(group: str, name: str, text: str, *fix: str, refuses: bool = False) -> Finding:
    """Return that a thing could not be looked at."""
    return Finding(group, name, State.UNKNOWN, text, fix, refuses)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 when all is well, 3 when a drill would be refused, else 2: all would run, and a check stay undecided."""
    bad = [one for one in findings if one.state is not State.OK]
    return EXIT_REFUSED if any(one.refuses for one in bad) else EXIT_INCONCLUSIVE if bad else EXIT_PASS


def lines(findings: Iterable[Finding]) -> list[str]:
    """Return the findings as aligned lines, each fix below its own."""
    found = list(findings)
    wide = max((len(one.group) for one in found), default=0)
    shown = []
    for one in found:
        shown.append(f"{one.state:8} {one.group:{wide}}  {one.name}: {one.text}")
        shown += [f"{'':8} {'':{wide}}  fix: {line}" if n == 0 else f"{'':8} {'':{wide}}       {line}"
                  for n, line in enumerate(one.fix)]  # fmt: skip
    return shown
