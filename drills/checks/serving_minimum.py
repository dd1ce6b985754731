"""The preset `serving-minimum`: what every LLM service should be watched for, each row judged from a run's own files.

Judged from the baseline's begin to the end of the load. A row says where its value was read, and under which name.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Self

import polars as pl
from pydantic import Field, ValidationInfo, model_validator

from drills import stats
from drills.checks import engines
from drills.checks.measures import seconds
from drills.checks.rows import AT_LEAST, AT_MOST, Row, judged
from drills.checks.watching import GPU_GAP_S, blind, deeds, watches_gpus
from drills.evidence import Evidence
from drills.lang import mark, t
from drills.model import Json, Outcome, Phase, Verdict
from drills.params import Duration, Params, Share, from_file

#: Below this many answers a window's rate swings by itself.
QPS_WINDOW_MIN_N = 50
#: No GPU is there any more at that temperature.
CELSIUS_MAX = 200.0


class Thresholds(Params):
    """The alarm's threshold of each row; a value beyond it fails."""

    qps_change: Share = 0.5
    qps_window: Annotated[Duration, Field(ge=1)] = 30.0
    p99_times_sla: float = Field(default=1.5, gt=0, le=1000, allow_inf_nan=False)
    gpu_utilisation_min: Share = 0.5
    gpu_utilisation_for: Duration = 300.0
    gpu_memory_max: Share = 0.95
    gpu_temperature_warn: float = Field(default=80.0, gt=0, le=CELSIUS_MAX, allow_inf_nan=False)
    gpu_temperature_max: float = Field(default=85.0, gt=0, le=CELSIUS_MAX, allow_inf_nan=False)
    gpu_temperature_act: float = Field(default=90.0, gt=0, le=CELSIUS_MAX, allow_inf_nan=False)
    prefix_hit_rate_min: Share = 0.5
    swapped_max: int = Field(default=0, ge=0, le=1_000_000)
    errors_max: Share = 0.01

    @model_validator(mode="after")
    def _in_order(self, info: ValidationInfo) -> Self:
        levels = {name: getattr(self, f"gpu_temperature_{name}") for name in ("warn", "max", "act")}
        for (low, below), (high, above) in pairwise(levels.items()):
            # Those that are not written are not meant; a plan holds all of them.
            said = from_file(info) and {f"gpu_temperature_{name}" for name in (low, high)} <= self.model_fields_set
            if said and below > above:
                raise ValueError(f"gpu_temperature_{high} {above:g} is below gpu_temperature_{low} {below:g}")
        return self


@dataclass(frozen=True)
class Watched:
    """The time that is judged, mono seconds, and the arrivals in it on whose answer the run waited."""

    ev: Evidence
    begin: float
    end: float

    @property
    def length_s(self) -> float:
        """Return how long it is."""
        return self.end - self.begin

    @property
    def arrivals(self) -> pl.DataFrame:
        """Return the measured records; what the run cut off itself at its end is left out."""
        late = self.end - self.ev.sla.e2e.value_s
        cut_by_us = (pl.col("outcome") == Outcome.CANCELLED) & (pl.col("intended") > late)
        inside = pl.col("intended").is_between(self.begin, self.end, closed="left")
        return self.ev.measured.filter(inside & ~cut_by_us)

    def samples(self, probe: str) -> list[Json]:
        """Return what a probe wrote in that time, failures to measure included."""
        return [s for s in self.ev.samples if s["probe"] == probe and self.begin <= s["mono"] <= self.end]


def watched(ev: Evidence) -> Watched | None:
    """Return the time that is judged; None without a baseline."""
    span = ev.phase(Phase.BASELINE)
    return None if span is None or ev.ended <= span.begin else Watched(ev, span.begin, ev.ended)


def rows(found: Watched, limits: Thresholds) -> list[Row]:
    """Return all rows but the business metric, which only the user knows."""
    return [row(found, limits) for row in _ROWS]


# ---- requests ------------------------------------------------------------------------------------------


_CHANGED = {
    "offered": mark("offered: {before:.3g}/s, then {after:.3g}/s, in windows of {window:g} s"),
    "answered": mark("answered: {before:.3g}/s, then {after:.3g}/s, in windows of {window:g} s"),
}


