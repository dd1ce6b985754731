"""Two runs side by side: what differs in what they did, and which differences in what came of it are beyond chance.

Pure and offline. A run is judged again from its files; of one whose raw files are not kept, the stored verdict counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from drills import comparable, evidence, journal, runfolder, shapes, stats, stored, verdict
from drills.comparable import Change
from drills.errors import DrillError, FileProblem
from drills.evidence import Evidence
from drills.model import Json
from drills.report import lessons, words

#: What is measured of each cohort: metric and quantile.
QUANTILES: Final = tuple((metric, q) for metric in ("ttft", "e2e", "max_gap") for q in (0.5, 0.99))
COHORTS: Final = ("baseline", "fault")
SAID: Final = {
    Change.BETTER: "better, beyond chance",
    Change.WORSE: "worse, beyond chance",
    Change.CHANCE: "within chance",
    Change.NO_INTERVAL: "",
}


@dataclass(frozen=True)
class Side:
    """One of both runs. `ev` is None where its raw files are not kept."""

    folder: Path
    plan: Json
    header: Json
    verdict: Json
    ev: Evidence | None

    @property
    def run(self) -> str:
        """Return the run's id."""
        return runfolder.run_id(self.folder)


@dataclass(frozen=True)
class Value:
    """What one run has of a row; `interval` None: it says nothing of chance."""

    verdict: str = ""
    value: Any = None
    interval: tuple[float | None, float | None] | None = None
    n: int | None = None


@dataclass(frozen=True)
class Row:
    """One value of both runs; a side that has none is None."""

    name: str
    unit: str
    a: Value | None
    b: Value | None
    change: Change


@dataclass(frozen=True)
class Comparison:
    """Both runs, and what differs."""

    a: Side
    b: Side
    not_comparable: list[str]
    plan: list[str]
    versions: list[str]
    checks: list[Row]
    measured: list[Row]

    def lines(self) -> list[str]:
        """Return it in words, a line each."""
        lines = [_head("A", self.a), _head("B", self.b)]
        lines += [f"not comparable: {one}" for one in self.not_comparable]
        if self.not_comparable:
            lines.append("they did not do the same, so no difference below is a regression or an improvement")
        lines += ["", "plan and versions, A, B:", *_indented([*self.plan, *self.versions], "the same")]
        lines += ["", "checks, A → B:", *_table(self.checks)]
        lines += ["", "requests, A → B:", *_table(self.measured)]
        return [*lines, "", comparable.RULE]

    def to_json(self) -> Json:
        """Return it as plain data."""
        return {
            "a": _told(self.a),
            "b": _told(self.b),
            "comparable": not self.not_comparable,
            "not_comparable": self.not_comparable,
            "plan": self.plan,
            "versions": self.versions,
            "checks": [_row(row) for row in self.checks],
            "measured": [_row(row) for row in self.measured],
            "rule": comparable.RULE,
        }


def compare(a: Path, b: Path) -> Comparison:
    """Compare two run folders. Raises DrillError where one of them has no plan or no verdict."""
    one, other = side(a), side(b)
    return Comparison(
        one,
        other,
        not_comparable=comparable.differences(one.plan, other.plan),
        plan=comparable.diff(_rest(one.plan), _rest(other.plan)),
        versions=comparable.diff(_versions(one.header), _versions(other.header)),
        checks=list(_checks(one.verdict, other.verdict)),
        measured=list(_measured(one.ev, other.ev)),
    )


def side(folder: Path) -> Side:
    """Return a run as it is compared. Raises DrillError."""
    if stored.is_going(folder):
        raise FileProblem(folder, "this run is still going; wait for its end")
    plan = _plan(folder / "plan.json")
    if stored.not_kept(folder):
        found, ev = stored.verdict(folder), None
        if found is None:
            raise FileProblem(folder, "neither its raw files nor its verdict are here, so nothing can be compared")
    else:
        ev = evidence.read(folder)
        found = json.loads(verdict.encode(verdict.of(ev)))
    return Side(folder, plan, _header(folder), found, ev)


