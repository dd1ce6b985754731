"""metrics: a table of metrics against their alarm thresholds: the preset `serving-minimum`, and PromQL of one's own.

One result; `detail.rows` has a row for each metric. A row that cannot be judged (the run is shorter than its window,
nobody configured it) is listed with its reason and stays out of the merge.
"""

from __future__ import annotations

from statistics import fmean
from typing import Literal

from pydantic import Field, model_validator

from drills.checks import serving_minimum
from drills.checks.base import Check, several
from drills.checks.rows import AT_LEAST, AT_MOST, Row, figure, judged, worst
from drills.checks.serving_minimum import Thresholds, Watched
from drills.checks.watching import blind
from drills.evidence import Evidence
from drills.lang import t
from drills.model import CheckResult, Json, Phase, Verdict
from drills.params import Duration, Line, Params, Share, Slug
from drills.strictjson import is_number

#: Queries are asked each 5 s; without an answer for longer a value may have come and gone.
ANSWER_GAP_S = 15.0
#: Nothing that is measured is larger.
VALUE_MAX = 1e18


class Business(Params):
    """promql: one series that says how the business does; falls: the share by which it may sink over the fault."""

    promql: Line
    falls: Share = 0.05


class OwnRow(Params):
    """name and promql; max or min; over: the alarm is only for a value that stays beyond it for so long."""

    name: Slug
    promql: Line
    max: float | None = Field(default=None, ge=-VALUE_MAX, le=VALUE_MAX, allow_inf_nan=False)
    min: float | None = Field(default=None, ge=-VALUE_MAX, le=VALUE_MAX, allow_inf_nan=False)
    over: Duration | None = None

    @model_validator(mode="after")
    def _has_one_bound(self) -> OwnRow:
        if (self.max is None) == (self.min is None):
            raise ValueError("write either max or min")
        if self.name == "business":
            raise ValueError("the name business is that of the business metric; choose another")
        return self


class MetricsParams(Params):
    """preset: the table; thresholds: other ones for it; business: its last row; rows: one's own."""

    preset: Literal["serving-minimum"] | None = None
    thresholds: Thresholds = Field(default_factory=Thresholds)
    business: Business | None = None
    rows: list[OwnRow] = Field(default_factory=list, max_length=100)

    @model_validator(mode="after")
    def _has_rows(self) -> MetricsParams:
        if self.preset is None and not self.rows and self.business is None:
            raise ValueError("nothing to judge; write preset: serving-minimum, or rows")
        names = [row.name for row in self.rows]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two rows are named {twice[0]}")
        return self


class Metrics(Check[MetricsParams]):
    """Judged from the baseline's begin to the end of the recovery: an alarm is an alarm whenever it goes off."""

    name = "metrics"
    Params = MetricsParams

    @classmethod
    def judge(cls, ev: Evidence, params: MetricsParams) -> CheckResult:
        """Judge every row, and merge: fail over inconclusive over pass."""
        watched = serving_minimum.watched(ev)
        if watched is None:
            return cls.unclear(t("there is no baseline to judge from"))
        rows = serving_minimum.rows(watched, params.thresholds) if params.preset else []
        if params.preset or params.business:
            rows.append(_business(watched, params.business))
        rows += [_own(watched, row) for row in params.rows]
        decided = [row for row in rows if row.verdict is not Verdict.NOT_JUDGED]
        causes = worst(rows)
        detail: Json = {"rows": [row.to_json() for row in rows], "watched_s": round(watched.length_s, 3)}
        row = {"value": len(causes), "bound": 0, "unit": "count", "n": len(decided), "detail": detail}
        left_out = [r.metric for r in rows if r.verdict is Verdict.NOT_JUDGED]
        if not decided:
            return cls.unclear(t("no row could be judged"), **row)
        if not causes:
            return cls.result(Verdict.PASS, _all_within(len(decided), left_out), **row)
        return cls.result(causes[0].verdict, t("; ").join(_said(r) for r in causes), **row)

    @classmethod
    def plan_errors(cls, params: MetricsParams, plan: Json) -> list[str]:
        """Refuse PromQL where there is no Prometheus to ask."""
        asked = [row.name for row in params.rows] + (["business"] if params.business else [])
        target = plan.get("target", {})
        if asked and target.get("kind") != "lab" and not target.get("prometheus"):
            return [f"the target '{target.get('name')}' names no prometheus to ask for {', '.join(asked)}"]
        return []


def _all_within(n: int, left_out: list[str]) -> str:
    if not left_out:
        return t("{n} metrics within their thresholds", n=n)
    return t("{n} metrics within their thresholds; not judged: {names}", n=n, names=several(left_out))


