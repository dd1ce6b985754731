"""The action items as a review tells them: as they stood at the end of its last month. Pure and offline.

They are people's file, `actions.yaml`, read as it is: an entry that is not what it should be is named and left out.
What happened after the end of the review is taken back, so that an old review stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from drills import runfolder, yamlfile
from drills.actions.items import ESCALATED, FILE
from drills.errors import FileProblem
from drills.lang import mark, t
from drills.model import Json, Verdict
from drills.report import lessons, words
from drills.report.actions import GATE_ADVICE, in_words
from drills.report.digest import Digest
from drills.report.escape import code, prose, spans
from drills.report.review import ending, link, reason

HEADER: Final = mark("id | priority | owner | due | what | done when | age | state")


@dataclass(frozen=True)
class Item:
    """One action item; texts are as people wrote them. `seen` are the days of the drills that saw it."""

    id: str
    what: str
    priority: str
    owner: str
    due: str
    link: str
    proof: Json
    opened: str  # day
    seen: tuple[str, ...]
    closed: str  # day; empty while it is open
    by: str  # who closed it by hand
    reason: str
    target: str

    @property
    def open(self) -> bool:
        """Whether something is still to be done."""
        return not self.closed

    @property
    def escalated(self) -> bool:
        """Whether it has been seen too often."""
        return self.open and len(self.seen) >= ESCALATED


@dataclass(frozen=True)
class Items:
    """The items as they stood at the end of `last`, a month; `first` begins the review."""

    first: str
    last: str
    all: tuple[Item, ...] = ()
    there: bool = True
    problems: tuple[str, ...] = field(default=())

    @property
    def open(self) -> list[Item]:
        """Return what is to be done: escalated ones first, then by priority."""
        return sorted((one for one in self.all if one.open), key=lambda one: (-len(one.seen), one.priority, one.id))

    @property
    def escalated(self) -> list[Item]:
        """Return what has been seen in three drills or more."""
        return [one for one in self.open if one.escalated]

    @property
    def opened(self) -> list[Item]:
        """Return what was opened in the time of the review."""
        return [one for one in self.all if self.first <= one.opened[:7]]

    @property
    def carried(self) -> list[Item]:
        """Return what is older than the review and still open."""
        return [one for one in self.open if one.opened[:7] < self.first]

    @property
    def ended(self) -> list[Item]:
        """Return what was done, or closed by hand, in the time of the review."""
        return [one for one in self.all if one.closed[:7] >= self.first and not one.open]

    def view(self) -> dict[str, Any]:
        """Return what a review shows."""
        return {
            "there": self.there,
            "header": t(HEADER).split(" | "),
            "escalated": [_row(one) for one in self.escalated],
            "opened": [_row(one) for one in self.opened if one.open and not one.escalated],
            "carried": [_row(one) for one in self.carried if not one.escalated],
            "ended": [_ended(one) for one in self.ended],
            "counts": (len(self.opened), len(self.carried), len(self.escalated), len(self.ended)),
        }


def _row(item: Item) -> list[str]:
    what = spans(in_words(item.what))
    what = t("{what} ({link})", what=what, link=reason(item.link)) if item.link else what
    people = [reason(item.owner or t("nobody yet")), reason(item.due or t("no day yet")), what]
    age = words.count(len(item.seen), "drill") if item.seen else t("by hand")
    state = t("**escalated**") if item.escalated else t("open")
    return [code(item.id), reason(item.priority or "—"), *people, _done_when(item.proof), age, state]


def _done_when(proof: Json) -> str:
    if not proof.get("check"):
        return t("somebody says so")
    name, drill = lessons.label(proof), code(str(proof.get("drill") or "?"))
    if str(proof["check"]) in GATE_ADVICE:
        return t("{gate} holds in {command}", gate=code(t(name)), command=drill)
    return t("{check} passes in {command}", check=code(name), command=drill)


def _ended(item: Item) -> str:
    why = t(": {reason}", reason=reason(item.reason)) if item.reason else ""
    told, day = t("{item} ({what})", item=code(item.id), what=spans(in_words(item.what))), prose(item.closed)
    if item.by:
        return t("{item}: closed by {who}, {day}{why}", item=told, who=prose(item.by), day=day, why=why)
    return t("{item}: done, {day}{why}", item=told, day=day, why=why)


# ---- reading -------------------------------------------------------------------------------------------


def read(reports: Path, last: str, target: str | None = None, first: str | None = None) -> Items:
    """Return the items as they stood at the end of the month `last`; never raises for what is in the file."""
    path = reports / FILE
    empty = Items(first or last, last)
    try:
        document = yamlfile.read(path)
    except FileProblem as error:
        if not path.exists():
            return replace(empty, there=False)
        return replace(empty, problems=(str(error).replace(f"{path}:", f"{FILE}:"),))
    stamps = {runfolder.run_id(f): f.name.split("-", 1)[0] for f in runfolder.list_runs(reports / "runs")}
    problems: list[str] = []
    entries = enumerate(_entries(document.data, problems), 1)
    found = [one for n, entry in entries if (one := _item(n, entry, stamps, _end(last), problems))]
    kept = [one for one in found if one.opened[:7] <= last and target in (None, one.target or target)]
    return replace(empty, all=tuple(kept), problems=tuple(problems))


def _end(month: str) -> str:
    """Return a stamp after all of a month's runs."""
    return f"{month.replace('-', '')}99"


