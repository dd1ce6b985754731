"""`actions.yaml` is people's file: what they wrote stays, what is wrong in it is named, two writers do not collide."""

from __future__ import annotations

import tempfile
import threading
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills import yamlfile
from drills.actions import follow, store
from drills.actions.items import urgent_first
from drills.errors import FileProblem
from drills.model import Json
from tests.unit.test_actions_follow import action, judged, month, ran

MINE = """\
# Our items; Monday's meeting goes through them.
actions:
  # the router again
  - id: failover-abc123
    what: "Replace the router (see RFC 12)"   # ada's words
    type: prevent
    priority: P1        # raised by the lead
    owner: ada
    due: 2026-12-24     # before the freeze
    link: https://tracker.example/123
    note: waits for the vendor
    target: lab
    proof:
      drill: pod-kill
      check: failover
      params: {within: 5.0}
    opened: {run: '00000001', date: 2026-11-01}
    seen:
      - '00000001'   # first time
    status: open
    closed:

  # not from a drill
  - {id: pager, what: Buy a pager, type: detect, priority: P4, opened: {date: 2026-11-02}, status: open}
"""


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    (tmp_path / "actions.yaml").write_text(MINE)
    return tmp_path


def text(reports: Path) -> str:
    return (reports / "actions.yaml").read_text()


def item(**more: Any) -> Json:
    """Return an item as it is added."""
    base: Json = {"id": "x", "what": "y", "type": "process", "priority": "P3", "opened": {"date": date(2026, 11, 1)}}
    return base | {"status": "open"} | more


# ---- what people wrote ----------------------------------------------------------------------------------


def test_words_comments_and_order_stay(reports: Path) -> None:
    judged(reports, ran(2), [ran(1)])
    after = text(reports)
    assert after == MINE.replace("# first time\n", "# first time\n      - '00000002'\n")


def test_done_writes_status_and_closed_and_nothing_else(reports: Path) -> None:
    judged(reports, ran(2, "pass"), [ran(1)])
    expected = MINE.replace(
        "status: open\n    closed:\n", "status: done\n    closed: {run: '00000002', date: 2026-11-02}\n"
    )
    assert text(reports) == expected


def test_what_a_run_proposes_does_not_overwrite_what_people_made_of_it(reports: Path) -> None:
    judged(reports, ran(2), [ran(1)], proposed=[action()])
    found = {one.id: one for one in store.read(reports)}["failover-abc123"]
    assert (found.what, found.type, found.priority) == ("Replace the router (see RFC 12)", "prevent", "P1")
    assert (found.owner, found.due, found.age) == ("ada", date(2026, 12, 24), 2)


def test_nothing_to_change_leaves_the_file_alone(reports: Path) -> None:
    (reports / "actions.yaml").write_text(odd := MINE.replace("001', date", "001',   date"))
    judged(reports, ran(9, drill="gpu-reset", check="pass"), [], proposed=[])
    assert text(reports) == odd


def test_an_item_that_has_no_proof_is_left_to_people(reports: Path) -> None:
    judged(reports, ran(2, "pass"), [ran(1)])
    assert {one.id: one.status for one in store.read(reports)} == {"failover-abc123": "done", "pager": "open"}


@pytest.mark.parametrize("empty", ["actions:\n", "actions: []\n", "# mine\nactions: []  # none yet\n"])
def test_an_empty_list_takes_items(tmp_path: Path, empty: str) -> None:
    (tmp_path / "actions.yaml").write_text(empty)
    with store.editing(tmp_path) as book:
        book.add(item())
        book.add(item(id="z"))
    assert [one.id for one in store.read(tmp_path)] == ["x", "z"]
    assert text(tmp_path).startswith("# mine") or not empty.startswith("#")


def test_no_file_is_no_item_and_a_new_one_says_what_it_is(tmp_path: Path) -> None:
    assert store.read(tmp_path) == ()
    month(tmp_path, ran(1))
    assert text(tmp_path).startswith("# Action items of the drills in this folder")


@pytest.mark.parametrize("run", ["12345678", "1e234567", "00000000", "0x123456", "true", "null"])
def test_run_ids_that_look_like_numbers_stay_text(tmp_path: Path, run: str) -> None:
    with store.editing(tmp_path) as book:
        book.add(item(seen=[run], opened={"run": run, "date": date(2026, 11, 1)}))
    [found] = store.read(tmp_path)
    assert (found.seen, found.opened.run) == ((run,), run)


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
                    | st.integers(-(2**63) + 1, 2**63 - 1),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
                    max_leaves=8))  # fmt: skip