def _said(row: Row) -> str:
    """Say what a row found; of a failing one also value and bound."""
    if row.verdict is not Verdict.FAIL:
        return t("{metric}: {reason}", metric=row.metric, reason=row.reason)
    value, bound = figure(row.value, row.unit), figure(row.bound, row.unit)
    if row.side == AT_MOST:
        return t(
            "{metric}: {value}, at most {bound} may be ({reason})",
            metric=row.metric,
            value=value,
            bound=bound,
            reason=row.reason,
        )
    return t(
        "{metric}: {value}, at least {bound} may be ({reason})",
        metric=row.metric,
        value=value,
        bound=bound,
        reason=row.reason,
    )


def _answers(watched: Watched, name: str) -> list[Json]:
    return [sample for sample in watched.samples("promql") if sample.get("subject") == name]


def _unanswered(watched: Watched, name: str, begin: float, end: float) -> str:
    """Say that a query was not answered all the time; empty when it was."""
    asked = _answers(watched, name)
    good = [float(sample["mono"]) for sample in asked if sample["ok"] and is_number(sample["values"].get("value"))]
    errors = [str(sample.get("error")) for sample in asked if not sample["ok"]]
    why = t(" ({reason})", reason=errors[-1]) if errors else ""
    low, high = blind(good, begin, end)
    if not good:
        return t("the query never had a value{why}", why=why)
    if high - low <= ANSWER_GAP_S:
        return ""
    return t("the query had no value for {seconds:.0f} s{why}", seconds=high - low, why=why)


def _values(watched: Watched, name: str, begin: float, end: float) -> list[tuple[float, float]]:
    return [
        (float(s["mono"]), float(s["values"]["value"]))
        for s in _answers(watched, name)
        if s["ok"] and begin <= s["mono"] <= end and is_number(s["values"].get("value"))
    ]


def _own(watched: Watched, row: OwnRow) -> Row:
    """An alarm that needs `over` goes off when every value of so long a stretch is beyond the bound."""
    bound, need = row.max if row.max is not None else row.min, row.over or 0.0
    source = f"PromQL {row.promql}"
    if watched.length_s < need:
        few = t("needs {needed:g} s, {seconds:.0f} s were watched", needed=need, seconds=watched.length_s)
        return Row(row.name, Verdict.NOT_JUDGED, bound=bound, reason=few, source=source)
    if said := _unanswered(watched, row.name, watched.begin, watched.end):
        return Row(row.name, Verdict.INCONCLUSIVE, bound=bound, reason=said, source=source)
    values = _values(watched, row.name, watched.begin, watched.end)
    sign = 1.0 if row.max is not None else -1.0
    # The most that held for all of a stretch is the least inside it.
    held = [
        min(sign * value for mono, value in values[i:] if mono - begin <= need)
        for i, (begin, _) in enumerate(values)
        if watched.end - begin >= need
    ]
    if not held or bound is None:
        return Row(row.name, Verdict.INCONCLUSIVE, bound=bound, reason=t("no value"), source=source)
    value = sign * max(held)
    side = AT_MOST if sign > 0 else AT_LEAST
    reason = _extreme(side, need, len(values))
    return judged(row.name, value, side, bound, "", reason, source)


def _extreme(side: str, need_s: float, n: int) -> str:
    """Say of which values the one that is judged is the worst."""
    if not need_s:
        return t("the most of {n} values", n=n) if side == AT_MOST else t("the least of {n} values", n=n)
    if side == AT_MOST:
        return t("the most that it was for {seconds:g} s", seconds=need_s)
    return t("the least that it was for {seconds:g} s", seconds=need_s)


def _business(watched: Watched, business: Business | None) -> Row:
    """Compare the means of the baseline and of what came after the fault."""
    if business is None:
        nobody = t("not configured; name it in business.promql")
        return Row("business metric", Verdict.NOT_JUDGED, reason=nobody)
    ev, source = watched.ev, f"PromQL {business.promql}"
    before, after = ev.phase(Phase.BASELINE), ev.phase(Phase.RECOVERY)
    if before is None or after is None:
        nothing = t("there was no recovery phase")
        return Row("business metric", Verdict.INCONCLUSIVE, reason=nothing, source=source)
    means = []
    for span in (before, after):
        if said := _unanswered(watched, "business", span.begin, span.end):
            return Row("business metric", Verdict.INCONCLUSIVE, reason=said, source=source)
        means.append(fmean(value for _, value in _values(watched, "business", span.begin, span.end)))
    was, now = means
    if was <= 0:
        nothing = t("it was {value:.4g} in the baseline, so there is nothing to fall from", value=was)
        return Row("business metric", Verdict.INCONCLUSIVE, reason=nothing, source=source)
    fell = (was - now) / was
    reason = t("it fell: {before:.4g} in the baseline, {after:.4g} after the fault", before=was, after=now)
    side = AT_MOST
    return judged("business metric", fell, side, business.falls, "ratio", reason, source)
