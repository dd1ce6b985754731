"""`drill actions`: what people see and change of the action items."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drills import cli
from drills.actions import commands, store
from drills.errors import FileProblem, UsageError
from tests.unit.test_actions_follow import action, judged, month, ran

ITEM = "failover-abc123"


def drill(*words: str, reports: Path) -> int:
    """Run a command of `drill actions`."""
    code = cli.app(["actions", *words, "--reports", str(reports)], standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_the_list_says_what_by_whom_and_what_proves_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    month(tmp_path, ran(1), ran(2), ran(3))
    assert drill("set", ITEM, "--owner", "ada", "--due", "2026-12-24", "--link", "https://t/1", reports=tmp_path) == 0
    assert drill("list", reports=tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{ITEM}: owner, due, link set",
        f"{ITEM}  P2 mitigate  open, seen in 3 drills, escalated",
        "    Reroute sooner",
        "    owner: ada; due: 2026-12-24; done when failover passes in `drill run pod-kill` at lab; https://t/1",
    ]


def test_what_is_no_check_is_said_in_words(tmp_path: Path) -> None:
    for name in ("restored", "left", "files whole"):
        bad = ran(1, "inconclusive", restored="dirty", left="degraded")
        judged(tmp_path, bad, proposed=[action(f"{name[:4]}-1", name, {})])
    said = [line.rpartition("done when ")[2] for line in commands.listed(tmp_path) if "done when" in line]
    assert sorted(said) == [
        "a drill at lab ends with every replica answering",
        "files whole holds in `drill run pod-kill` at lab",
        "the next drill at lab finds everything put back; `drill recover` does that",
    ]


def test_the_list_as_json_is_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    month(tmp_path, ran(1), ran(2))
    drill("list", "--json", reports=tmp_path)
    [item] = json.loads(capsys.readouterr().out)["actions"]
    assert (item["id"], item["age"], item["escalated"], item["seen"]) == (ITEM, 2, False, ["00000001", "00000002"])
    assert item["proof"] == {"drill": "pod-kill", "check": "failover", "params": {"within": 5.0}}


def test_what_is_done_is_shown_when_all_is(tmp_path: Path) -> None:
    month(tmp_path, ran(1), ran(2, "pass"))
    assert commands.listed(tmp_path) == [
        "no action item is open, 1 done or closed; `drill actions list --all` shows them"
    ]
    assert commands.listed(tmp_path, every=True)[0] == f"{ITEM}  P2 mitigate  done on 2026-11-02, by run 00000002"


def test_without_a_file_nothing_is_to_be_done(tmp_path: Path) -> None:
    assert commands.listed(tmp_path) == [f"no action item in {tmp_path}/actions.yaml"]
    assert json.loads("".join(commands.as_json(tmp_path))) == {"actions": []}


def test_an_item_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = tmp_path / "new"
    assert drill("add", "Buy a pager: now", "--type", "detect", "--priority", "P1", reports=reports) == 0
    [item] = store.read(reports)
    assert capsys.readouterr().out == f"added: {item.id}\n"
    assert (item.what, item.type, item.priority, item.proof) == ("Buy a pager: now", "detect", "P1", None)
    assert (item.age, item.status) == (0, "open")
    with pytest.raises(UsageError, match="this is there already"):
        commands.add(reports, "Buy a pager: now", "detect", "P1", {})


def test_an_item_by_hand_is_done_when_its_check_passes(tmp_path: Path) -> None:
    commands.add(tmp_path, "Reroute", "mitigate", "P2", {}, "pod-kill", "failover")
    [item] = store.read(tmp_path)
    later = {"stamp": "29991101T100000Z"}
    judged(tmp_path, ran(1, "pass"), proposed=[])
    assert store.read(tmp_path)[0].status == "open", "what passed before it was opened proves nothing"
    judged(tmp_path, ran(2, **later), proposed=[])
    assert store.read(tmp_path)[0].seen == ("00000002",)
    judged(tmp_path, ran(3, "pass", **later), [ran(2, **later)], proposed=[])
    assert (store.read(tmp_path)[0].id, store.read(tmp_path)[0].status) == (item.id, "done")


def test_closing_needs_a_reason(tmp_path: Path) -> None:
    month(tmp_path, ran(1))
    with pytest.raises(UsageError, match="--reason is needed") as caught:
        drill("close", ITEM, reports=tmp_path)
    assert caught.value.exit_code == 64
    assert drill("close", "failover", "--reason", "new router", "--by", "ada", reports=tmp_path) == 0
    [item] = store.read(tmp_path)
    assert item.closed is not None
    assert (item.status, item.closed.by, item.closed.reason) == ("closed", "ada", "new router")
    with pytest.raises(UsageError, match=f"{ITEM} is not open: closed on .* by ada: new router"):
        commands.close(tmp_path, ITEM, "again")


def test_an_empty_text_takes_a_word_away(tmp_path: Path) -> None:
    month(tmp_path, ran(1))
    commands.change(tmp_path, ITEM, {"owner": "ada", "priority": "P4"})
    assert commands.change(tmp_path, ITEM, {"owner": "ada"}) == f"{ITEM}: owner is so already"
    commands.change(tmp_path, ITEM, {"owner": ""})
    [item] = store.read(tmp_path)
    assert (item.owner, item.priority) == (None, "P4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "x", "--priority", "P9"), "--priority P9: is none of P1, P2, P3, P4"),
        (("add", "x", "--type", "fix"), "--type fix: is none of prevent, detect, mitigate, process"),
        (("add", "x", "--due", "soon"), "--due soon: a day such as 2026-12-24 is expected"),
        (("add", "x\ny"), "one line of printable text is expected"),
        (("add", "x", "--drill", "pod-kill"), "--drill and --check go together"),
        (("add", "x", "--drill", "a", "--check", "failovr"), "there is no such check; did you mean 'failover'?"),
        (("set", ITEM), "nothing to set"),
        (("set", "failovr-abc123", "--owner", "a"), f"no action item 'failovr-abc123'; did you mean '{ITEM}'?"),
        (("close", "", "--reason", "x"), "there is no action item ''"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_nothing_written(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    month(tmp_path, ran(1))
    before = (tmp_path / "actions.yaml").read_bytes()
    with pytest.raises(UsageError) as caught:
        drill(*words, reports=tmp_path)
    assert said in str(caught.value)
    assert (tmp_path / "actions.yaml").read_bytes() == before


def test_ids_may_be_cut_as_long_as_one_is_meant(tmp_path: Path) -> None:
    for text in ("do this", "do that"):
        commands.add(tmp_path, text, "process", "P3", {})
    with pytest.raises(UsageError, match=r"begins the ids of do-this-.*, do-that-.*; write more of it"):
        commands.change(tmp_path, "do-th", {"owner": "ada"})
    assert commands.change(tmp_path, "do-tha", {"owner": "ada"}).startswith("do-that-")


def test_there_is_nothing_to_set_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="is not there, so there is no action item yet"):
        commands.change(tmp_path, "x", {"owner": "ada"})
    assert list(tmp_path.iterdir()) == []