def _plan(path: Path) -> Json:
    return stored.shaped(path, shapes.PLAN, "a plan")


def _header(folder: Path) -> Json:
    try:
        events = journal.read(folder / "journal.jsonl")
    except DrillError:
        return {}
    return next((event.data for event in events if event.event == "header"), {})


# ---- what they did ----------------------------------------------------------------------------------------


def _rest(plan: Json) -> Json:
    """Return what of a plan does not keep it from being compared: checks and guards by name, limits, seed."""
    experiment, target = _map(plan.get("experiment")), _map(plan.get("target"))
    core, held = comparable.key(plan), ("sla", "model", "name", "kind", "expected_replicas")
    return {
        "checks": {lessons.label(check): check["params"] for check in _named(experiment, "checks", "check")},
        "guards": {guard["guard"]: guard["params"] for guard in _named(experiment, "guards", "guard")},
        "target": {key: value for key, value in target.items() if key not in held},
        "phases": {k: v for k, v in _map(plan.get("phases")).items() if k not in core.get("phases", {})},
        "seed": plan.get("seed"),
        "hypothesis": experiment.get("hypothesis"),
    }


def _named(experiment: Json, place: str, word: str) -> Iterator[Json]:
    """Yield the checks or guards of a plan, in either of its forms."""
    for item in experiment.get(place) or ():
        if word in item:
            yield {word: str(item[word]), "params": item.get("params") or {}}
        else:
            name, params = next(iter(item.items()))
            yield {word: str(name), "params": params or {}}


def _versions(header: Json) -> Json:
    tool = _map(header.get("tool"))
    return {
        "versions": header.get("versions"),
        "drill": {name: tool.get(name) for name in ("version", "git", "dirty")},
        "python": header.get("python"),
    }


# ---- what came of it --------------------------------------------------------------------------------------


def _checks(a: Json, b: Json) -> Iterator[Row]:
    ours, theirs = _by_key(a["checks"]), _by_key(b["checks"])
    for key in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(key), theirs.get(key)
        row = other or one or {}
        change = comparable.change(one, other) if one and other else Change.NO_INTERVAL
        yield Row(lessons.label(row), str(row.get("unit") or ""), _value(one), _value(other), change)
        yield from _metrics(one, other)


def _by_key(rows: Sequence[Json]) -> dict[tuple[str, int], Json]:
    """Return rows by what they measure; of two that measure the same the second is another one."""
    found: dict[tuple[str, int], Json] = {}
    for row in rows:
        key = comparable.row_key(row)
        found[key, sum(1 for name, _ in found if name == key)] = row
    return found


def _value(row: Json | None) -> Value | None:
    if row is None:
        return None
    return Value(str(row["verdict"]), row.get("value"), comparable.interval(row), row.get("n"))


def _metrics(*both: Json | None) -> Iterator[Row]:
    """Yield the rows of the table of metrics, which have no interval."""
    a, b = ({str(row["metric"]): row for row in _map((check or {}).get("detail")).get("rows") or ()} for check in both)
    for name in dict.fromkeys([*a, *b]):
        values = [Value(row["verdict"], row.get("value")) if (row := rows.get(name)) else None for rows in (a, b)]
        unit = str((b.get(name) or a.get(name) or {}).get("unit") or "")
        yield Row(f"  {name}", unit, values[0], values[1], Change.NO_INTERVAL)


def _measured(a: Evidence | None, b: Evidence | None) -> Iterator[Row]:
    """Yield quantiles and shares of the cohorts of both runs."""
    for cohort in COHORTS:
        for metric, q in QUANTILES:
            name = f"{metric} p{q * 100:g}, {cohort}"
            yield _both(name, "s", [_quantile(ev, cohort, metric, q) for ev in (a, b)], more_is_better=False)
        yield _both(f"answered, {cohort}", "ratio", [_answered(ev, cohort) for ev in (a, b)], more_is_better=True)