def test_hostile_names_come_back_as_they_were_written(value: Any) -> None:
    shown = follow._shown({"v": value})
    with tempfile.TemporaryDirectory() as place:
        with store.editing(Path(place)) as book:
            proof = {"drill": "d", "check": "c", "params": shown}
            book.add(item(what=follow._name(f"say {value}"), proof=proof))
        [found] = store.read(Path(place))
    assert found.proof is not None
    assert found.proof.params == shown


# ---- what is wrong in it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("owner: ada", "onwer: ada", ":8: actions[0].onwer: unknown key 'onwer'; did you mean 'owner'?"),
        ("priority: P1 ", "priority: P0 ", ":7: actions[0].priority: unknown value 'P0'; did you mean 'P"),
        ("due: 2026-12-24 ", "due: soon ", ":9: actions[0].due: a day such as 2026-12-24"),
        ("status: open\n    closed", "status: closed\n    closed", ":4: actions[0]: status closed, so "),
        ("id: pager", "id: failover-abc123", ":24: actions[1].id: 'failover-abc123' is there twice"),
        ("    seen:", "    seen: [x]\n    seen:", ": seen: is there twice"),
        ("actions:", "action:", ": action: unknown key 'action'; did you mean 'actions'?"),
        ("date: 2026-11-02}", "date: 2026-11-32}", ""),
        ("- '00000001'   #", "- 12345678   #", "actions[0].seen[0]: text is expected, found a number"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(reports: Path, old: str, new: str, said: str) -> None:
    assert old in MINE
    (reports / "actions.yaml").write_text(MINE.replace(old, new, 1))
    with pytest.raises(FileProblem) as caught:
        store.read(reports)
    assert said in str(caught.value)
    with pytest.raises(FileProblem), store.editing(reports):
        pass


def test_what_cannot_be_read_again_is_not_written(reports: Path) -> None:
    deep: Any = {}
    for _ in range(yamlfile.DEPTH_MAX):
        deep = {"a": deep}
    with pytest.raises(FileProblem, match="nested too deep"), store.editing(reports) as book:
        book.add(item(proof={"drill": "d", "check": "c", "params": deep}))
    assert text(reports) == MINE


def test_an_error_meanwhile_writes_nothing(reports: Path) -> None:
    def spoil() -> None:
        with store.editing(reports) as book:
            book.add(item())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        spoil()
    assert text(reports) == MINE


# ---- who else writes ------------------------------------------------------------------------------------


def test_two_writers_lose_nothing(reports: Path) -> None:
    def write(name: str) -> None:
        with store.editing(reports) as book:
            book.add(item(id=name))

    writers = [threading.Thread(target=write, args=(f"n{i}",)) for i in range(8)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert {one.id for one in store.read(reports)} == {"failover-abc123", "pager", *(f"n{i}" for i in range(8))}


def test_who_holds_it_too_long_is_not_waited_for(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOCK_TIMEOUT_S", 0.0)
    busy = pytest.raises(FileProblem, match=r"\.actions\.lock: somebody else has held it")
    with store.editing(reports), busy, store.editing(reports):
        pass


def test_a_lock_is_made_through_no_link(reports: Path) -> None:
    (reports / ".actions.lock").symlink_to(reports / "elsewhere")
    with pytest.raises(FileProblem, match="cannot be made"), store.editing(reports):
        pass
    assert not (reports / "elsewhere").exists()


# ---- what comes first -----------------------------------------------------------------------------------


def test_escalated_items_come_first_then_the_urgent_then_the_old(tmp_path: Path) -> None:
    with store.editing(tmp_path) as book:
        book.add(item(id="late", priority="P1", status="done", closed={"run": "a", "date": date(2026, 11, 2)}))
        book.add(item(id="new", priority="P2"))
        book.add(item(id="old", priority="P2", seen=["a", "b"]))
        book.add(item(id="often", priority="P3", seen=["a", "b", "c"]))
        book.add(item(id="first", priority="P1"))
    assert [one.id for one in urgent_first(store.read(tmp_path))] == ["often", "first", "old", "new", "late"]
