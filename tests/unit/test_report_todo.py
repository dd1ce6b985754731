"""The action items of a postmortem: proposals, and what people and other runs made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from drills.actions import commands, follow, store
from drills.actions.items import Item
from drills.model import Json
from drills.report import run as report
from drills.report import todo
from drills.report.actions import Action
from drills.report.facts import Facts
from drills.report.source import read
from tests.unit.test_actions_follow import FIRST, SECOND, STRICT, folder
from tests.unit.test_report_actions import items
from tests.unit.test_report_escape import html, tags, texts
from tests.unit.test_report_headline import section

PARAMS: Json = STRICT["params"]
LOOSE: Json = STRICT | {"params": PARAMS | {"max": "sla"}}


def table(place: Path) -> str:
    """Return the section of action items, without drawing a figure."""
    view = todo.view(Facts(read(place)))
    rows = "\n".join(f"| {' | '.join(row)} |" for row in view["actions"]) or view["no_actions"]
    return "\n".join([" ".join(view["actions_header"]), rows, view["action_hint"], *view["action_lines"]])


def first(reports: Path) -> Path:
    """Return a run that failed and opened an item."""
    place = folder(reports, FIRST, [STRICT])
    follow.followed(place)
    return place


def test_without_the_file_a_postmortem_shows_proposals_alone(tmp_path: Path) -> None:
    place = folder(tmp_path, FIRST, [STRICT])
    assert table(place).startswith("id kind what done when\n| `latency-")
    assert "`notes.md`" in table(place)


def test_what_people_made_of_an_item_is_shown(tmp_path: Path) -> None:
    place = first(tmp_path)
    [item] = store.read(tmp_path)
    assert f"| `{item.id}` | P2 | mitigate | nobody yet | no day yet | Find what" in table(place)
    given = {"owner": "ada_l", "due": "2026-12-24", "priority": "P1", "link": "https://t.example/1"}
    commands.change(tmp_path, item.id, given)
    [row] = [line for line in table(place).splitlines() if line.startswith("| `")]
    assert row.startswith(
        f"| `{item.id}` | P1 | mitigate | ada\\_l | 2026-12-24 | Find what the slow requests waited for"
    )
    assert row.endswith(" | 1 drill |")
    assert "tracked at https&#58;//t.example/1" in row


def test_an_item_in_other_words_is_shown_in_them(tmp_path: Path) -> None:
    place = first(tmp_path)
    [item] = store.read(tmp_path)
    with store.editing(tmp_path) as book:
        book.change(item.id, {"what": "Tune the queue"})
    assert "Tune the queue (this run: Find what the slow requests waited for" in table(place)


def test_the_third_drill_is_marked(tmp_path: Path) -> None:
    first(tmp_path)
    for n in "bc":
        place = folder(tmp_path, f"2026110{5 if n == 'b' else 6}T100000Z-pod-kill-{n * 8}", [STRICT])
        follow.followed(place)
    assert "| 3 drills, **escalated** |" in table(place)


def test_what_a_run_proves_done_is_said_by_it(tmp_path: Path) -> None:
    before = first(tmp_path)
    [item] = store.read(tmp_path)
    with store.editing(tmp_path) as book:
        proof = item.model_dump(mode="json")["proof"]
        book.change(item.id, {"proof": {**proof, "params": {"metric": "ttft"}}})
    place = folder(tmp_path, SECOND, [LOOSE])
    follow.followed(place)
    assert f"Done, as this run shows: `{item.id}` (Find what the slow requests waited for" in table(place)
    assert "| 1 drill; done on 2026-11-08 by run `bbbbbbbb` |" in table(before)


def test_what_stays_open_and_was_not_decided_is_named(tmp_path: Path) -> None:
    first(tmp_path)
    place = folder(tmp_path, SECOND, [{"check": "accounted", "params": {}}])
    follow.followed(place)
    assert "Still open, and not decided by this run: `latency-" in table(place)


def test_a_damaged_file_is_one_line_and_the_report_is_made(tmp_path: Path) -> None:
    place = first(tmp_path)
    text = (tmp_path / "actions.yaml").read_text()
    (tmp_path / "actions.yaml").write_text(text.replace("owner:", "onwer:"))
    said = table(place)
    assert said.startswith("id kind what done when")
    assert "cannot be shown: actions.yaml, line 9: actions\\[0\\].onwer: unknown key 'onwer'" in said
    assert str(tmp_path) not in said


def test_the_same_files_give_the_same_bytes_and_the_file_is_one_of_them(tmp_path: Path) -> None:
    place = first(tmp_path)
    before = report.render(place)
    assert report.render(place) == before
    assert items(before[report.POSTMORTEM].decode())
    [item] = store.read(tmp_path)
    commands.change(tmp_path, item.id, {"owner": "ada"})
    after = section(report.render(place)[report.POSTMORTEM].decode(), "Action items")
    assert "| ada |" in after


@settings(max_examples=30)
@given(texts, texts)
@pytest.mark.filterwarnings("ignore")
def test_what_people_write_is_inert(what: str, owner: str) -> None:
    item = Item.model_validate(
        {
            "id": "x",
            "what": follow._name(what),
            "owner": follow._name(owner),
            "type": "process",
            "priority": "P1",
            "link": follow._name(what),
            "opened": {"date": "2026-11-01"},
            "status": "closed",
            "closed": {"by": follow._name(owner), "date": "2026-11-02", "reason": "r"},
        }
    )
    action = Action("x", "process", "P1", "w", "t", "d", "lab", {})
    row = todo._row(action, item)
    head = "| " + " | ".join("abcdefgh") + " |\n|" + " --- |" * 8 + "\n"
    shown = head + f"| {' | '.join(row)} |\n\n{todo._named(item)}"
    assert html(shown).count("<td>") == 8
    allowed = {"table", "thead", "tbody", "tr", "th", "td", "code", "p"}
    assert {tag.strip("</>") for tag in tags(shown)} <= allowed