def _qps(found: Watched, limits: Thresholds) -> Row:
    """Both what was offered and what was answered, by intended start, between windows that follow each other."""
    source, window = "requests.ndjson", limits.qps_window
    count = int(found.length_s / window)
    if count < 2:
        few = t(
            "needs two windows of {window:g} s, {seconds:.0f} s were watched", window=window, seconds=found.length_s
        )
        return Row("QPS", Verdict.NOT_JUDGED, reason=few, source=source)
    arrivals = found.arrivals
    changes = []
    for word, frame in (("offered", arrivals), ("answered", arrivals.filter(pl.col("good")))):
        times = frame["intended"].sort().to_list()
        edges = [bisect_left(times, found.begin + n * window) for n in range(count + 1)]
        sizes = [high - low for low, high in pairwise(edges)]
        if word == "offered" and min(sizes) < QPS_WINDOW_MIN_N:
            few = t(
                "{n} arrivals in a window of {window:g} s; {needed} are needed to see a change",
                n=min(sizes),
                window=window,
                needed=QPS_WINDOW_MIN_N,
            )
            return Row("QPS", Verdict.INCONCLUSIVE, reason=few, source=source)
        changes += [(abs(b - a) / a if a else math.inf, word, a / window, b / window) for a, b in pairwise(sizes)]
    change, word, before, after = max(changes)
    reason = t(_CHANGED[word], before=before, after=after, window=window)
    return judged("QPS", change, AT_MOST, limits.qps_change, "ratio", reason, source)


def _p99(metric: str, words: str) -> Callable[[Watched, Thresholds], Row]:
    def row(found: Watched, limits: Thresholds) -> Row:
        """As an alarm has it: what was measured beside its threshold. Failed requests are infinitely slow."""
        bound = limits.p99_times_sla * getattr(found.ev.sla, metric).value_s
        values = found.arrivals.select(pl.col(metric).drop_nulls().sort())[metric].to_list()
        over = sum(1 for value in values if not value <= bound)
        p50, p99 = stats.nearest_rank(values, 0.5), stats.nearest_rank(values, 0.99)
        if p50 is None or p99 is None or len(values) < stats.claim_minimum(0.99):
            few = t(
                "{n} arrivals; no p99 is claimed from fewer than {needed}",
                n=len(values),
                needed=stats.claim_minimum(0.99),
            )
            return Row(f"p99 {words}", Verdict.INCONCLUSIVE, None, seconds(bound), "s", few, "requests.ndjson")
        reason = t(
            "p50 {p50}; {n} of {total} over {times:g} x SLA",
            p50=_ms(p50),
            n=over,
            total=len(values),
            times=limits.p99_times_sla,
        )
        return judged(f"p99 {words}", p99, AT_MOST, seconds(bound), "s", reason, "requests.ndjson")

    return row


def _ms(value_s: float) -> str:
    return f"{1000 * value_s:.0f} ms" if math.isfinite(value_s) else t("infinite")


def _errors(found: Watched, limits: Thresholds) -> Row:
    arrivals = found.arrivals
    n, bad = arrivals.height, arrivals.height - int(arrivals["good"].sum())
    reason = t("{n} of {total} arrivals were not answered", n=bad, total=n)
    if not n or 0 < n * limits.errors_max < 1:
        few = t(
            "{found}; one of so few is more than {percent:g} % already", found=reason, percent=100 * limits.errors_max
        )
        return Row("error ratio", Verdict.INCONCLUSIVE, None, limits.errors_max, "ratio", few, "requests.ndjson")
    return judged("error ratio", bad / n, AT_MOST, limits.errors_max, "ratio", reason, "requests.ndjson")


# ---- engines -------------------------------------------------------------------------------------------


