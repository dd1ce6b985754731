"""The journal survives crashes, a full disk and several writers."""

import json
import math
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills import journal
from drills.clock import Clock
from drills.errors import EXIT_STOPPED, EXIT_USAGE, DrillError
from drills.model import Event, Restored

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


class Stopped(Clock):
    def wall(self) -> float:
        return 1796005995.123456

    def mono(self) -> float:
        return 12.3456789


def test_events_are_numbered_and_stamped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journal.Journal(path, Stopped()) as book:
        first = book.tell("phase", {"phase": "warmup"})
        second = book.tell("end", {"status": "completed"})
    assert first == Event(1, "2026-11-30T02:33:15.123456Z", 12.345679, "phase", {"phase": "warmup"})
    assert journal.read(path) == [first, second]
    assert path.read_text().splitlines()[1].startswith('{"n":2,"time":"2026-')


@given(st.lists(st.dictionaries(st.text(), VALUES), max_size=4))
def test_what_is_told_is_read_back(tmp_path_factory: pytest.TempPathFactory, told: list[dict[str, object]]) -> None:
    path = tmp_path_factory.mktemp("j") / "journal.jsonl"
    with journal.Journal(path) as book:
        for data in told:
            book.tell("x", data)
    assert [event.data for event in journal.read(path)] == told
    assert [event.n for event in journal.read(path)] == list(range(1, len(told) + 1))


def test_what_json_cannot_say_becomes_words(tmp_path: Path) -> None:
    with journal.Journal(tmp_path / "j") as book:
        book.tell("x", {"nan": math.nan, "inf": [math.inf], "set": {2, 1}, "path": Path("/a"), "word": Restored.CLEAN})
    assert journal.read(tmp_path / "j")[0].data == {
        "nan": "nan", "inf": ["inf"], "set": [1, 2], "path": "/a", "word": "clean",
    }  # fmt: skip


@pytest.mark.parametrize("torn", [b"{", b'{"n":3,"time":"2026', b'{"n":3,"time":"t","mono":1,"event":"e","data":{}}'])
def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_writer(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    with journal.Journal(path) as book:
        book.tell("a", {})
        book.tell("b", {})
    with path.open("ab") as file:
        file.write(torn)
    assert [event.n for event in journal.read(path)] == [1, 2]
    with journal.Journal(path) as book:
        book.tell("recovered", {})
    assert [(event.n, event.event) for event in journal.read(path)] == [(1, "a"), (2, "b"), (3, "recovered")]


def test_damage_elsewhere_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journal.Journal(path) as book:
        book.tell("a", {})
    path.write_bytes(b"not json\n" + path.read_bytes())
    with pytest.raises(DrillError, match=r"journal\.jsonl:1: not a journal line"):
        journal.read(path)
    with pytest.raises(DrillError, match=r"journal\.jsonl:1: not a journal line"):
        journal.Journal(path)


def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.symlink_to("/dev/full")
    with (
        journal.Journal(path) as book,
        pytest.raises(DrillError, match="No space left on device; free space") as caught,
    ):
        book.tell("a", {})
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_STOPPED
    assert book.last_n == 0


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(DrillError, match="cannot be opened: No such file"):
        journal.Journal(tmp_path / "nowhere" / "journal.jsonl")
    with pytest.raises(DrillError, match="cannot be read: No such file") as caught:
        journal.read(tmp_path / "journal.jsonl")
    assert caught.value.exit_code == EXIT_USAGE


def test_what_comes_after_its_end_is_written_nowhere(tmp_path: Path) -> None:
    made = journal.Journal(tmp_path / "journal.jsonl")
    number = made._fd
    made.close()
    with (tmp_path / "other").open("wb") as other:
        assert other.fileno() == number  # the lowest number that is free is given out again
        with pytest.raises(journal.JournalError, match="came after the end of its run"):
            made.tell("proxy.late", {})
        made.close()
        other.write(b"whole")
    assert (tmp_path / "other").read_bytes() == b"whole"
    assert (tmp_path / "journal.jsonl").read_bytes() == b""


def test_threads_share_one_numbering(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with journal.Journal(path) as book:
        threads = [threading.Thread(target=lambda: [book.tell("x", {}) for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event.n for event in journal.read(path)] == list(range(1, 81))
    assert all(json.loads(line) for line in path.read_text().splitlines())