def _both(name: str, unit: str, values: list[Value | None], *, more_is_better: bool) -> Row:
    one, other = values
    before, after = one.interval if one else None, other.interval if other else None
    change = comparable.change_of(before, after, more_is_better=more_is_better)
    return Row(name, unit, one, other, change)


def _quantile(ev: Evidence | None, cohort: str, metric: str, q: float) -> Value | None:
    if ev is None:
        return None
    ordered = ev.cohort(cohort)[metric].drop_nulls().sort().to_list()
    if len(ordered) < stats.claim_minimum(q):
        return Value(n=len(ordered))
    return Value("", stats.nearest_rank(ordered, q), stats.quantile_interval(ordered, q), len(ordered))


def _answered(ev: Evidence | None, cohort: str) -> Value | None:
    frame = None if ev is None else ev.cohort(cohort)
    if frame is None or frame.is_empty():
        return None
    good, n = int(frame["good"].sum()), frame.height
    return Value("", good / n, stats.share_interval(good, n), n)


# ---- telling ----------------------------------------------------------------------------------------------


def _head(name: str, one: Side) -> str:
    experiment, target = _map(one.plan.get("experiment")), _map(one.plan.get("target"))
    said = " · ".join(f"{key} {one.verdict[key]}" for key in ("verdict", "left", "restored"))
    kept = "" if one.ev else " · as it was judged: its raw files are not kept"
    return f"{name}  {one.folder.name}: {experiment.get('name')} at {target.get('name')} · {said}{kept}"


def _indented(lines: Sequence[str], empty: str) -> list[str]:
    return [f"  {line}" for line in lines] or [f"  {empty}"]


def _table(rows: Sequence[Row]) -> list[str]:
    """Return rows in columns: name, verdicts, values with their intervals, what changed."""
    cells = [(row.name, _verdicts(row), _values(row), SAID[row.change]) for row in rows]
    widths = [*(max((len(row[i]) for row in cells), default=0) for i in range(3)), 0]
    padded = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in cells]
    return _indented(["  ".join(row).rstrip() for row in padded], "no data")


def _values(row: Row) -> str:
    return f"{_shown(row.a, row.unit)} → {_shown(row.b, row.unit)}"


def _verdicts(row: Row) -> str:
    said = [one.verdict if one else "not there" for one in (row.a, row.b)]
    return "" if not any(said) else said[0] if said[0] == said[1] else f"{said[0]} → {said[1]}"


def _shown(one: Value | None, unit: str) -> str:
    if one is None:
        return words.NO_DATA
    value = words.quantity("inf" if one.value == math.inf else one.value, unit) + (" °C" if unit == "°C" else "")
    ends = one.interval
    return value if ends is None or ends[0] == math.inf else f"{value} ({words.between(*ends, unit)})"


def _told(one: Side) -> Json:
    told = {"run": one.run, "folder": str(one.folder), "drill": _map(one.plan.get("experiment")).get("name")}
    told |= {"target": _map(one.plan.get("target")).get("name"), "judged_again": one.ev is not None}
    return told | {key: one.verdict[key] for key in ("verdict", "left", "restored")}


def _row(row: Row) -> Json:
    return {
        "name": row.name.strip(),
        "unit": row.unit,
        "a": _plain(row.a),
        "b": _plain(row.b),
        "change": str(row.change),
        "beyond_chance": row.change in (Change.BETTER, Change.WORSE),
    }


def _plain(one: Value | None) -> Json | None:
    """Return a value as JSON has it: an infinite one is "inf", an open end null."""
    if one is None:
        return None
    ends = None if one.interval is None else [_number(end) for end in one.interval]
    return {"verdict": one.verdict or None, "value": _number(one.value), "interval": ends, "n": one.n}


def _number(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else "inf"
    return value


def _map(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
