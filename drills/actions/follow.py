"""A judged run → its action items: which it opens, which it sees again, and which it proves done.

What comes of it depends on when the runs were and not on when they were judged: an item's history is told again from
its runs each time. Runs of planted defects and runs that were refused say nothing of the service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Final

from drills import files, runfolder, shapes, strictjson
from drills.actions import store
from drills.actions.items import CLOSED, DONE, FILE, OPEN, Closed, Item, moment
from drills.errors import EXIT_REFUSED, DrillError
from drills.evidence import Evidence
from drills.model import Json, Left, Restored, Verdict
from drills.output import visible
from drills.report import validity
from drills.report.actions import GATE_ADVICE, LEFT, RESTORED, Action, actions, ended_early
from drills.report.facts import Facts
from drills.report.source import read

RUNS: Final = "runs"
#: After the verdicts of a valid measurement; only these prove anything.
_VALID: Final = (Verdict.PASS, Verdict.FAIL)


@dataclass(frozen=True)
class Ran:
    """What a run says of action items. `broken` are the gates that did not hold, where they are known."""

    run: str
    stamp: str  # when it began, as its folder says it: 20261130T161814Z
    drill: str
    target: str
    verdict: str
    restored: str
    left: str
    mute: bool  # planted defect, or refused: says nothing of the service
    rows: tuple[Json, ...]
    early: bool = False
    broken: frozenset[str] = field(default=frozenset())

    @property
    def date(self) -> date:
        """Return the day on which it began (UTC)."""
        return date.fromisoformat(f"{self.stamp[:4]}-{self.stamp[4:6]}-{self.stamp[6:8]}")

    @property
    def valid(self) -> bool:
        """Whether it was a measurement that shows something."""
        return self.verdict in _VALID


def followed(folder: Path, seen: Evidence | None = None) -> list[str]:
    """Carry what a judged run says into its reports' action items; returns lines about that. Never raises.

    `seen`: the folder's evidence, where it was read already. A run that lies in no reports folder has no items.
    """
    try:
        return update(folder, seen)
    except (OSError, DrillError) as error:
        return [f"action items: not kept: {error}"]
    except Exception as bug:
        # The verdict is there, and whoever waits for it must not get a traceback in its place.
        return [f"action items: not kept: our bug: {type(bug).__name__}: {bug}"]


def update(folder: Path, seen: Evidence | None = None) -> list[str]:
    """Do that; raises DrillError."""
    folder = folder.resolve()
    now = ran(folder)
    if now is None or now.mute or folder.parent.name != RUNS:
        return []
    reports, facts = folder.parent.parent, Facts(read(folder, seen))
    early = ended_early(facts)
    now = replace(now, early=early, broken=frozenset(gate.name for gate in validity.broken(facts)))
    proposed = [one for one in actions(facts) if not (early and _for_want_of_an_end(facts, one))]
    if not proposed and not (reports / FILE).exists():
        return []
    with store.editing(reports) as book:
        before = dict(book.items)
        carry(book, now, proposed, [one for one in _all(reports) if one.run != now.run])
        return _said(before, book.items)


def carry(book: store.Editor, now: Ran, proposed: Iterable[Action], others: Iterable[Ran]) -> None:
    """Write into the file what a run says, seen among the other runs that were judged."""
    names, heard = set(), [one for one in others if not one.mute]
    for action in proposed:
        names.add(action.id)
        if action.id not in book.items:
            book.add(_new(action, now))
    for item in list(book.items.values()):
        if item.id in names or _about(item, now):
            book.change(item.id, _told_again(item, now, heard, failed=item.id in names))


def _for_want_of_an_end(facts: Facts, action: Action) -> bool:
    """Whether it is about a check that a run which was cut short could not judge: nothing is known of that check."""
    name, params = action.proof["check"], action.proof["params"]
    rows = [row for row in facts.checks if row["check"] == name and (row.get("params") or {}) == params]
    return bool(rows) and all(row.get("verdict") == Verdict.INCONCLUSIVE for row in rows)


def _new(action: Action, now: Ran) -> Json:
    return {
        "id": action.id,
        "what": action.what,
        "type": action.kind,
        "priority": action.priority,
        "owner": None,
        "due": None,
        "link": None,
        "target": _name(action.target),
        "proof": {
            "drill": _name(action.proof["drill"]),
            "check": _name(action.proof["check"]),
            "params": _shown(action.proof["params"]),
        },
        "opened": {"date": now.date, "run": now.run},
        "seen": [],
        "status": OPEN,
        "closed": None,
    }


# ---- what a run says of an item ---------------------------------------------------------------------------


def ran(folder: Path) -> Ran | None:
    """Return what a run's plan and verdict say; None where they are not there or damaged."""
    plan, verdict = _json(folder / "plan.json"), _json(folder / "verdict.json")
    if strictjson.misfit(plan, shapes.PLAN) or strictjson.misfit(verdict, shapes.VERDICT):
        return None
    return Ran(
        run=runfolder.run_id(folder),
        stamp=folder.name.split("-", 1)[0],
        drill=_name(plan["experiment"].get("name")),
        target=_name(plan["target"].get("name")),
        verdict=verdict["verdict"],
        restored=verdict["restored"],
        left=verdict["left"],
        mute=bool(plan.get("defect")) or verdict.get("exit_code") == EXIT_REFUSED,
        rows=tuple(verdict["checks"]),
    )


