"""The figures that a drill is followed by from run to run, and what changed since the last comparable one. Pure.

Each run stands for itself: nothing is averaged over runs. Better and worse are said only of comparable runs, and only
where the intervals of both do not overlap (drills.comparable).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from drills import comparable
from drills.comparable import Change
from drills.lang import mark, t
from drills.model import Json, Verdict
from drills.report import words
from drills.report.digest import Digest
from drills.report.lessons import number

#: More runs than these are no trend that anybody reads; the latest count.
RUNS_MAX: Final = 20


@dataclass(frozen=True)
class Metric:
    """One figure of a run: the check whose row has it, and what its parameters must say; its words are marked."""

    name: str
    title: str
    short: str
    check: str
    unit: str
    params: tuple[tuple[str, object], ...] = ()


_P99: Final = (("metric", "ttft"), ("quantile", 0.99), ("cohort", "fault"))
TTFT: Final = Metric(
    "ttft", mark("p99 time to first token, begun in the fault"), mark("p99 TTFT"), "latency", "s", _P99
)
AVAILABILITY: Final = Metric(
    "availability",
    mark("availability in the fault"),
    mark("availability"),
    "availability",
    "ratio",
    (("cohort", "fault"),),
)
FAILOVER: Final = Metric("failover", mark("failover"), mark("failover"), "failover", "s")
RECOVERY: Final = Metric("recovery", mark("recovery"), mark("recovery"), "recovery", "s")
ALERT: Final = Metric("alert", mark("alert fired after the injection"), mark("alert fired"), "alert", "s")
RESTART: Final = Metric(
    "restart", mark("replica back after the injection"), mark("replica back"), "replica_restart", "s"
)
METRICS: Final = (TTFT, AVAILABILITY, FAILOVER, RECOVERY, ALERT, RESTART)
#: What a row without that parameter meant.
_DEFAULTS: Final[dict[str, object]] = {"metric": "ttft", "quantile": 0.99, "cohort": "fault"}


@dataclass(frozen=True)
class Value:
    """A figure as one run has it: None where there is none, `endless` where it is infinite or was never reached.

    Of one that was not reached in time `value` is how long was watched.
    """

    value: float | None
    interval: tuple[float | None, float | None] | None
    bound: float | None
    n: int | None
    verdict: str
    unit: str
    endless: bool = False

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self.value is not None or self.endless

    @property
    def told(self) -> str:
        """Return it in words, with its interval where it has one."""
        if self.endless:
            return t(words.NEVER) if self.value is None else f"> {words.quantity(self.value, self.unit)}"
        text = words.quantity(self.value, self.unit)
        low, high = self.interval or (None, None)
        known = self.value is not None and (low is not None or high is not None)
        if not known:
            return text
        return t("{value} ({interval})", value=text, interval=words.between(low, high, self.unit))


def value(run: Digest, metric: Metric) -> Value | None:
    """Return what a run has of a figure; None where the drill does not ask for it, or nothing was judged."""
    row = next((row for row in run.rows(metric.check) if _fits(row, metric)), None)
    if row is None:
        return None
    verdict = str(row.get("verdict"))
    if verdict == Verdict.PASS and not run.measured:
        verdict = str(Verdict.INCONCLUSIVE)  # a pass in a run that is not to be trusted is none
    found, endless = _number(row.get("value"))
    n: Any = row.get("n")
    return Value(found, comparable.interval(row), number(row.get("bound")), n, verdict, metric.unit, endless)


def _fits(row: Json, metric: Metric) -> bool:
    params = row.get("params") or {}
    return all(params.get(name, _DEFAULTS.get(name)) == wanted for name, wanted in metric.params)


def _number(said: object) -> tuple[float | None, bool]:
    """Return a value as it is written, and whether it was not reached: "inf", or "> 79.4" of what was watched."""
    if isinstance(said, str):
        watched = said.removeprefix(">").removesuffix("s").strip()
        known = said.startswith(">") and watched.replace(".", "", 1).isdecimal() and watched.isascii()
        return (float(watched) if known else None), known or said == "inf"
    return number(said), False


# ---- against the last comparable run -------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """A row of the verdict that is better or worse than in the run before, beyond chance."""

    change: Change
    before: Json
    after: Json


@dataclass(frozen=True)
class Comparison:
    """A run beside the last comparable one; without one, where the last `other` run differs."""

    run: Digest
    before: Digest | None = None
    moved: tuple[Moved, ...] = ()
    within: int = 0  # rows of which chance explains what changed
    other: Digest | None = None
    why: tuple[str, ...] = field(default=())

    @property
    def trend(self) -> Change | None:
        """Return what it comes to: worse outweighs better; None without anything to compare."""
        changes = {moved.change for moved in self.moved}
        if self.before is None or not (self.moved or self.within):
            return None
        return next((word for word in (Change.WORSE, Change.BETTER) if word in changes), Change.CHANCE)


def compare(run: Digest, earlier: Sequence[Digest]) -> Comparison:
    """Return a run beside the last of the earlier ones that is comparable; `earlier` are in order of time."""
    same = (one for one in reversed(earlier) if one.place == run.place and one.stamp < run.stamp and not one.defect)
    sound = [one for one in same if one.measured] if run.measured else []
    if not sound:
        return Comparison(run)
    before = next((one for one in sound if not comparable.differences(one.plan, run.plan)), None)
    if before is None:
        return Comparison(run, other=sound[0], why=tuple(comparable.differences(sound[0].plan, run.plan)))
    moved, within = _rows(before, run)
    return Comparison(run, before, tuple(moved), within)


def _rows(before: Digest, after: Digest) -> tuple[list[Moved], int]:
    """Return the rows that moved beyond chance, and how many did not."""
    old = {comparable.row_key(row): row for row in before.checks}
    moved, within = [], 0
    for row in after.checks:
        other = old.get(comparable.row_key(row))
        said = comparable.change(other, row) if other else Change.NO_INTERVAL
        if other and said in (Change.BETTER, Change.WORSE):
            moved.append(Moved(said, other, row))
        within += said is Change.CHANCE
    return moved, within


# ---- from run to run -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """The runs of one drill at one target, oldest first; runs with the same `groups` are comparable."""

    target: str
    drill: str
    runs: tuple[Digest, ...]
    groups: tuple[int, ...]
    left_out: int  # earlier runs that are not shown

    def panel(self, metric: Metric) -> list[Value | None]:
        """Return a figure of each run."""
        return [value(run, metric) for run in self.runs]


def series(runs: Sequence[Digest]) -> list[Series]:
    """Return what can be followed: by target and drill, without planted defects, and what never began."""
    places: dict[tuple[str, str], list[Digest]] = {}
    for run in runs:
        if not run.defect and run.ran:
            places.setdefault(run.place, []).append(run)
    return [_series(place, places[place]) for place in sorted(places)]


def _series(place: tuple[str, str], runs: list[Digest]) -> Series:
    shown = runs[-RUNS_MAX:]
    groups: list[int] = []
    for n, run in enumerate(shown):
        alike = (groups[i] for i in range(n - 1, -1, -1) if not comparable.differences(shown[i].plan, run.plan))
        groups.append(next(alike, n))
    return Series(*place, tuple(shown), tuple(groups), len(runs) - len(shown))
