"""The action items of a postmortem: what the run proposes, with what people and other runs made of it.

The reports' `actions.yaml` is an input like the run's own files: a report of a run that lies elsewhere, or beside
which there is none, shows the proposals alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from drills import runfolder
from drills.actions import store
from drills.actions.items import DONE, FILE, OPEN, Item
from drills.errors import FileProblem
from drills.lang import mark, t
from drills.report import actions, words
from drills.report.actions import Action
from drills.report.escape import code, plain, prose, spans
from drills.report.facts import Facts

Row = list[str]
#: The headers of the table, a message each.
PROPOSED: Final = mark("id | kind | what | done when")
KEPT: Final = mark("id | priority | type | owner | due | what | done when | seen in")
RUNS: Final = "runs"
IN_NOTES: Final = mark("Owner and date of each go into `notes.md`, beside this file.")
IN_STORE: Final = mark(
    "Owner, due day and priority are kept in `actions.yaml`, beside the runs: `drill actions set ID --owner NAME`."
)


@dataclass(frozen=True)
class Kept:
    """The items of the reports folder by id; None where there is no file. `problem` is why it cannot be used."""

    items: dict[str, Item] | None = None
    problem: str = ""


def view(facts: Facts) -> dict[str, Any]:
    """Return what the template shows; `unowned` is how many of the items have no owner, where those are kept."""
    kept, proposed = _kept(facts), actions.actions(facts)
    lines = []
    if kept.problem:
        lines.append(t("The action items of the reports cannot be shown: {reason}.", reason=prose(kept.problem)))
    shared: dict[str, Any] = {"no_actions": actions.none(facts), "action_lines": lines}
    if kept.items is None:
        rows = [[code(one.id), one.kind, spans(one.told), spans(one.done_when)] for one in proposed]
        return shared | {"actions": rows, "actions_header": _header(PROPOSED), "action_hint": t(IN_NOTES), "unowned": 0}
    found = [(one, kept.items.get(one.id)) for one in proposed]
    lines += _others(facts, kept.items, {one.id for one in proposed})
    return shared | {
        "actions": [_row(one, item) for one, item in found],
        "actions_header": _header(KEPT),
        "action_hint": t(IN_STORE),
        "unowned": sum(item is None or not item.owner for _, item in found),
    }


def _header(columns: str) -> Row:
    return t(columns).split(" | ")


def _kept(facts: Facts) -> Kept:
    folder = facts.source.folder.resolve()
    reports = folder.parent.parent
    try:
        if folder.parent.name != RUNS or not (reports / FILE).exists():
            return Kept()
        return Kept({item.id: item for item in store.read(reports)})
    except FileProblem as error:
        where = FILE if error.line is None else t("{file}, line {line}", file=FILE, line=error.line)
        return Kept(problem=f"{where}: {f'{error.key}: ' if error.key else ''}{error.what}")
    except OSError as error:
        return Kept(problem=f"{FILE}: {error.strerror or error}")


def _row(action: Action, item: Item | None) -> Row:
    """Return what people made of a proposal; what a run of a planted defect proposes is nobody's to do."""
    if item is None:
        return [code(action.id), action.priority, action.kind, "—", "—", *_texts(action.told, action), "—"]
    told = action.told
    if item.what != action.what:
        told = t("{what} (this run: {told})", what=actions.in_words(item.what), told=action.told)
    told += t("; tracked at {link}", link=plain(item.link)) if item.link else ""
    owner, due = prose(item.owner or t("nobody yet")), str(item.due or t("no day yet"))
    return [code(item.id), item.priority, item.type, owner, due, *_texts(told, action), _state(item)]


def _texts(told: str, action: Action) -> Row:
    return [spans(told), spans(action.done_when)]


def _state(item: Item) -> str:
    seen = words.count(item.age, "drill")
    if item.closed is None:
        return t("{drills}, **escalated**", drills=seen) if item.escalated else seen
    by = t("run {run}", run=code(item.closed.run)) if item.closed.run else prose(item.closed.by)
    day = item.closed.date[:10]
    if item.status == DONE:
        return t("{drills}; done on {day} by {who}", drills=seen, day=day, who=by)
    return t("{drills}; closed on {day} by {who}", drills=seen, day=day, who=by)


def _others(facts: Facts, items: dict[str, Item], proposed: set[str]) -> list[str]:
    """Return what this run proves done, and what it found no answer to."""
    run, drill, target = runfolder.run_id(facts.source.folder.resolve()), facts.name, facts.target.get("name")
    done = [one for one in items.values() if any(by and by.run == run for by in (one.closed, *one.history))]
    mine = [one for one in items.values() if one.proof and one.proof.drill == drill and one.target in (None, target)]
    still = [one for one in mine if one.status == OPEN and one.id not in proposed]
    lines = []
    if done:
        lines.append(t("Done, as this run shows: {items}.", items=words.listed([_named(one) for one in done])))
    if still:
        told = [_named(one) + (t(" (**escalated**)") if one.escalated else "") for one in still]
        lines.append(t("Still open, and not decided by this run: {items}.", items=words.listed(told)))
    return lines


def _named(item: Item) -> str:
    return t("{item} ({what})", item=code(item.id), what=spans(actions.in_words(item.what)))