def _hit_rate(found: Watched, limits: Thresholds) -> Row:
    metric, bound, names = "prefix hit rate", limits.prefix_hit_rate_min, engines.primaries(found.ev)

    def risen(name: str) -> float | None:
        return engines.rise(found.ev, names, name, found.begin, found.end)

    def row(rate: float, reason: str, source: str, *read: str) -> Row:
        if why := next(filter(None, (_unread(found, names, name) for name in read)), ""):
            return Row(metric, Verdict.INCONCLUSIVE, None, bound, "ratio", why, source, AT_LEAST)
        return judged(metric, rate, AT_LEAST, bound, "ratio", reason, source)

    hits, asked, prompts = risen("prefix_hits"), risen("prefix_queries"), risen("prompt_tokens")
    source = engines.found_as(found.ev, "prefix_hits", "prefix_queries") or "samples.ndjson"
    if hits is not None and asked:
        reason = t("{n:.0f} of {total:.0f} prompt tokens came from the cache", n=hits, total=asked)
        return row(hits / asked, reason, source, "prefix_hits", "prefix_queries")
    if asked == 0 and prompts:
        off = t("not one of {n:.0f} prompt tokens was looked up: the prefix cache is off", n=prompts)
        return row(0.0, off, source, "prefix_queries", "prompt_tokens")
    gauges = list(_told(found, "prefix_hit_rate", names))
    if gauges:  # of the old engine; -1 before the first request
        reason = t("mean of a gauge over the engines' whole life: this vLLM has no counters")
        source = engines.found_as(found.ev, "prefix_hit_rate")
        return row(sum(gauges) / len(gauges), reason, source, "prefix_hit_rate")
    return Row(metric, Verdict.INCONCLUSIVE, None, bound, "ratio", t("no engine told it"), source, AT_LEAST)


def _unread(found: Watched, names: list[str], name: str) -> str:
    """Say that an engine did not tell a value all the time; empty when all did."""
    return engines.unread(found.ev, names, name, found.begin, found.end)


def _told(found: Watched, name: str, replicas: list[str]) -> Iterator[float]:
    for sample in found.samples("vllm"):
        if sample["ok"] and sample.get("subject") in replicas:
            value = engines.number(sample["values"].get(name))
            if value is not None and value >= 0:
                yield value


def _swapped(found: Watched, limits: Thresholds) -> Row:
    """The old engine swapped out to the CPU; today's takes a request's blocks away and computes it again."""
    metric, names, bound = "swapped requests", engines.primaries(found.ev), limits.swapped_max

    def row(value: float, reason: str, name: str) -> Row:
        source = engines.found_as(found.ev, name) or "samples.ndjson"
        return _if_read(
            judged(metric, value, AT_MOST, bound, "count", reason, source),
            _unread(found, names, name),
        )

    if gauges := list(_told(found, "swapped", names)):
        return row(max(gauges), t("the most at once"), "swapped")
    preempted = engines.rise(found.ev, names, "preemptions", found.begin, found.end)
    if preempted is None:
        none = t("no engine told swapped requests nor preemptions")
        return Row(metric, Verdict.INCONCLUSIVE, bound=bound, unit="count", reason=none, source="samples.ndjson")
    return row(preempted, t("preemptions: this vLLM swaps nothing out, it computes again"), "preemptions")


def _if_read(row: Row, unread: str) -> Row:
    """What was seen to be too much stays so; that it was not too much takes somebody who looked all the time."""
    if not unread or row.verdict is Verdict.FAIL:
        return row
    return replace(row, verdict=Verdict.INCONCLUSIVE, value=None, reason=unread)


# ---- GPUs ----------------------------------------------------------------------------------------------


def _gpu(
    metric: str, read: Callable[[Json], float | None], judge: Callable[[Watched, Thresholds, _Seen], Row]
) -> Callable[[Watched, Thresholds], Row]:
    """Make a row from what the probe `gpu` read of each GPU that serves."""

    def row(found: Watched, limits: Thresholds) -> Row:
        if not watches_gpus(found.ev):
            return Row(metric, Verdict.NOT_JUDGED, reason=t("no GPU is watched at this target"))
        seen: _Seen = {}
        held = _held(found.ev)
        for sample in found.samples("gpu"):
            gpus = sample["values"].get("gpus") if sample["ok"] else None
            for uuid, gpu in gpus.items() if isinstance(gpus, dict) else ():
                value = read(gpu) if isinstance(gpu, dict) and (not held or str(uuid) in held) else None
                if value is not None and value >= 0:
                    seen.setdefault(str(uuid), []).append((float(sample["mono"]), value))
        if not seen:
            return Row(metric, Verdict.INCONCLUSIVE, reason=t("no GPU of a replica told it"), source="samples.ndjson")
        row = judge(found, limits, seen)
        return row if row.verdict is Verdict.NOT_JUDGED else _if_read(row, _unseen(found, seen))

    return row


#: (mono, value) of each look, by GPU.
_Seen = dict[str, list[tuple[float, float]]]


