"""Reads the big files of a run into columns: one row an arrival, one row an attempt.

Read by schema: unknown keys are ignored, missing ones are null. A torn last line is left out; any other
bad line raises a polars error. A file is read block by block, and of the times of the chunks only what is asked of
them is kept: a million arrivals of fifty chunks are a gigabyte on the disk.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from drills.model import GOOD, Outcome

#: What is asked of an attempt, and of a record; other keys are not read.
ATTEMPT = pl.Struct(
    {
        "attempt": pl.Int64,
        "id": pl.String,
        "sent": pl.Float64,
        "first_token": pl.Float64,
        "end": pl.Float64,
        "outcome": pl.String,
    }
)
REQUESTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "arrival": pl.Int64,
    "session": pl.Int64,
    "turn": pl.Int64,
    "intended": pl.Float64,
    "sent": pl.Float64,
    "headers": pl.Float64,
    "first_token": pl.Float64,
    "last_token": pl.Float64,
    "end": pl.Float64,
    "outcome": pl.String,
    "error": pl.String,
    "status": pl.Int64,
    "cached": pl.Boolean,
    "tokens_asked": pl.Int64,
    "tokens": pl.Int64,
    "finish": pl.String,
    "done": pl.Boolean,
    "lag": pl.Float64,
    "attempts": pl.List(ATTEMPT),
    "chunks": pl.List(pl.Float64),
    "dup": pl.Boolean,
}
LEDGER: dict[str, pl.DataType | type[pl.DataType]] = {
    "replica": pl.String,
    "role": pl.String,
    "id": pl.String,
    "method": pl.String,
    "path": pl.String,
    "start": pl.Float64,
    "connected": pl.Float64,
    "first_byte": pl.Float64,
    "last_byte": pl.Float64,
    "end": pl.Float64,
    "status": pl.Int64,
    "bytes": pl.Int64,
    "close": pl.String,
}
#: Stamps of one record of which the second is never before the first.
_IN_ORDER = (
    ("intended", "sent"),
    ("sent", "headers"),
    ("sent", "first_token"),
    ("intended", "first_token"),
    ("headers", "first_token"),
    ("first_token", "last_token"),
    ("last_token", "end"),
    ("sent", "end"),
)
#: Stamps are rounded, and a sleeper may wake a moment early.
_CLOCK_SLACK_S = 0.002
_STAMPS = (
    "intended",
    "sent",
    "headers",
    "first_token",
    "last_token",
    "start",
    "connected",
    "first_byte",
    "last_byte",
    "end",
)
#: Of a file that is parsed at a time.
_BLOCK_BYTES = 8 << 20
METRICS = ("ttft", "e2e", "max_gap", "tpot")


def requests(path: Path | None) -> pl.DataFrame:
    """Return the records of arrivals in order of arrival; empty without a file.

    In the place of `chunks` there is `gap_s`, the longest time between two of them: 0 with one, null with none.
    """
    # Lists of structs are built slowly from NDJSON; taken as text and decoded afterwards they cost half.
    taken = _read(path, REQUESTS | {"attempts": pl.String}, _decoded)
    return taken if _rising(taken["arrival"]) else taken.sort("arrival", maintain_order=True)


def _decoded(taken: pl.LazyFrame) -> pl.LazyFrame:
    gaps = pl.col("chunks").list.diff().list.max() / 1000.0
    gap = pl.when(pl.col("chunks").list.len() == 1).then(0.0).otherwise(gaps).alias("gap_s")
    return taken.with_columns(pl.col("attempts").str.json_decode(REQUESTS["attempts"]), gap).drop("chunks")


def ledger(path: Path | None) -> pl.DataFrame:
    """Return the attempts in order of their start; empty without a file."""
    taken = _read(path, LEDGER)
    return taken if _rising(taken["start"]) else taken.sort("start", "replica", maintain_order=True)


def _rising(column: pl.Series) -> bool:
    """Whether each value is above the one before, so that there is nothing to sort."""
    return not column.null_count() and bool((column.diff().drop_nulls() > 0).all())


def within(frame: pl.DataFrame, mono: float, span_s: float) -> pl.DataFrame:
    """Return the frame with stamps (mono, seconds) further than `span_s` from that instant as null: they are none."""
    stamps = [name for name in _STAMPS if name in frame.columns]
    far = (pl.col(stamps) - mono).abs() > span_s
    return frame.with_columns(pl.when(~far).then(pl.col(stamps)))


def with_arrivals(attempts: pl.DataFrame, run: str) -> pl.DataFrame:
    """Add `arrival` and `attempt` from ids `<run>-<arrival>-<attempt>`; null for requests that are not the run's."""
    parts = pl.col("id").str.extract_groups(r"^(?<id_run>.*)-(?<arrival>\d{1,18})-(?<attempt>\d{1,18})$")
    split = attempts.with_columns(parts.alias("parts")).unnest("parts")
    ours = pl.col("id_run") == run
    number = [pl.when(ours).then(pl.col(name)).cast(pl.Int64).alias(name) for name in ("arrival", "attempt")]
    return split.with_columns(number).drop("id_run")


