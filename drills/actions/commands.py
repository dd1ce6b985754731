"""What `drill actions` does: list, add, set, close. What is wrong is said in one line (64)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from drills import lock
from drills.actions import store
from drills.actions.items import CLOSED, DONE, FILE, OPEN, PRIORITIES, TYPES, Item, moment, urgent_first
from drills.errors import FileProblem, UsageError, nearest
from drills.model import Json
from drills.report import lessons, words
from drills.report.actions import GATE_ADVICE, LEFT, RESTORED

# ---- list -------------------------------------------------------------------------------------------------


def listed(reports: Path, *, every: bool = False) -> list[str]:
    """Return the items, some lines each; without `every` those that are open. Raises FileProblem."""
    items = store.read(reports)
    shown = [item for item in urgent_first(items) if every or item.status == OPEN]
    if not items:
        return [f"no action item in {reports / FILE}"]
    if not shown:
        return [f"no action item is open, {len(items)} done or closed; `drill actions list --all` shows them"]
    return [line for item in shown for line in (_head(item), f"    {item.what}", f"    {_words(item)}")]


def as_json(reports: Path, *, every: bool = False) -> list[str]:
    """Return the same as the lines of one JSON object."""
    items = [item.to_json() for item in urgent_first(store.read(reports)) if every or item.status == OPEN]
    return json.dumps({"actions": items}, indent=2).splitlines()


def state(item: Item) -> str:
    """Say how an item stands, and since when."""
    if item.status == OPEN:
        seen = f", seen in {words.count(item.age, 'drill')}" if item.age else ""
        return f"open{seen}{', escalated' if item.escalated else ''}"
    assert item.closed is not None
    day = f"{moment(item.closed.date):%Y-%m-%d}"
    if item.status == DONE:
        return (
            f"done on {day}, by run {item.closed.run}" if item.closed.run else f"done on {day}, says {item.closed.by}"
        )
    return f"closed on {day} by {item.closed.by or f'run {item.closed.run}'}: {item.closed.reason or 'no reason given'}"


def _head(item: Item) -> str:
    return f"{item.id}  {item.priority} {item.type}  {state(item)}"


def _words(item: Item) -> str:
    said = [f"owner: {item.owner or 'nobody'}", f"due: {item.due or 'no day'}"]
    said += [f"done when {proven(item)}"] if item.proof else []
    said += [item.link] if item.link else []
    return "; ".join(said)


def proven(item: Item) -> str:
    """Say what proves an item done."""
    assert item.proof is not None
    check, at = item.proof.check, f" at {item.target}" if item.target else ""
    if check == RESTORED:
        return f"the next drill{at} finds everything put back; `drill recover` does that"
    if check == LEFT:
        return f"a drill{at} ends with every replica answering"
    how = "holds" if check in GATE_ADVICE else "passes"
    return f"{lessons.label(item.proof.model_dump())} {how} in `drill run {item.proof.drill}`{at}"


# ---- change -----------------------------------------------------------------------------------------------


def add(
    reports: Path,
    text: str,
    kind: str,
    priority: str,
    given: Mapping[str, str | None],
    drill: str | None = None,
    check: str | None = None,
) -> str:
    """Add an item by hand; returns the line that says so. Raises UsageError, FileProblem."""
    if (drill is None) != (check is None):
        raise UsageError("--drill and --check go together: the check is looked for in runs of that drill")
    text = _line("what is to be done", text)
    item: Json = {"id": _id(text), "what": text, "type": _one_of("--type", kind, TYPES)}
    item |= {"priority": priority, "owner": None, "due": None, "link": None, "target": None}
    item |= _checked({**given, "priority": priority})
    proof = None if drill is None else {"drill": _line("--drill", drill), "check": _known(check), "params": {}}
    item |= {"proof": proof, "opened": {"date": _now()}, "seen": [], "status": OPEN, "closed": None}
    try:
        reports.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileProblem(reports, f"cannot be made: {error.strerror or error}") from None
    with store.editing(reports) as book:
        if item["id"] in book.items:
            raise UsageError(f"this is there already: {item['id']}, {state(book.items[item['id']])}")
        book.add(item)
    return f"added: {item['id']}"


def change(reports: Path, name: str, given: Mapping[str, str | None]) -> str:
    """Set what is given of an item, and take away what is given as an empty text. Raises UsageError, FileProblem."""
    values = _checked(given)
    if not values:
        raise UsageError("nothing to set: give --owner, --due, --priority or --link")
    with _existing(reports) as book:
        item = _found(book.items, name)
        book.change(item.id, values)
        said = "set" if book.changed else "is so already"
    return f"{item.id}: {', '.join(values)} {said}"


def close(reports: Path, name: str, reason: str, by: str | None = None) -> str:
    """Close an item with a reason. Raises UsageError, FileProblem."""
    if not reason.strip():
        raise UsageError("--reason is needed: what closes it where no check proves it?")
    closed = {"by": _line("--by", by or lock.owner()), "date": _now(), "reason": _line("--reason", reason)}
    with _existing(reports) as book:
        item = _found(book.items, name)
        if item.status != OPEN:
            raise UsageError(f"{item.id} is not open: {state(item)}")
        book.change(item.id, {"status": CLOSED, "closed": closed})
    return f"closed: {item.id}"


def _existing(reports: Path) -> Any:
    if not (reports / FILE).exists():
        raise FileProblem(reports / FILE, "is not there, so there is no action item yet")
    return store.editing(reports)


def _found(items: Mapping[str, Item], name: str) -> Item:
    """Return the item of that id, or the only one whose id begins so. Raises UsageError."""
    found = [item for item in items.values() if item.id == name] or [
        item for item in items.values() if name and item.id.startswith(name)
    ]
    if len(found) > 1:
        raise UsageError(f"{name}: begins the ids of {', '.join(item.id for item in found)}; write more of it")
    if not found:
        raise UsageError(f"there is no action item {name!r}{nearest(name, items)}")
    return found[0]


def _checked(given: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the values of options; None for one that is given as an empty text. Raises UsageError."""
    found: dict[str, Any] = {}
    for key, text in given.items():
        if text is None:
            continue
        if key == "priority":
            found[key] = _one_of("--priority", text, PRIORITIES)
        elif key == "due":
            found[key] = _day(text) if text else None
        else:
            found[key] = _line(f"--{key}", text) if text else None
    return found


def _one_of(flag: str, text: str, valid: tuple[str, ...]) -> str:
    if text not in valid:
        raise UsageError(f"{flag} {text}: is none of {', '.join(valid)}")
    return text


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--due {text}: a day such as 2026-12-24 is expected") from None


def _line(what: str, text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise UsageError(f"{what}: one line of printable text is expected")
    return text.strip()


def _known(check: str | None) -> str:
    from drills.checks import CHECKS

    if check not in CHECKS:
        raise UsageError(f"--check {check}: there is no such check{nearest(str(check), CHECKS)}")
    return str(check)


def _id(text: str) -> str:
    slug = "-".join(re.findall(r"[a-z0-9]+", text.lower())[:4])[:30].strip("-")
    return f"{slug or 'item'}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:6]}"


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
