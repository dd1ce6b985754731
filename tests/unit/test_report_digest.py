"""A run as a review sees it: how it ended, and what is put back, by whichever of its files are there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from drills import verdict
from drills.report import digest
from drills.report.digest import Digest
from tests.unit.runs import END, HIT, Run
from tests.unit.stored_month import cut_short, dirty, failed, passed, store, tear

STAMP = "20261101T020000Z"


def read(tmp_path: Path, run: Run, *, judge: bool = True) -> Digest:
    return digest.read(store(tmp_path, STAMP, "pod-kill", run, ident="0000000a", judge=judge))


def test_a_whole_run(tmp_path: Path) -> None:
    run = read(tmp_path, passed())
    assert (run.run, run.month, run.day, run.drill, run.target) == (
        "0000000a", "2026-11", "2026-11-01", "pod-kill", "lab"
    )  # fmt: skip
    assert (run.outcome, run.restored, run.left, run.measured, run.problems) == ("pass", "clean", "healthy", True, ())
    assert run.shown == "postmortem.md"


def test_a_killed_driver_leaves_a_run_that_is_cut_short_and_not_known_to_be_put_back(tmp_path: Path) -> None:
    folder = store(tmp_path, STAMP, "pod-kill", cut_short(), ident="0000000a", judge=False)
    tear(folder)
    run = digest.read(folder)
    assert (run.outcome, run.restored, run.left, run.measured) == ("cut short", "unknown", "unknown", False)
    assert run.problems == ()  # a torn last line is what a kill leaves, and no damage
    verdict.write(folder)
    assert digest.read(folder).outcome == "cut short"


def recovered(how: str) -> Run:
    run = cut_short()
    run.tell(HIT + 900, "revert.begin", receipt="r1", by="recover")
    run.tell(HIT + 901, "revert.end", receipt="r1", by="recover", restored=how, manual=[])
    run.tell(HIT + 902, "end", status="recovered", reason="")
    return run


@pytest.mark.parametrize("how", ["clean", "dirty", "unknown"])
def test_what_was_recovered_later_is_put_back_as_far_as_that_went(tmp_path: Path, how: str) -> None:
    assert read(tmp_path, recovered(how), judge=False).restored == how


def test_the_worst_of_several_receipts_counts(tmp_path: Path) -> None:
    run = dirty()
    run.tell(HIT - 1, "receipt", receipt={"id": "r2", "fault": "x", "victims": []})
    assert read(tmp_path, run, judge=False).restored == "dirty"
    run = passed()
    run.tell(HIT - 1, "receipt", receipt={"id": "r2", "fault": "x", "victims": []})
    assert read(tmp_path / "other", run, judge=False).restored == "unknown"


def test_the_first_end_says_how_a_run_ended(tmp_path: Path) -> None:
    run = failed()
    run.tell(END + 900, "end", status="stopped", reason="later")
    assert read(tmp_path, run).ended == "completed"


def test_without_a_journal_the_exit_code_says_how_it_ended(tmp_path: Path) -> None:
    folder = store(tmp_path, STAMP, "pod-kill", passed(), ident="0000000a")
    (folder / "journal.jsonl").unlink()
    for code, outcome in ((0, "pass"), (3, "refused"), (4, "stopped"), ("x", "pass"), (None, "pass")):
        said = json.loads((folder / "verdict.json").read_text()) | {"exit_code": code}
        (folder / "verdict.json").write_text(json.dumps(said))
        found = digest.read(folder)
        assert found.outcome == outcome
        assert "journal.jsonl" in found.problems[0]


def test_a_run_without_a_plan_has_the_name_of_its_folder(tmp_path: Path) -> None:
    folder = store(tmp_path, STAMP, "pod-kill", passed(), ident="0000000a")
    (folder / "plan.json").unlink()
    assert digest.read(folder).drill == "pod-kill"  # by the journal's header
    (folder / "journal.jsonl").unlink()
    assert (digest.read(folder).drill, digest.read(folder).target) == ("pod-kill", "?")


@pytest.mark.parametrize(
    "data",
    [
        {"status": ["x"]}, {"status": None}, {"status": {"a": 1}, "reason": []}, {},
    ],
)  # fmt: skip
def test_odd_ends_are_no_crash(tmp_path: Path, data: dict[str, Any]) -> None:
    run = passed()
    run.drop("end")
    run.tell(END + 3, "end", **data)
    found = read(tmp_path, run)
    assert found.outcome
    assert isinstance(found.reason, str)


def test_versions_are_words_and_lists_of_words(tmp_path: Path) -> None:
    run = passed()
    for data in run.of("header"):
        data["versions"] = {"vllm": "0.32.0", "images": ["a:1", "b:2"], "odd": {}, "none": None}
    assert read(tmp_path, run).versions == {"images": "a:1, b:2", "vllm": "0.32.0"}


def test_only_the_months_that_are_asked_for_are_read(tmp_path: Path) -> None:
    folder = store(tmp_path, STAMP, "pod-kill", passed(), ident="0000000a")
    for stamp in ("20251231T235959Z", "20260101T000000Z", "20261231T235959Z", "20270101T000000Z"):
        shutil.copytree(folder, tmp_path / "runs" / f"{stamp}-pod-kill-0000000b")
    assert [run.stamp[:8] for run in digest.every(tmp_path, "2026-01", "2026-12")] == [
        "20260101", "20261101", "20261231"
    ]  # fmt: skip
