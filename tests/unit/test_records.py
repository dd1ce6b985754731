"""The big files, read block by block: the same columns whatever the blocks, and nothing of a torn last line."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from drills import records
from tests.unit import runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return runs.healthy(2.0).write(tmp_path)


@pytest.mark.parametrize("block", [1, 7, 100, 5000, 1 << 20])
def test_the_size_of_a_block_changes_nothing(folder: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = records.requests(folder / "requests.ndjson"), records.ledger(folder / "ledger.ndjson")
    monkeypatch.setattr(records, "_BLOCK_BYTES", block)
    found = records.requests(folder / "requests.ndjson"), records.ledger(folder / "ledger.ndjson")
    for frame, same in zip(found, wanted, strict=True):
        assert frame.equals(same)
        assert frame.height > 300


@pytest.mark.parametrize("block", [50, 1 << 20])
def test_a_torn_last_line_is_left_out(folder: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "requests.ndjson"
    whole = records.requests(path).height
    path.write_bytes(path.read_bytes() + b'{"arrival": 99')
    monkeypatch.setattr(records, "_BLOCK_BYTES", block)
    assert records.requests(path).height == whole


@pytest.mark.parametrize("content", [b"", b'{"arrival": 1'])
def test_a_file_without_a_whole_line_has_no_row(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "requests.ndjson"
    path.write_bytes(content)
    frame = records.requests(path)
    assert frame.is_empty()
    assert frame.schema == records.requests(None).schema


def test_a_line_that_is_none_is_an_error_in_any_block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "requests.ndjson"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:200], b"{no JSON}\n", *lines[200:]]))
    monkeypatch.setattr(records, "_BLOCK_BYTES", 4096)
    with pytest.raises(pl.exceptions.PolarsError):
        records.requests(path)


def test_of_the_chunks_the_longest_gap_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "requests.ndjson"
    chunks: list[list[float] | None] = [[100.0, 150.0, 900.0, 910.0], [100.0], [], None]
    path.write_text("".join(json.dumps({"arrival": n, "chunks": c}) + "\n" for n, c in enumerate(chunks)))
    frame = records.requests(path)
    assert frame["gap_s"].to_list() == [0.75, 0.0, None, None]
    assert "chunks" not in frame.columns


def test_what_came_out_of_order_is_put_in_order(folder: Path) -> None:
    for name, key, read in (("requests", "arrival", records.requests), ("ledger", "start", records.ledger)):
        path = folder / f"{name}.ndjson"
        wanted = read(path)
        path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
        assert read(path)[key].to_list() == wanted[key].to_list()
