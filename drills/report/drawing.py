"""What the figures of a run show, as plain data: seconds from the injection, a row for each arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import polars as pl

#: More points than this are thinned, and the caption says so.
POINTS_MAX = 20_000
GOOD = ("ok", "degraded")


class Point(NamedTuple):
    """One arrival: intended start and end in seconds from the injection, TTFT in seconds when it has one."""

    at_s: float
    end_s: float
    outcome: str
    ttft_s: float | None


COLUMNS = {"at_s": pl.Float64, "end_s": pl.Float64, "outcome": pl.String, "ttft_s": pl.Float64}


def arrivals(points: Iterable[Point]) -> pl.DataFrame:
    """Return points as the rows of a drawing."""
    return pl.DataFrame([tuple(point) for point in points], schema=COLUMNS, orient="row")


@dataclass(frozen=True)
class Span:
    """A phase, in seconds from the injection."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Mark:
    """An instant worth a line: injection, off, alert."""

    name: str
    at_s: float


@dataclass(frozen=True)
class Drawing:
    """What all figures over time share, and the arrivals (`COLUMNS`)."""

    arrivals: pl.DataFrame
    phases: Sequence[Span]
    marks: Sequence[Mark]
    sla_ttft_s: float | None
    rate_per_s: float | None
    origin: str = "the injection"

    @cached_property
    def limits(self) -> tuple[float, float]:
        """Return the first and last second shown."""
        begun = [at for at in (self.arrivals["at_s"].min(), self.arrivals["at_s"].max()) if isinstance(at, float)]
        begins = [*(span.begin_s for span in self.phases), *begun]
        ends = [*(span.end_s for span in self.phases), *begun]
        low, high = min(begins, default=0.0), max(ends, default=1.0)
        return low, max(high, low + 1.0)

    @cached_property
    def late(self) -> pl.Series:
        """Return for each arrival whether it was answered, and its first token came later than the SLA allows."""
        bound_s = pl.lit(self.sla_ttft_s, dtype=pl.Float64)
        said = pl.col("outcome").is_in(GOOD) & (pl.col("ttft_s") > bound_s).fill_null(value=False)
        return self.arrivals.select(said.alias("late"))["late"]

    @cached_property
    def counts(self) -> dict[tuple[str, bool], int]:
        """Return (outcome, late) → how many arrivals."""
        rows = self.arrivals.with_columns(self.late).group_by("outcome", "late").len().rows()
        return {(str(outcome), bool(late)): int(n) for outcome, late, n in rows}

    def number(self, outcome: str) -> int:
        """Return how many arrivals ended so."""
        return sum(n for (name, _), n in self.counts.items() if name == outcome)

    def ended(self) -> dict[tuple[str, bool, int], int]:
        """Return (outcome, late, second of its end) → how many arrivals."""
        second = pl.col("end_s").floor().cast(pl.Int64).alias("second")
        rows = self.arrivals.with_columns(self.late).group_by("outcome", "late", second).len().rows()
        return {(str(outcome), bool(late), int(at)): int(n) for outcome, late, at, n in rows}

    def offered(self) -> dict[int, int]:
        """Return second → how many arrivals were meant to start in it."""
        second = pl.col("at_s").floor().cast(pl.Int64).alias("second")
        return {int(at): int(n) for at, n in self.arrivals.group_by(second).len().rows()}


def thin(rows: pl.DataFrame, points_max: int = POINTS_MAX) -> pl.DataFrame:
    """Return at most `points_max` arrivals: every failure first, then good ones evenly in order of time.

    When failures alone are too many they are thinned evenly as well.
    """
    if rows.height <= points_max:
        return rows
    good = pl.col("outcome").is_in(GOOD)
    bad = _evenly(rows.filter(~good), points_max)
    return pl.concat([bad, _evenly(rows.filter(good), points_max - bad.height)]).sort("at_s", maintain_order=True)


def _evenly(rows: pl.DataFrame, number: int) -> pl.DataFrame:
    if rows.height <= number:
        return rows
    return rows[[index * rows.height // number for index in range(number)]]
