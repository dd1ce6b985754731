"""What a schedule is to do: target, drills and times, checked before a line is rendered. Touches no network."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from drills import production, session, suite, victims, windows
from drills.errors import FileProblem, UsageError
from drills.experiment import Experiment, experiment_folders
from drills.options import Options
from drills.plan import Plan
from drills.schedule import cron
from drills.schedule.times import Times, times
from drills.target import TargetSpec

#: A CronJob's name leaves room for what its Jobs and their pods add.
NAME_MAX: Final = 52
STARTS: Final = 12  # looked at for windows and frozen dates


@dataclass(frozen=True)
class Wanted:
    """A schedule to be rendered."""

    name: str  # of its objects, or units
    spec: TargetSpec
    plans: tuple[Plan, ...]
    cron: cron.Cron
    zone: str
    times: Times
    suite: bool  # the drills are those that `drill monthly` means without a word
    said: tuple[str, ...] = ()  # what production asks for, on each command line

    @property
    def experiments(self) -> list[Experiment]:
        """The drills, in order."""
        return [plan.experiment for plan in self.plans]

    @property
    def command(self) -> list[str]:
        """The words that run them."""
        names = [] if self.suite else [one.name for one in self.experiments]
        return ["drill", "monthly", *names, "--target", self.spec.name, *self.said]


def wanted(names: Sequence[str], options: Options, *, schedule: str, zone: str) -> Wanted:
    """Return what is to be rendered. Raises UsageError, FileProblem or Refused, as the drills themselves would."""
    spec = session.target_spec(options)
    production.require_flags(spec, options)
    experiments = [session.experiment(name) for name in names or suite.SUITES[suite.MONTHLY]]
    try:
        plans = tuple(session.make_plan(one, spec, options, run="schedule", seed=0) for one in experiments)
    except FileProblem as error:
        if names:
            raise
        raise UsageError(f"{error}; or name the drills that are to be scheduled") from None
    try:
        parsed, zone = cron.parse(schedule), cron.check_zone(zone)
    except ValueError as error:
        raise UsageError(str(error)) from None
    publish_s = spec.publish.timeout if spec.publish else 0.0
    given = (("--confirm", options.confirm), ("--oncall", options.oncall))
    said = tuple(word for flag, value in given if value for word in (flag, value))
    return Wanted(name_of(spec.name), spec, plans, parsed, zone, times(plans, publish_s), not names, said)


def name_of(target: str) -> str:
    """Return the name of what belongs to a target's schedule: one that Kubernetes and systemd take."""
    plain = re.sub(r"[^a-z0-9-]", "-", target.lower())
    name = f"drill-{plain}"
    if plain == target and len(name) <= NAME_MAX and not name.endswith("-"):
        return name
    mark = hashlib.sha256(target.encode()).hexdigest()[:6]  # two targets stay two
    return f"{name[: NAME_MAX - len(mark) - 1].rstrip('-')}-{mark}"


def warnings(what: Wanted, now: datetime | None = None) -> Iterator[str]:
    """Yield what will be refused each time, or sometimes, though the schedule can be rendered."""
    limits = what.spec.limits
    for plan in what.plans:
        if any(victims.is_route(planned.fault) for planned in plan.faults) and not limits.allow_route_faults:
            yield f"{plan.experiment.name} will be refused: target '{what.spec.name}' has no limits.allow_route_faults"
    starts = islice(what.cron.starts(now or datetime.now(UTC), what.zone), STARTS)
    closed = [(start, why) for start in starts if (why := windows.refusal(start, limits.windows, limits.freeze))]
    if closed:
        (first, why), how_many = closed[0], len(closed)
        yield f"{how_many} of the next {STARTS} starts will be refused, the first on {first:%a %Y-%m-%d %H:%M}: {why}"


def own_playbooks(experiments: Sequence[Experiment]) -> Iterator[Path]:
    """Yield the playbooks that the drills name and the package does not bring."""
    here = Path("playbooks")
    package = experiment_folders()[-1].parent / "playbooks"
    for name in sorted({one.playbook for one in experiments if one.playbook}):
        if not (package / f"{name}.md").is_file() and (here / f"{name}.md").is_file():
            yield here / f"{name}.md"
