"""What is to be looked for: what the chosen drills need of a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drills import session, suite
from drills.errors import DrillError
from drills.experiment import Experiment
from drills.model import Fault
from drills.options import Options
from drills.plan import Plan
from drills.target import TargetSpec


@dataclass(frozen=True)
class WantedDrill:
    """A chosen drill: its plan, or why there is none for this target."""

    name: str
    experiment: Experiment
    faults: tuple[Fault, ...]
    plan: Plan | None
    problem: str = ""


@dataclass(frozen=True)
class Wanted:
    """The chosen drills."""

    drills: tuple[WantedDrill, ...]

    @property
    def faults(self) -> list[Fault]:
        """Return the faults of all of them."""
        return [fault for one in self.drills for fault in one.faults]

    def whose(self, need: str) -> list[str]:
        """Return the drills whose faults need that ability."""
        return [one.name for one in self.drills if any(need in fault.needs() for fault in one.faults)]

    def checks(self, name: str) -> list[tuple[str, Any]]:
        """Return (drill, parameters) of every check of that name."""
        return [(d.name, item.params) for d in self.drills for item in d.experiment.checks if item.name == name]


def wanted(names: Sequence[str], spec: TargetSpec, options: Options) -> Wanted:
    """Read the experiments and plan them for the target. Raises FileProblem for one that does not exist."""
    return Wanted(tuple(_drill(name, spec, options) for name in suite.expanded(names)))


def _drill(name: str, spec: TargetSpec, options: Options) -> WantedDrill:
    experiment = session.experiment(name)
    problem = ""
    try:
        made = session.make_plan(experiment, spec, options, run="doctor", seed=0)
    except DrillError as error:  # the file is fine, and not for this target
        made, problem = None, str(error)
    return WantedDrill(experiment.name, experiment, _faults(experiment, spec.kind), made, problem)


def _faults(experiment: Experiment, kind: str) -> tuple[Fault, ...]:
    from drills.faults import FAULTS

    found: list[Fault] = []
    for item in experiment.faults:
        try:
            found.append(FAULTS[item.name](item.params, kind))
        except DrillError:  # the plan says it
            continue
    return tuple(found)
