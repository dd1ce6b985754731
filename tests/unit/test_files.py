"""What lies in a run folder instead of a file: no link is followed, no pipe waited for, nothing left by a full disk."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from drills import evidence, files, journal, report, upkeep, verdict
from drills.errors import DrillError, FileProblem
from tests.unit import runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return runs.healthy(rate=2.0).write(tmp_path)


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow beyond 100 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


WRITERS: dict[str, Callable[[Path], object]] = {"verdict.json": verdict.write, "postmortem.md": report.write}


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_no_link_is_written_through(folder: Path, tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    for link in ("verdict.tmp", f".{name}.part", name):
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(theirs)
    WRITERS["verdict.json"](folder)
    WRITERS[name](folder)
    assert theirs.read_text() == "precious"
    assert (folder / name).is_file()
    assert not (folder / name).is_symlink()


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_full_disk_is_told_and_leaves_nothing(folder: Path, name: str) -> None:
    before = sorted(folder.iterdir())
    with full_disk(), pytest.raises(FileProblem, match=rf"/{name}: cannot be written: File too large$"):
        WRITERS[name](folder)
    assert sorted(folder.iterdir()) == before


def test_a_name_that_is_guessed_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (theirs := tmp_path / "theirs").write_text("precious")
    (tmp_path / ".mine.guessed").symlink_to(theirs)
    with pytest.raises(FileProblem, match="mine: cannot be written: File exists"):
        files.write(tmp_path / "mine", b"x")
    assert theirs.read_text() == "precious"


def test_a_folder_in_its_place_is_named(folder: Path) -> None:
    (folder / "verdict.json").unlink(missing_ok=True)
    (folder / "verdict.json").mkdir()
    with pytest.raises(FileProblem, match=r"/verdict\.json: cannot be written: Is a directory$"):
        verdict.write(folder)


def test_a_journal_that_cannot_be_read_is_named_although_its_verdict_cannot_be_taken_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict.write(folder)
    (folder / "journal.jsonl").unlink()
    (folder / "journal.jsonl").mkdir()

    def denied(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", denied)
    with pytest.raises(FileProblem, match=r"journal\.jsonl: the journal cannot be read: Is a directory$"):
        verdict.write(folder)


@pytest.mark.parametrize("name", ["plan.json", "journal.jsonl", "verdict.json", "requests.ndjson", "samples.ndjson"])
def test_a_pipe_keeps_nobody_waiting(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    for act in (evidence.read, verdict.judge, verdict.write, report.write):
        with suppress(FileProblem):
            act(folder)
    assert not journal.being_written(folder / "plan.json")


@pytest.mark.parametrize("name", ["plan.json", "journal.jsonl"])
def test_a_pipe_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(FileProblem, match=rf"/{name}: .*is no regular file"):
        verdict.write(folder)


def test_a_run_whose_journal_is_a_pipe_is_listed_as_not_finished(folder: Path) -> None:
    run = folder.parent / "runs" / f"20260101T000000Z-noop-{runs.RUN}"
    run.parent.mkdir()
    folder.rename(run)
    (run / "journal.jsonl").unlink()
    os.mkfifo(run / "journal.jsonl")
    assert list(upkeep.unfinished(run.parent.parent)) == [run]
    with pytest.raises(DrillError, match="cannot be opened"):
        journal.Journal(run / "journal.jsonl")
