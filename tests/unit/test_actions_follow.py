"""Runs carry action items forward: opened, seen again, done, opened again, by when they were and not when judged."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drills import cli, session, verdict
from drills.actions import follow, store
from drills.actions.follow import Ran, carry
from drills.actions.items import Item
from drills.model import Json
from drills.report.actions import GATE_ADVICE, Action
from tests.unit import runs

PARAMS = {"within": 5.0}


def ran(day: int, verdict: str = "fail", check: str | None = None, **more: Any) -> Ran:
    """Return a run of that day whose only check ended so."""
    row = {"check": "failover", "verdict": check or verdict, "params": PARAMS}
    base: Json = {"run": f"{day:08x}", "stamp": f"202611{day:02d}T100000Z", "drill": "pod-kill", "target": "lab"}
    base |= {"verdict": verdict, "restored": "clean", "left": "healthy", "mute": False, "rows": (row,)}
    return Ran(**(base | more))


def action(name: str = "failover-abc123", check: str = "failover", params: Json = PARAMS) -> Action:
    """Return what a run proposes."""
    proof = {"drill": "pod-kill", "check": check, "params": params}
    return Action(name, "mitigate", "P2", "Reroute sooner", "told", "done", "lab", proof)


def judged(reports: Path, now: Ran, others: Iterable[Ran] = (), proposed: list[Action] | None = None) -> Item | None:
    """Carry what a run says; a run whose check did not pass proposes the one item."""
    if proposed is None:
        proposed = [action()] if now.rows[0]["verdict"] in ("fail", "inconclusive") else []
    with store.editing(reports) as book:
        carry(book, now, proposed, others)
    return {item.id: item for item in store.read(reports)}.get("failover-abc123")


def month(reports: Path, *days: Ran) -> Item:
    """Judge runs one after the other; return the item in the end."""
    for n, one in enumerate(days):
        judged(reports, one, days[:n])
    [item] = store.read(reports)
    return item


# ---- from run to run ------------------------------------------------------------------------------------


def test_a_failing_check_opens_an_item(tmp_path: Path) -> None:
    item = month(tmp_path, ran(1))
    assert (item.type, item.priority, item.what, item.target) == ("mitigate", "P2", "Reroute sooner", "lab")
    assert item.proof is not None
    assert (item.proof.drill, item.proof.check, item.proof.params) == ("pod-kill", "failover", PARAMS)
    assert (item.opened.run, item.opened.date) == ("00000001", "2026-11-01")
    assert (item.seen, item.status, item.owner) == (("00000001",), "open", None)


def test_the_same_run_again_changes_not_a_byte(tmp_path: Path) -> None:
    month(tmp_path, ran(1), ran(2))
    before = (tmp_path / "actions.yaml").read_bytes()
    judged(tmp_path, ran(2), [ran(1)])
    judged(tmp_path, ran(1), [ran(2)])
    assert (tmp_path / "actions.yaml").read_bytes() == before


def test_the_third_drill_escalates(tmp_path: Path) -> None:
    assert not month(tmp_path, ran(1), ran(2, "inconclusive")).escalated
    item = month(tmp_path, ran(1), ran(2, "inconclusive"), ran(3))
    assert (item.age, item.escalated) == (3, True)


def test_a_pass_of_the_check_is_what_proves_it_done(tmp_path: Path) -> None:
    item = month(tmp_path, ran(1), ran(2, "pass"))
    assert item.closed is not None
    assert (item.status, item.closed.run, item.closed.date) == ("done", "00000002", "2026-11-02")
    assert item.seen == ("00000001",)


@pytest.mark.parametrize(
    "other",
    [
        ran(2, "inconclusive", check="pass"),  # not a valid measurement
        ran(2, "pass", check="not judged"),
        ran(2, "pass", drill="gpu-reset"),
        ran(2, "pass", target="staging"),
        ran(2, "pass", rows=({"check": "failover", "verdict": "pass", "params": {"within": 60.0}},)),
        ran(2, "pass", rows=({"check": "recovery", "verdict": "pass", "params": PARAMS},)),
    ],
)
def test_nothing_else_proves_it(tmp_path: Path, other: Ran) -> None:
    assert month(tmp_path, ran(1), other).status == "open"


def test_a_run_that_was_cut_short_does_not_tell(tmp_path: Path) -> None:
    judged(tmp_path, ran(1))
    item = judged(tmp_path, ran(2, "inconclusive", early=True), [ran(1)], proposed=[])
    assert item is not None
    assert (item.seen, item.status) == (("00000001",), "open")


def test_what_fails_again_is_open_again_and_keeps_its_history(tmp_path: Path) -> None:
    item = month(tmp_path, ran(1), ran(2, "pass"), ran(3))
    assert (item.status, item.closed, item.seen) == ("open", None, ("00000001", "00000003"))
    assert [(one.run, one.date) for one in item.history] == [("00000002", "2026-11-02")]
    item = month(tmp_path, ran(1), ran(2, "pass"), ran(3), ran(4, "pass"))
    assert item.closed is not None
    assert (item.status, item.closed.run, len(item.history)) == ("done", "00000004", 1)


def test_judged_again_and_passed_it_is_seen_no_more(tmp_path: Path) -> None:
    month(tmp_path, ran(1), ran(2))
    item = judged(tmp_path, ran(2, "pass"), [ran(1)])
    assert item is not None
    assert item.closed is not None
    assert (item.seen, item.status, item.closed.run) == (("00000001",), "done", "00000002")
    item = judged(tmp_path, ran(1, "pass"), [ran(2, "pass")])
    assert item is not None
    assert (item.seen, item.status) == ((), "done")
    before = (tmp_path / "actions.yaml").read_bytes()
    judged(tmp_path, ran(1, "pass"), [ran(2, "pass")])
    assert (tmp_path / "actions.yaml").read_bytes() == before


def test_closed_by_hand_it_stays_so_for_older_runs_and_opens_for_newer_ones(tmp_path: Path) -> None:
    month(tmp_path, ran(1), ran(5))
    with store.editing(tmp_path) as book:
        closed = {"by": "ada", "date": "2026-11-05T12:00:00Z", "reason": "router replaced"}
        book.change("failover-abc123", {"status": "closed", "closed": closed})
    before = (tmp_path / "actions.yaml").read_bytes()
    judged(tmp_path, ran(5), [ran(1)])
    judged(tmp_path, ran(1), [ran(5)])
    judged(tmp_path, ran(6, "pass"), [ran(1), ran(5)])
    assert (tmp_path / "actions.yaml").read_bytes() == before, "whoever closed it stays who closed it"
    item = judged(tmp_path, ran(7), [ran(1), ran(5), ran(6, "pass")])
    assert item is not None
    assert (item.status, item.age) == ("open", 3)
    assert [(one.by, one.reason) for one in item.history] == [("ada", "router replaced")]


@given(st.lists(st.sampled_from(["fail", "inconclusive", "pass"]), min_size=1, max_size=6), st.randoms())
@example(["fail", "pass", "fail"], None)
def test_the_order_of_judging_does_not_matter(verdicts: list[str], chance: Any) -> None:
    days = [ran(day, one) for day, one in enumerate(verdicts, 1)]
    shuffled = list(days)
    if chance:
        chance.shuffle(shuffled)
    else:
        shuffled.reverse()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        for place, order in ((Path(one), days), (Path(other), shuffled)):
            for n, now in enumerate(order):
                judged(place, now, order[:n])
        assert store.read(Path(one)) == store.read(Path(other))


def test_runs_that_are_not_kept_stay_what_they_were(tmp_path: Path) -> None:
    month(tmp_path, ran(1), ran(2, "pass"), ran(3))
    item = judged(tmp_path, ran(4, "pass"))
    assert item is not None
    assert item.closed is not None
    assert (item.seen, item.closed.run) == (("00000001", "00000003"), "00000004")
    assert [one.run for one in item.history] == ["00000002"]


# ---- what is no check -----------------------------------------------------------------------------------


def test_put_back_is_proven_by_any_drill_of_the_target(tmp_path: Path) -> None:
    judged(tmp_path, ran(1, restored="dirty"), proposed=[action("pod-kill-restore-1", "restored", {})])
    with store.editing(tmp_path) as book:
        carry(book, ran(2, "pass", drill="gpu-reset", rows=()), [], [])
    [item] = store.read(tmp_path)
    assert item.status == "done"


def test_put_back_later_it_is_done_by_its_own_run(tmp_path: Path) -> None:
    proposed = [action("pod-kill-restore-1", "restored", {})]
    judged(tmp_path, ran(1, restored="unknown", rows=({"check": "x", "verdict": "pass"},)), proposed=proposed)
    judged(tmp_path, ran(1, restored="clean", rows=({"check": "x", "verdict": "pass"},)), proposed=[])
    [item] = store.read(tmp_path)
    assert item.closed is not None
    assert (item.status, item.closed.run) == ("done", "00000001")


def test_a_gate_is_proven_by_a_valid_measurement(tmp_path: Path) -> None:
    proposed = [action("generator_CPU-1", "generator CPU", {})]
    judged(tmp_path, ran(1, "inconclusive", broken=frozenset({"generator CPU"})), proposed=proposed)
    judged(tmp_path, ran(2, "inconclusive", broken=frozenset({"files whole"})), proposed=[])
    [item] = [one for one in store.read(tmp_path) if one.id.startswith("generator")]
    assert (item.age, item.status) == (1, "open")
    judged(tmp_path, ran(3, "fail"), proposed=[])
    [item] = [one for one in store.read(tmp_path) if one.id.startswith("generator")]
    assert item.status == "done"


# ---- from files -----------------------------------------------------------------------------------------


def folder(reports: Path, name: str, checks: list[Json], **plan: Any) -> Path:
    """Write and judge a run whose service is healthy."""
    run = runs.healthy()
    run.plan["experiment"]["checks"] = checks
    run.plan |= plan
    place = run.write(reports / "runs" / name)
    verdict.write(place)
    return place


STRICT: Json = {"check": "latency", "params": {"metric": "ttft", "quantile": 0.99, "cohort": "fault", "max": 0.01}}
FIRST, SECOND = "20261101T100000Z-pod-kill-aaaaaaaa", "20261108T100000Z-pod-kill-bbbbbbbb"


def test_a_run_of_a_reports_folder_keeps_its_items(tmp_path: Path) -> None:
    said = follow.followed(folder(tmp_path, FIRST, [STRICT]))
    [item] = store.read(tmp_path)
    assert said == ["action items: 1 opened; `drill actions list` shows them"]
    assert (item.opened.run, item.seen, item.priority) == ("aaaaaaaa", ("aaaaaaaa",), "P2")
    assert follow.followed(folder(tmp_path, SECOND, [STRICT])) == [
        "action items: 1 seen again; `drill actions list` shows them"
    ]
    assert follow.followed(tmp_path / "runs" / FIRST) == []


def test_a_run_that_passes_makes_no_file(tmp_path: Path) -> None:
    assert follow.followed(folder(tmp_path, FIRST, [{"check": "failover", "params": {"within": 60.0}}])) == []
    assert not (tmp_path / "actions.yaml").exists()


def test_a_planted_defect_opens_nothing(tmp_path: Path) -> None:
    assert follow.followed(folder(tmp_path, FIRST, [STRICT], defect="planted")) == []
    assert not (tmp_path / "actions.yaml").exists()


def test_a_run_that_was_cut_short_opens_an_item_for_that_alone(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("end")
    for event in ("left", "load.stopped", "load.stopping", "replica", "completion"):
        run.drop(event)
    place = run.write(tmp_path / "runs" / FIRST)
    found = json.loads(verdict.encode(verdict.write(place)))
    assert [row["check"] for row in found["checks"] if row["verdict"] == "inconclusive"]
    follow.followed(place)
    checks = {item.proof.check for item in store.read(tmp_path) if item.proof}
    assert "run completed" in checks
    assert checks <= {
        *GATE_ADVICE,
        "restored",
        "left",
        *(r["check"] for r in found["checks"] if r["verdict"] == "fail"),
    }


def test_a_refused_run_opens_nothing(tmp_path: Path) -> None:
    place = folder(tmp_path, FIRST, [STRICT])
    told = json.loads((place / "verdict.json").read_text()) | {"exit_code": 3, "verdict": "inconclusive"}
    (place / "verdict.json").write_text(json.dumps(told))
    assert follow.followed(place) == []


def test_a_run_that_lies_elsewhere_has_no_items(tmp_path: Path) -> None:
    place = folder(tmp_path, FIRST, [STRICT]).rename(tmp_path / "kept")
    assert follow.followed(place) == []
    assert not (tmp_path / "actions.yaml").exists()


def test_a_damaged_file_is_one_line_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "actions.yaml").write_text("actions:\n  - id: x\n    onwer: ada\n")
    [said] = follow.followed(folder(tmp_path, FIRST, [STRICT]))
    assert said.startswith(f"action items: not kept: {tmp_path}/actions.yaml:3: actions[0].onwer: unknown key 'onwer'")
    assert (tmp_path / "actions.yaml").read_text().endswith("onwer: ada\n")


def test_a_bug_of_ours_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("x")

    monkeypatch.setattr(follow, "carry", broken)
    assert follow.followed(folder(tmp_path, FIRST, [STRICT])) == ["action items: not kept: our bug: RuntimeError: x"]


# ---- where it is called from ----------------------------------------------------------------------------


def test_a_run_that_is_over_is_judged_carried_forward_and_reported(tmp_path: Path) -> None:
    place, said = folder(tmp_path, FIRST, [STRICT]), list[str]()
    (place / "verdict.json").unlink()
    assert session.conclude(place, said.append).verdict == "fail"
    [item] = store.read(tmp_path)
    assert said == ["action items: 1 opened; `drill actions list` shows them"]
    assert f"| `{item.id}` | P2 | mitigate | nobody yet |" in (place / "postmortem.md").read_text()


def test_items_that_cannot_be_kept_change_neither_verdict_nor_postmortem(tmp_path: Path) -> None:
    (tmp_path / "actions.yaml").mkdir()
    place, said = folder(tmp_path, FIRST, [STRICT]), list[str]()
    assert session.conclude(place, said.append).verdict == "fail"
    assert said == [f"action items: not kept: {tmp_path}/actions.yaml: is a folder; name a YAML file in it"]
    text = (place / "postmortem.md").read_text()
    assert "The action items of the reports cannot be shown: actions.yaml: is a folder" in text


def test_a_first_postmortem_opens_items_and_a_second_one_changes_nothing(tmp_path: Path) -> None:
    folder(tmp_path, FIRST, [STRICT])
    words = ["report", "aaaaaaaa", "--reports", str(tmp_path)]
    cli.app(words, standalone_mode=False)
    assert len(store.read(tmp_path)) == 1
    (tmp_path / "actions.yaml").unlink()
    cli.app(words, standalone_mode=False)
    assert store.read(tmp_path) == ()