def _all(reports: Path) -> Iterator[Ran]:
    found = (ran(folder) for folder in runfolder.list_runs(reports / RUNS))
    return (one for one in found if one is not None)


def _json(path: Path) -> Any:
    try:
        return strictjson.loads(files.read(path))
    except (OSError, ValueError):
        return None


def _about(item: Item, now: Ran) -> bool:
    """Whether a run may say something of an item."""
    if item.proof is None or item.target not in (None, now.target):
        return False
    return item.proof.drill == now.drill or item.proof.check in (RESTORED, LEFT)


def holds(item: Item, now: Ran) -> bool | None:
    """Whether a run proves an item done, or shows that it is not; None: it tells nothing of it."""
    if item.proof is None or not _about(item, now):
        return None
    check, mine = item.proof.check, item.proof.drill == now.drill
    if check in (RESTORED, LEFT):  # the service is back as it was, whichever drill saw that
        value, good, bad = (
            (now.restored, Restored.CLEAN, (Restored.DIRTY, Restored.UNKNOWN))
            if check == RESTORED
            else (now.left, Left.HEALTHY, (Left.DEGRADED,))
        )
        return True if value == good else False if mine and value in bad else None
    if check in GATE_ADVICE:
        return True if now.valid else False if check in now.broken else None
    return _rows_hold(item, now)


def _rows_hold(item: Item, now: Ran) -> bool | None:
    assert item.proof is not None
    wanted = _shown(item.proof.params)
    rows = [row for row in now.rows if _name(row["check"]) == item.proof.check and _has(row.get("params"), wanted)]
    verdicts = {row["verdict"] for row in rows} - {Verdict.NOT_JUDGED}
    if Verdict.FAIL in verdicts:
        return False
    if Verdict.INCONCLUSIVE in verdicts:
        return None if now.early else False
    return True if now.valid and verdicts == {Verdict.PASS} else None


def _has(params: Any, wanted: Json) -> bool:
    given = _shown(params or {})
    return all(given.get(key) == value for key, value in wanted.items())