def _held(ev: Evidence) -> set[str]:
    """Return the GPUs that replicas hold, as far as the journal says who holds which."""
    return {str(gpu) for event in ev.of("completion", "replica") for gpu in event.data.get("gpus") or ()}


def _unseen(found: Watched, seen: _Seen) -> str:
    """Say which GPU of a replica was not looked at all the time, deeds left out; empty when all were."""
    for uuid in sorted(_held(found.ev).union(seen)):
        low, high = blind((mono for mono, _ in seen.get(uuid, ())), found.begin, found.end, deeds(found.ev))
        if high - low > GPU_GAP_S:
            return t(
                "{subject} did not tell it for {seconds:.0f} s, {allowed:g} s may be",
                subject=uuid,
                seconds=high - low,
                allowed=GPU_GAP_S,
            )
    return ""


def _value(name: str) -> Callable[[Json], float | None]:
    return lambda gpu: engines.number(gpu.get(name))


def _used(gpu: Json) -> float | None:
    used, total = engines.number(gpu.get("memory_used_mib")), engines.number(gpu.get("memory_total_mib"))
    return used / total if used is not None and total else None


def _extreme(seen: _Seen) -> tuple[float, str]:
    return max((value, uuid) for uuid, looks in seen.items() for _, value in looks)


def _utilisation(found: Watched, limits: Thresholds, seen: _Seen) -> Row:
    """The alarm is for a GPU that stays below for so long: in each such stretch it has to be above at least once."""
    metric, need, bound = "GPU utilisation", limits.gpu_utilisation_for, limits.gpu_utilisation_min
    if found.length_s < need:
        few = t("needs {needed:g} s, {seconds:.0f} s were watched", needed=need, seconds=found.length_s)
        return Row(metric, Verdict.NOT_JUDGED, None, bound, "ratio", few, "samples.ndjson", AT_LEAST)
    lowest: tuple[float, str] | None = None
    for uuid, looks in seen.items():
        for i, (begin, _) in enumerate(looks):
            inside = [value for mono, value in looks[i:] if mono - begin <= need]
            if looks[-1][0] - begin >= need - _GPU_INTERVAL_S and inside:
                highest = max(inside) / 100
                lowest = min(lowest or (highest, uuid), (highest, uuid))
    if lowest is None:
        few = t("no GPU was looked at for {seconds:g} s on end", seconds=need)
        return Row(metric, Verdict.INCONCLUSIVE, None, bound, "ratio", few, "samples.ndjson", AT_LEAST)
    reason = t("the most that {gpu} did in its idlest {seconds:g} s", gpu=lowest[1], seconds=need)
    return judged(metric, lowest[0], AT_LEAST, bound, "ratio", reason, "samples.ndjson")


_GPU_INTERVAL_S = 10.0  # two looks


def _memory(_: Watched, limits: Thresholds, seen: _Seen) -> Row:
    value, uuid = _extreme(seen)
    reason = t("the most, of {gpu}", gpu=uuid)
    return judged("GPU memory", value, AT_MOST, limits.gpu_memory_max, "ratio", reason, "samples.ndjson")


def _temperature(_: Watched, limits: Thresholds, seen: _Seen) -> Row:
    value, uuid = _extreme(seen)
    levels = (
        (limits.gpu_temperature_act, mark("level act (over {degrees:g} °C); the most, of {gpu}")),
        (limits.gpu_temperature_max, mark("level alarm (over {degrees:g} °C); the most, of {gpu}")),
        (limits.gpu_temperature_warn, mark("level warn (over {degrees:g} °C); the most, of {gpu}")),
    )
    reached = next(((bound, told) for bound, told in levels if value > bound), None)
    if reached is None:
        reason = t("no level reached; the most, of {gpu}", gpu=uuid)
    else:
        reason = t(reached[1], degrees=reached[0], gpu=uuid)
    return judged("GPU temperature", value, AT_MOST, limits.gpu_temperature_max, "°C", reason, "samples.ndjson")


_ROWS: tuple[Callable[[Watched, Thresholds], Row], ...] = (
    _qps,
    _p99("ttft", "TTFT"),
    _p99("max_gap", "max gap"),
    _gpu("GPU utilisation", _value("utilisation"), _utilisation),
    _gpu("GPU memory", _used, _memory),
    _gpu("GPU temperature", _value("temperature_c"), _temperature),
    _hit_rate,
    _swapped,
    _errors,
)