def _stamp(day: str) -> str:
    """Return a day or a time of the file as a run's folder has it; a day counts to its end."""
    digits = re.sub(r"[-:]|\..*|Z$|\+.*", "", day)
    return f"{digits}Z" if "T" in digits else f"{digits}T999999Z"


def _day(stamp: str) -> str:
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"


def _entries(data: Json, problems: list[str]) -> list[Any]:
    listed = next((data[name] for name in ("actions", "items") if isinstance(data.get(name), list)), None)
    if listed is None:
        problems.append(t("{file}: holds no list `actions`", file=FILE))
    return listed or []


def _item(n: int, entry: Any, stamps: dict[str, str], end: str, problems: list[str]) -> Item | None:
    """Return an entry as it stood at the end; None, which is said, for one that cannot be read."""
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not _text(entry.get("what")):
        problems.append(t("{file}: entry {n} has no id, or does not say what is to be done", file=FILE, n=n))
        return None
    listed = entry.get("seen")
    runs: list[Any] = listed if isinstance(listed, list) else []
    known = sorted(stamps[str(run)] for run in runs if str(run) in stamps)
    opened = _map(entry.get("opened"))
    day = _text(opened.get("date"))[:10]
    began = stamps.get(str(opened.get("run"))) or (_stamp(day) if day else known[0] if known else "")
    # A run that nobody kept was seen when the item was opened, as far as anybody can tell.
    seen = sorted(when for run in runs if (when := stamps.get(str(run), began)) < end)
    closed = _last_closing(entry, stamps, seen, end)
    return Item(
        id=entry["id"],
        what=_text(entry.get("what")),
        priority=_text(entry.get("priority")),
        owner=_text(entry.get("owner")),
        due=_text(entry.get("due")),
        link=_text(entry.get("link")),
        proof=_map(entry.get("proof")),
        opened=_day(began),
        seen=tuple(_day(when) for when in seen),
        closed=_text(closed.get("date"))[:10],
        by=_text(closed.get("by")),
        reason=_text(closed.get("reason")),
        target=_text(entry.get("target")),
    )


def _last_closing(entry: Json, stamps: dict[str, str], seen: list[str], end: str) -> Json:
    """Return what had closed an item by then, and held; empty while it was open."""
    history = entry.get("history")
    closings = [*(history if isinstance(history, list) else []), entry.get("closed")]
    dated = [
        (stamps.get(str(one.get("run"))) or _stamp(_text(one["date"])), one)
        for one in closings
        if isinstance(one, dict) and one.get("date")
    ]
    before = [(when, one) for when, one in dated if when < end]
    when, last = max(before, key=lambda one: one[0], default=("", {}))
    return last if when and not any(again > when for again in seen) else {}


def _map(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)


# ---- without a store -----------------------------------------------------------------------------------


def proposed(runs: Sequence[Digest]) -> list[str]:
    """Return what the runs themselves propose, where nobody keeps action items."""
    return [line for run in runs for line in _proposed(run)]


def _proposed(run: Digest) -> list[str]:
    if run.ended != "completed":
        return [t("{what}: {outcome}, run {run}", what=code(run.drill), outcome=ending(run.outcome), run=link(run))]
    wanted = (Verdict.FAIL, Verdict.INCONCLUSIVE)
    return [
        t(
            "{check} of {drill}: {verdict}, run {run}",
            check=code(lessons.label(row)),
            drill=code(run.drill),
            verdict=prose(str(row["verdict"])),
            run=link(run),
        )
        for row in run.checks
        if row.get("verdict") in wanted
    ]