def _shown(value: Any) -> Any:
    """Return plain data whose texts are printable lines: YAML holds nothing else for sure, and nobody could edit it."""
    if isinstance(value, Mapping):
        return {visible(key): _shown(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    return visible(value).strip() if isinstance(value, str) else value


def _name(value: Any) -> str:
    return _shown(str(value or "")) or "unknown"


# ---- an item's history ------------------------------------------------------------------------------------

_OPENED, _SEEN, _CLOSED = 0, 1, 2  # of what happened at one time, in this order


def _told_again(item: Item, now: Ran, others: Iterable[Ran], *, failed: bool) -> Json:
    """Return what the runs make of an item: seen, opened, status, closed and history."""
    runs = {one.run: one for one in (*others, now)}
    said = holds(item, now)
    seen = [run for run in item.seen if run != now.run or said is not True]
    if failed or said is False:
        seen = _put_in(seen, now, runs)
    first = runs.get(seen[0]) if seen and item.opened.run else None
    stamps, day = _stamps(seen, runs), f"{item.opened.date[:10].replace('-', '')}T000000Z"
    opener = first or runs.get(item.opened.run or "")
    by_hand = _stamp(item.opened.date) if len(item.opened.date) > len("2026-11-30") else day
    happened: list[tuple[str, int, Json]] = [(opener.stamp if opener else by_hand, _OPENED, {})]
    happened += [(stamps[run], _SEEN, {}) for run in seen]
    happened += [(one.stamp, _CLOSED, {"run": one.run, "date": one.date}) for one in runs.values() if holds(item, one)]
    kept = [*item.history, *([item.closed] if item.closed else [])]
    happened += [(_stamp(one.date), _CLOSED, _closed(one)) for one in kept if one.by or one.run not in runs]
    # What was closed by a run that nobody keeps was seen again later, or it would not be history.
    since = max((_stamp(one.date) for one in item.history if one.run and one.run not in runs), default="")
    happened = [(since, _SEEN, {}), *(one for one in happened if one[0] > since)] if since else happened
    again, closed = _replayed(sorted(happened, key=lambda one: one[:2]))
    history = [_closed(one) for one in item.history if _stamp(one.date) <= since] + again
    return {
        "seen": seen,
        "status": OPEN if closed is None else CLOSED if closed.get("by") else DONE,
        "closed": closed,
        **({"history": history} if history or item.history else {}),
        **({"opened": {"date": first.date, "run": first.run}} if first and first.run != item.opened.run else {}),
    }


def _replayed(happened: Iterable[tuple[str, int, Json]]) -> tuple[list[Json], Json | None]:
    """Return what had closed it before it was seen again, and what closes it now."""
    history: list[Json] = []
    closed: Json | None = None
    begun = False
    for _, what, by in happened:
        begun |= what != _CLOSED
        if what == _SEEN:
            history += [closed] if closed else []
            closed = None
        elif what == _CLOSED and begun and closed is None:
            closed = by
    return history, closed


def _put_in(seen: list[str], now: Ran, runs: Mapping[str, Ran]) -> list[str]:
    """Return the runs with this one at its place in time; those of which nobody knows the time stay where they are."""
    if now.run in seen:
        return seen
    earlier = [i for i, run in enumerate(seen) if run in runs and runs[run].stamp <= now.stamp]
    later = [i for i, run in enumerate(seen) if run in runs and runs[run].stamp > now.stamp]
    place = earlier[-1] + 1 if earlier else later[0] if later else len(seen)
    return [*seen[:place], now.run, *seen[place:]]


def _stamps(seen: list[str], runs: Mapping[str, Ran]) -> dict[str, str]:
    """Return when each run was; one whose folder is not kept counts as being as old as the one before it."""
    found, last = {}, ""
    for run in seen:
        last = max(last, runs[run].stamp) if run in runs else last
        found[run] = last
    return found


def _stamp(text: str) -> str:
    return f"{moment(text):%Y%m%dT%H%M%SZ}"


def _closed(one: Closed) -> Json:
    said = one.model_dump(mode="json", exclude_none=True)
    day = said["date"]
    return {**said, "date": date.fromisoformat(day) if len(day) == len("2026-11-30") else day}


# ---- telling ----------------------------------------------------------------------------------------------


def _said(before: Mapping[str, Item], after: Mapping[str, Item]) -> list[str]:
    """Say what has changed, in one line; nothing when nothing has."""
    new = [name for name in after if name not in before]
    closed = [n for n, one in after.items() if n in before and before[n].status == OPEN and one.status != OPEN]
    again = [n for n, one in after.items() if n in before and before[n].status != OPEN and one.status == OPEN]
    more = [n for n, one in after.items() if n in before and n not in again and one.age > before[n].age]
    counts = {"opened": new, "opened again": again, "seen again": more, "done": closed}
    said = [f"{len(names)} {word}" for word, names in counts.items() if names]
    raised = sum(1 for name in (*again, *more) if after[name].escalated)
    said += [f"{raised} escalated"] if raised else []
    return [f"action items: {', '.join(said)}; `drill actions list` shows them"] if said else []