def measured(frame: pl.DataFrame, ttft_bound_s: float) -> pl.DataFrame:
    """Add `good`, the latencies in seconds and `violation` of the TTFT bound.

    A latency that should be there and is not counts as infinitely slow, like that of a failed request.
    Null, and so left out, is only the `tpot` of an answer of one token.
    """
    good = pl.col("outcome").is_in(sorted(GOOD))
    first, last, began = pl.col("first_token"), pl.col("last_token"), pl.col("intended")
    tpot = pl.when(pl.col("tokens") > 1).then((last - first) / (pl.col("tokens") - 1))
    one_token = good & (pl.col("tokens") == 1)
    latencies = {"ttft": first - began, "e2e": pl.col("end") - began, "max_gap": pl.col("gap_s"), "tpot": tpot}
    inf = pl.lit(float("inf"))
    columns = [pl.when(good).then(value).fill_null(inf).alias(name) for name, value in latencies.items()]
    return (
        frame.with_columns(good.fill_null(value=False).alias("good"), *columns)
        .with_columns(pl.when(one_token).then(None).otherwise(pl.col("tpot")).alias("tpot"))
        .with_columns((pl.col("ttft") > ttft_bound_s).alias("violation"))
    )


def contradictions(frame: pl.DataFrame) -> int:
    """Return how many records cannot be true: their times run backwards, or an answer counts as good and was not."""
    if frame.is_empty():
        return 0
    backwards = [pl.col(b) - pl.col(a) < -_CLOCK_SLACK_S for a, b in _IN_ORDER]
    late = (pl.col("sent") - pl.col("intended") - pl.col("lag")).abs() > _CLOCK_SLACK_S
    unknown = pl.any_horizontal(pl.col("arrival", "intended", "lag").is_null())
    good = pl.col("outcome").is_in(sorted(GOOD))
    usual = pl.col("outcome") == Outcome.OK
    # A service that tells the usage tells it with every answer; one that does not leaves it out of all.
    usage_told = (usual & pl.col("tokens").is_not_null()).any()
    whole = (
        pl.col("done")
        & (pl.col("status") == 200)
        & pl.col("finish").is_not_null()
        & pl.col("error").is_null()
        & pl.all_horizontal(pl.col("sent", "end", "dup").is_not_null())
        & (pl.col("cached") | (pl.col("tokens") >= pl.col("tokens_asked")).fill_null(value=True))
        & (pl.col("attempts").list.last().struct.field("outcome").is_in(sorted(GOOD)))
    ).fill_null(value=False)
    untold = usual & pl.col("tokens").is_null() & usage_told
    wrong = [unknown, late, untold, good & ~whole, *backwards]
    return int(frame.select(pl.any_horizontal(*(e.fill_null(value=False) for e in wrong)).sum()).item())


def _read(
    path: Path | None,
    schema: dict[str, pl.DataType | type[pl.DataType]],
    made: Callable[[pl.LazyFrame], pl.LazyFrame] = lambda taken: taken,
) -> pl.DataFrame:
    """Return a file's lines as columns; `made` is what becomes of each block."""
    blocks = _blocks(path) if path is not None and path.is_file() else iter(())
    parts = [made(pl.scan_ndjson(io.BytesIO(block), schema=schema)).collect().shrink_to_fit() for block in blocks]
    return pl.concat(parts) if parts else made(pl.LazyFrame(schema=schema)).collect()


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield a file in pieces of whole lines; what follows the last line end is torn and left out."""
    rest: list[bytes] = []
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            end = block.rfind(b"\n") + 1
            if not end:
                rest.append(block)
                continue
            yield b"".join([*rest, block[:end]])
            rest = [block[end:]]
