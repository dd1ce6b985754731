"""Records: one line each, read back as written, a torn end is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drills.errors import FileProblem
from drills.load.record import Attempt, Record, Writer, read
from drills.model import Outcome


def record(arrival: int = 17) -> Record:
    first = Attempt(0, "run-17-0", 100.01, end=100.02, outcome=Outcome.ERROR, error="refused")
    last = Attempt(1, "run-17-1", 100.3, 100.31, 100.4, 100.9, 100.95, Outcome.OK, status=200)
    return Record(
        arrival=arrival,
        session=3,
        turn=2,
        intended=100.0,
        wall=1.8e9,
        outcome=Outcome.OK,
        tokens_asked=32,
        sent=100.01,
        headers=100.31,
        first_token=100.4,
        last_token=100.9,
        end=100.95,
        status=200,
        model="m",
        tokens=32,
        finish="length",
        done=True,
        lag=0.01,
        attempts=[first, last],
        chunks=[400.123456, 900.0],
    )


def test_a_record_comes_back_as_it_went() -> None:
    line = record().line()
    assert line.endswith("\n")
    back = Record.of(json.loads(line))
    assert back.chunks == [400.12, 900.0]
    back.chunks = record().chunks
    assert back == record()


def test_the_line_has_the_documented_keys() -> None:
    data = json.loads(record().line())
    assert list(data) == [
        "arrival",
        "session",
        "turn",
        "intended",
        "wall",
        "outcome",
        "tokens_asked",
        "sent",
        "headers",
        "first_token",
        "last_token",
        "end",
        "error",
        "status",
        "detail",
        "model",
        "cached",
        "tokens",
        "finish",
        "done",
        "lag",
        "attempts",
        "chunks",
        "dup",
    ]
    assert data["outcome"] == "ok"
    assert data["attempts"][0]["error"] == "refused"


def test_ttft_counts_from_the_intended_start() -> None:
    assert record().ttft_s == pytest.approx(0.4)


def write(path: Path, count: int) -> None:
    writer = Writer(path)
    for arrival in range(count):
        writer.write(record(arrival))
    assert writer.count == count
    writer.close()


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "requests.ndjson"
    write(path, 3)
    with path.open("a") as file:
        file.write('{"arrival":3,"sess')
    assert [r.arrival for r in read(path)] == [0, 1, 2]


@pytest.mark.parametrize("line", ["{torn\n", "[]\n", '{"arrival":1}\n', '{"outcome":"fine"}\n', "\n"])
def test_a_bad_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requests.ndjson"
    write(path, 1)
    with path.open("a") as file:
        file.write(line + record(2).line())
    with pytest.raises(FileProblem, match=r"requests\.ndjson:2: is no record"):
        list(read(path))


def test_the_writer_appends(tmp_path: Path) -> None:
    path = tmp_path / "requests.ndjson"
    write(path, 2)
    write(path, 2)
    assert [r.arrival for r in read(path)] == [0, 1, 0, 1]
