"""Action items in reviews: as they stood at the end of the review's last month, aged in drills, read defensively."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drills.report import items
from drills.report.items import Items

#: run → the folder that it has
RUNS = {"0000000a": "20260901T020000Z", "0000000b": "20261001T020000Z", "0000000c": "20261101T020000Z",
        "0000000d": "20261201T020000Z"}  # fmt: skip


def entry(name: str = "failover-1", seen: str = "", **more: Any) -> dict[str, Any]:
    """Return an open item that these runs saw, by their last letters."""
    runs = [f"0000000{letter}" for letter in seen]
    base: dict[str, Any] = {
        "id": name, "what": "Make the router stop", "type": "mitigate", "priority": "P2", "owner": None, "due": None,
        "link": None, "target": "lab", "proof": {"drill": "pod-kill", "check": "failover", "params": {}},
        "opened": {"date": RUNS[runs[0]][:4] + "-" + RUNS[runs[0]][4:6] + "-01" if runs else "2026-10-05"},
        "seen": runs, "status": "open", "closed": None,
    }  # fmt: skip
    return base | more


def read(tmp_path: Path, *entries: Any, month: str = "2026-11", first: str | None = None) -> Items:
    for run, stamp in RUNS.items():
        folder = tmp_path / "runs" / f"{stamp}-pod-kill-{run}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text("{}")
    (tmp_path / "actions.yaml").write_text(json.dumps({"actions": list(entries)}))
    return items.read(tmp_path, month, first=first)


def ids(found: list[items.Item]) -> list[str]:
    return [one.id for one in found]


def test_what_is_new_what_is_old_and_what_is_escalated(tmp_path: Path) -> None:
    found = read(tmp_path, entry("new", "c"), entry("old", "bc"), entry("older", "abc"), entry("by-hand"))
    assert ids(found.opened) == ["new"]
    assert ids(found.carried) == ["older", "old", "by-hand"]
    assert ids(found.escalated) == ["older"]
    view = found.view()
    assert view["counts"] == (1, 3, 1, 0)
    assert [row[0] for row in view["carried"]] == ["`old`", "`by-hand`"]
    assert [row[6] for row in view["carried"]] == ["2 drills", "by hand"]
    assert view["escalated"][0][5] == "`failover` passes in `pod-kill`"


def test_a_review_of_an_earlier_month_stays_as_it_was(tmp_path: Path) -> None:
    done = entry("one", "abc", status="done", closed={"date": "2026-12-01", "run": "0000000d"})
    assert ids(read(tmp_path, done, entry("later", "d")).escalated) == ["one"]
    september = read(tmp_path, done, entry("later", "d"), month="2026-09")
    assert (ids(september.open), september.all[0].seen) == (["one"], ("2026-09-01",))
    december = read(tmp_path, done, month="2026-12")
    assert (december.open, ids(december.ended)) == ([], ["one"])
    assert december.view()["ended"] == ["`one` (Make the router stop): done, 2026-12-01"]


def test_what_was_closed_by_hand_says_by_whom_and_why(tmp_path: Path) -> None:
    closed = {"date": "2026-11-20", "by": "ada", "reason": "the router is replaced"}
    found = read(tmp_path, entry("one", "b", status="closed", closed=closed))
    assert found.view()["ended"] == [
        "`one` (Make the router stop): closed by ada, 2026-11-20: the router is replaced"
    ]  # fmt: skip
    assert found.carried == []


def test_what_was_seen_again_is_open_again(tmp_path: Path) -> None:
    again = entry("one", "ac", history=[{"date": "2026-10-01", "run": "0000000b"}])
    assert ids(read(tmp_path, again, month="2026-10").ended) == ["one"]
    assert ids(read(tmp_path, again, month="2026-11").carried) == ["one"]


def test_what_was_done_by_a_run_of_the_same_day_is_told_from_what_was_seen_by_one(tmp_path: Path) -> None:
    extra = tmp_path / "runs" / "20261101T090000Z-pod-kill-0000000e"
    extra.mkdir(parents=True)
    (extra / "plan.json").write_text("{}")
    done = entry("one", "c", status="done", closed={"date": "2026-11-01", "run": "0000000e"})
    assert ids(read(tmp_path, done).ended) == ["one"]


def test_a_quarter_begins_earlier(tmp_path: Path) -> None:
    found = read(tmp_path, entry("one", "b"), entry("two", "a"), first="2026-10", month="2026-12")
    assert (ids(found.opened), ids(found.carried)) == (["one"], ["two"])


def test_a_run_whose_folder_is_gone_still_counts(tmp_path: Path) -> None:
    gone = entry("one", "bc")
    gone["seen"] = ["feedbeef", *gone["seen"]]
    assert len(read(tmp_path, gone).open[0].seen) == 3


def test_a_target_has_its_own_and_those_of_none(tmp_path: Path) -> None:
    read(tmp_path, entry("one", "c"), entry("two", "c", target="staging"), entry("three", "c", target=None))
    assert ids(items.read(tmp_path, "2026-11", "staging").open) == ["three", "two"]


@pytest.mark.parametrize(
    "bad",
    [3, None, {}, {"id": 3, "what": "x"}, {"id": "x"}, {"id": "x", "what": {}}],
)
def test_an_entry_that_is_none_is_named_and_keeps_no_other_out(tmp_path: Path, bad: Any) -> None:
    found = read(tmp_path, bad, entry("one", "c"))
    assert ids(found.open) == ["one"]
    assert found.problems == ("actions.yaml: entry 1 has no id, or does not say what is to be done",)


@pytest.mark.parametrize(
    "odd",
    [
        {"seen": 3}, {"seen": [{}, None, 4]}, {"opened": None}, {"opened": {"date": "soon"}}, {"closed": []},
        {"closed": {"date": "never", "run": {}}}, {"history": "x"}, {"history": [1, {"date": 2}]}, {"proof": 3},
        {"proof": {"check": ["x"], "drill": {}}}, {"priority": [], "owner": {}, "due": 7}, {"status": None},
    ],
)  # fmt: skip
def test_odd_values_end_no_review(tmp_path: Path, odd: dict[str, Any]) -> None:
    found = read(tmp_path, entry("one", "c") | odd, entry("two", "c"))
    assert "two" in ids(list(found.all))
    assert found.view()["there"]


@pytest.mark.parametrize("text", ["", "[", "- 1", "other: 3", "actions: 3"])
def test_a_file_that_is_none_of_ours_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "actions.yaml").write_text(text)
    found = items.read(tmp_path, "2026-11")
    assert found.there
    assert len(found.problems) == 1
    assert found.problems[0].startswith("actions.yaml:")


def test_no_file_is_no_problem(tmp_path: Path) -> None:
    found = items.read(tmp_path, "2026-11")
    assert (found.there, found.problems) == (False, ())
