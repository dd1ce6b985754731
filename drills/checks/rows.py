"""A row of a table of metrics: its value, judged by the side of its bound on which it should be."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drills.lang import mark, t
from drills.model import Json, Verdict

#: On which side of its bound a value is good; a value of verdict.json, said by `t`.
AT_MOST, AT_LEAST = mark("at most"), mark("at least")


@dataclass(frozen=True)
class Row:
    """One metric's answer."""

    metric: str
    verdict: Verdict
    value: float | str | None = None
    bound: float | str | None = None
    unit: str = ""
    reason: str = ""
    source: str = ""
    side: str = AT_MOST  # or AT_LEAST

    def to_json(self) -> Json:
        """Return the row as `detail.rows` of the check holds it."""
        return {**self.__dict__, "verdict": str(self.verdict)}


def judged(metric: str, value: float, side: str, bound: float, unit: str, reason: str, source: str) -> Row:
    """Return a row with a value, judged by the side of the bound on which it should be."""
    good = value <= bound if side == AT_MOST else value >= bound
    return Row(metric, Verdict.PASS if good else Verdict.FAIL, _number(value), bound, unit, reason, source, side)


def figure(value: float | str | None, unit: str) -> str:
    """Return a value or bound as people read it."""
    if not isinstance(value, int | float):
        return t("no value") if value is None else str(value)
    return f"{100 * value:.3g} %" if unit == "ratio" else f"{value:.4g} {'' if unit == 'count' else unit}".strip()


def _number(value: float) -> float | str:
    return round(value, 6) if math.isfinite(value) else "inf"


def worst(found: list[Row]) -> list[Row]:
    """Return the rows that make the verdict: failed ones, else inconclusive ones, else none."""
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        if chosen := [row for row in found if row.verdict is verdict]:
            return chosen
    return []
