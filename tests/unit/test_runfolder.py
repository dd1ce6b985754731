"""Run folders sort by time and are found by id, name, path, or as the latest."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from drills import runfolder
from drills.errors import FileProblem, Refused

BEGUN = datetime(2026, 11, 30, 2, 16, 35, tzinfo=UTC)


def a_run(reports: Path, minutes: int, run: str) -> Path:
    folder = runfolder.create(BEGUN + timedelta(minutes=minutes), "pod-kill", run, reports)
    (folder / "plan.json").write_text("{}")
    return folder


def test_a_folder_is_named_by_time_experiment_and_run() -> None:
    here = BEGUN.astimezone(timezone(timedelta(hours=8)))
    assert runfolder.folder_name(here, "gpu-reset", "0123abcd") == "20261130T021635Z-gpu-reset-0123abcd"


def test_run_ids_are_eight_digits_and_differ() -> None:
    ids = {runfolder.new_run_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch("[0-9a-f]{8}", run) for run in ids)


def test_runs_are_found(tmp_path: Path) -> None:
    second, first = a_run(tmp_path, 2, "bbbbbbbb"), a_run(tmp_path, 1, "aaaaaaaa")
    (tmp_path / "20261130T031635Z-pod-kill-cccccccc").mkdir()  # begun, but nothing was written
    assert runfolder.list_runs(tmp_path) == [first, second]
    assert runfolder.find_run("latest", tmp_path) == second
    assert runfolder.find_run("aaaaaaaa", tmp_path) == first
    assert runfolder.find_run(first.name, tmp_path) == first
    assert runfolder.find_run(str(first), tmp_path / "elsewhere") == first
    assert runfolder.run_id(first) == "aaaaaaaa"


def test_an_unknown_run_gets_the_nearest(tmp_path: Path) -> None:
    a_run(tmp_path, 1, "aaaaaaaa")
    with pytest.raises(FileProblem) as caught:
        runfolder.find_run("aaaaaaab", tmp_path)
    assert str(caught.value) == f"{tmp_path}: there is no run 'aaaaaaab'; did you mean 'aaaaaaaa'?"


def test_no_run_yet(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="there is no run yet; begin with: drill run noop"):
        runfolder.find_run("latest", tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "message"), [("./not/there", "not/there: is not there"), ("a/\0", r"'a/\\x00': is not there")]
)
def test_a_path_that_is_no_run(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(FileProblem, match=message):
        runfolder.find_run(name, tmp_path)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match=r"is not a run folder: neither plan\.json nor journal\.jsonl is in it"):
        runfolder.find_run(f"{tmp_path}/", tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(Refused, match="cannot be made: Not a directory; name another place with --reports"):
        runfolder.create(BEGUN, "noop", "aaaaaaaa", tmp_path / "runs")


def test_the_latest_run_is_not_one_that_was_refused(tmp_path: Path) -> None:
    for name, status in (("20260101T000000Z-a-00000001", "completed"), ("20260102T000000Z-a-00000002", "refused")):
        (tmp_path / name).mkdir()
        end = f'{{"n":1,"event":"end","data":{{"status":"{status}","reason":""}}}}\n'
        (tmp_path / name / "journal.jsonl").write_text(end)
    assert runfolder.find_run("latest", tmp_path).name.endswith("00000001")
    assert runfolder.find_run("00000002", tmp_path).name.endswith("00000002")
