"""The figures of a run: what each shows, its alternative text and its caption. Each only where there is data."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import polars as pl
from matplotlib.figure import Figure

from drills.checks import amplification
from drills.evidence import at
from drills.lang import mark, t
from drills.model import Json, Phase
from drills.report import detection, ecdf, figures, gpufigure, lanes, retries, stages, words
from drills.report.drawing import GOOD, POINTS_MAX, Drawing, Mark, Span
from drills.report.escape import prose
from drills.report.facts import Facts
from drills.strictjson import is_number

#: All that a run can have.
FILES = ("latency.svg", "outcomes.svg", "ecdf.svg", "attempts.svg", "queue.svg", "gpus.svg")
#: Alternative texts of figures name every phase and mark.
ALT_MAX = 600


@dataclass(frozen=True)
class Picture:
    """One figure as a page shows it; the texts are inert Markdown."""

    file: str
    alt: str
    caption: str
    draw: Callable[[], Figure]


def impact(facts: Facts, drawing: Drawing) -> list[Picture]:
    """Return what users saw: each request, each second, each cohort."""
    return [_latency(facts, drawing), _outcomes(facts, drawing), *_ecdf(facts)]


def replicas(facts: Facts, drawing: Drawing) -> list[Picture]:
    """Return what replicas and GPUs saw."""
    return [*_attempts(facts, drawing), *_queue(facts, drawing), *_gpus(facts, drawing)]


def drawn(facts: Facts) -> Drawing:
    """Return what all figures over time share."""
    zero, intended = facts.zero, pl.col("intended")
    rows = facts.evidence.requests.lazy().filter(intended.is_not_null()).select(
        (intended - zero).alias("at_s"),
        (pl.coalesce("end", "intended") - zero).alias("end_s"),
        pl.col("outcome").fill_null("None"),
        (pl.col("first_token") - intended).alias("ttft_s"),
    )  # fmt: skip
    rate = ((facts.experiment.get("load") or {}).get("arrivals") or {}).get("rate")
    return Drawing(
        arrivals=rows.collect(),
        phases=[Span(p.name, p.begin - facts.zero, p.end - facts.zero) for p in facts.phases],
        marks=_marks(facts),
        sla_ttft_s=facts.sla_ttft_s,
        rate_per_s=float(rate) if isinstance(rate, int | float) else None,
        origin=facts.zero_name,
    )


def _marks(facts: Facts) -> list[Mark]:
    marks = [Mark(_INJECTION, 0.0)] if facts.hit is not None else []
    off = [at(event) for event in facts.of("proof.off") if event.data.get("ok") is True]
    if facts.hit is not None and off:
        marks.append(Mark(_OFF, max(off) - facts.zero))
    served = [stage.at for stage in stages.downtime(facts) if stage.name == "first good completion"]
    marks += [Mark(_BACK, moment - facts.zero) for moment in served if moment is not None]
    alerts = detection.marks(facts)
    return marks + [Mark(name, moment - facts.zero) for name, moment in alerts]


#: What marks are called: in figures as it stands here, in their alternative texts in the reader's language.
_INJECTION, _OFF, _BACK = mark("injection"), mark("off"), mark("replica back")
_ALERTS = (
    mark("alert firing"), mark("alert notified"), mark("alert resolved"), mark("unexpected alert firing"),
    mark("unexpected alert notified"), mark("unexpected alert resolved"),
)  # fmt: skip


def _told(one: Mark) -> str:
    name = t(one.name) if one.name in (_INJECTION, _OFF, _BACK, *_ALERTS) else one.name
    return t("{what} {seconds:+.1f} s", what=name, seconds=one.at_s)


def _listed(parts: list[str]) -> str:
    return t(", ").join(parts) or t("none")


# ---- what users saw -----------------------------------------------------------------------------------


def _latency(facts: Facts, drawing: Drawing) -> Picture:
    total = drawing.arrivals.height
    bad = total - sum(drawing.number(name) for name in GOOD)
    shown = min(total, POINTS_MAX)
    alt = t(
        "Scatter of time to first token by time: {total:,} arrivals, {n:,} of them failed. Phases: {phases}. "
        "Marks: {marks}.",
        total=total,
        n=bad,
        phases=_phases(drawing),
        marks=_listed([_told(one) for one in drawing.marks]),
    )
    caption = t("Time to first token, log scale; each kind of failure has a row of its own.")
    if fault := facts.phase(Phase.FAULT):
        caption += t(" The fault phase ends at {offset}.", offset=words.offset(fault.end - facts.zero))
    if shown < total:
        caption += t(" Thinned: {n:,} of {total:,} points are drawn, failures first.", n=shown, total=total)
    return Picture("latency.svg", prose(alt, ALT_MAX), caption, lambda: figures.latency(drawing))


def _phases(drawing: Drawing) -> str:
    return _listed([span.name for span in drawing.phases])


def _outcomes(facts: Facts, drawing: Drawing) -> Picture:
    total = drawing.arrivals.height
    bad = total - sum(drawing.number(name) for name in GOOD)
    late = int(drawing.late.sum())
    sla = words.seconds(facts.sla_ttft_s)
    alt = t(
        "How the arrivals of each second ended, stacked: {n:,} of {total:,} were answered{late}. "
        "The line is the load offered. Phases: {phases}.",
        n=total - bad,
        total=total,
        late=t(", {n:,} of them later than the SLA of {seconds} to the first token", n=late, seconds=sla)
        if late
        else "",
        phases=_phases(drawing),
    )
    caption = t("Bars: arrivals by the second in which they ended. Line: arrivals begun in that second.")
    if late:
        caption += t(" Hatched on a tint: answered, the first token later than the SLA allows.")
    if bad:
        caption += t(" Hatched in white, or black: not answered.")
    return Picture("outcomes.svg", prose(alt, ALT_MAX), caption, lambda: figures.outcomes(drawing))


def _ecdf(facts: Facts) -> list[Picture]:
    cohorts = [_cohort(name, frame) for name, frame in facts.cohorts.items() if frame.height]
    if not any(len(cohort.ordered) for cohort in cohorts):
        return []
    sla = facts.evidence.sla.ttft
    told = [
        t(
            "{cohort}: {share} of {total:,} by {seconds}",
            cohort=cohort.name,
            share=words.share(cohort.share_by(sla.value_s)),
            total=cohort.n,
            seconds=words.seconds(sla.value_s),
        )
        for cohort in cohorts
    ]
    alt = t("Distribution of the time to first token by cohort. {cohorts}.", cohorts=words.clauses(told))
    caption = t(
        "Share of requests that had their first token by then, failures never; the axis is stretched towards 100 %. "
        "Shaded: exact 95 % intervals (Clopper–Pearson), point by point. The diamond is the promise: a curve that "
        "passes above it keeps it."
    )
    if max(len(cohort.ordered) for cohort in cohorts) > ecdf.RANKS_MAX:
        caption += t(" Drawn through {n} of the values, most of them in the tail.", n=ecdf.RANKS_MAX)
    return [Picture("ecdf.svg", prose(alt, ALT_MAX), caption, lambda: ecdf.ecdf(cohorts, sla.value_s, sla.quantile))]


def _cohort(name: str, frame: pl.DataFrame) -> ecdf.Cohort:
    got = frame["ttft"]
    return ecdf.Cohort(name, array("d", got.filter(got.is_finite()).sort()), frame.height)


# ---- what replicas saw ---------------------------------------------------------------------------------


def _lanes(facts: Facts, named: Iterable[str]) -> dict[str, lanes.Lane]:
    """Return name → lane, at most `LANES_MAX`; the others share one, whose name is empty."""
    gate = facts.evidence.last("gate")
    listed = (gate.data.get("replicas") or []) if gate else []
    roles = {str(replica["name"]): str(replica.get("role", "primary")) for replica in listed}
    fallbacks = {name for name, role in roles.items() if role != "primary"}
    names = sorted({*roles, *named}, key=lambda name: (name not in facts.victims, name in fallbacks, name))
    kept = names if len(names) <= lanes.LANES_MAX else names[: lanes.LANES_MAX - 1]
    found = {name: lanes.Lane(name, name in facts.victims, name in fallbacks) for name in kept}
    ordered = dict(sorted(found.items(), key=lambda item: (item[1].fallback, item[0])))
    return ordered | ({} if len(names) == len(kept) else {"": lanes.Lane(f"{len(names) - len(kept)} others")})


def _attempts(facts: Facts, drawing: Drawing) -> list[Picture]:
    ledger = facts.evidence.ledger.filter(pl.col("replica").is_not_null() & pl.col("start").is_not_null())
    if ledger.is_empty():
        return []
    second = (pl.col("start") - facts.zero).floor().cast(pl.Int64).alias("second")
    broke = (~pl.col("close").is_in(["complete", "client_gone", "open"])).fill_null(value=False)
    counted = ledger.group_by("replica", second).agg(pl.len(), broke.sum().alias("broke")).rows()
    found = _lanes(facts, {str(row[0]) for row in counted})
    came: dict[str, dict[int, int]] = {name: {} for name in found}
    bad: dict[str, dict[int, int]] = {name: {} for name in found}
    for replica, moment, n, broken in counted:
        name = replica if replica in found else ""
        came[name][moment] = came[name].get(moment, 0) + int(n)
        bad[name][moment] = bad[name].get(moment, 0) + int(broken)
    rows = [lanes.Attempts(lane, came[name], bad[name]) for name, lane in found.items()]
    total, lost = ledger.height, int(ledger.select(broke.sum()).item())
    alt = t(
        "Attempts per second at each replica: {total:,} in all, {n:,} broke. {replicas}.",
        total=total,
        n=lost,
        replicas=words.clauses(f"{row.lane.name} {sum(row.came.values()):,}" for row in rows),
    )
    caption = t("Attempts that reached each replica, by the ledger; the lanes share one scale.")
    if ratios := _ratios(facts):
        caption += t(" Below: attempts per request at client, router and engines.")
    draw = partial(lanes.attempts, drawing, rows, ratios, amplification.WINDOW_S)
    return [Picture("attempts.svg", prose(alt, ALT_MAX), caption, draw)]


def _ratios(facts: Facts) -> list[lanes.Ratio]:
    attempts, load = retries.attempts_of(facts), facts.first("load.started")
    begin = load.mono if load else facts.events[0].mono
    windows = attempts.windows(begin, facts.evidence.ended, facts.evidence.ended)
    found = []
    for place in amplification.PLACES:
        known = [(count.end - facts.zero, ratio) for count in windows if (ratio := count.ratio(place)) is not None]
        if known:
            found.append(lanes.Ratio(place, [at_s for at_s, _ in known], [ratio for _, ratio in known]))
    return found


def _queue(facts: Facts, drawing: Drawing) -> list[Picture]:
    looks = facts.evidence.looks("vllm")
    names = {str(sample.get("subject")) for sample in looks}
    rows = []
    for name, lane in _lanes(facts, names).items():
        mine = facts.evidence.looks("vllm", name) if name else []
        told = [s for s in mine if s["ok"] and all(is_number(s["values"].get(k)) for k in ("running", "waiting"))]
        silent = [float(s["mono"]) - facts.zero for s in mine if not s["ok"]]
        times = [float(s["mono"]) - facts.zero for s in told]
        running, waiting = ([float(s["values"][key]) for s in told] for key in ("running", "waiting"))
        if mine:
            rows.append(lanes.Queue(lane, times, running, waiting, silent))
    if not any(row.at_s for row in rows):
        return []
    most = words.clauses(
        t(
            "{replica} at most {running:g} running, {waiting:g} waiting",
            replica=row.lane.name,
            running=max(row.running, default=0),
            waiting=max(row.waiting, default=0),
        )
        for row in rows
    )
    alt = t("Requests running and waiting at each replica. {replicas}.", replicas=most)
    caption = t("What each engine had in hand, by its own metrics (`samples.ndjson`, probe `vllm`).")
    left_out = len(names) - len(rows)
    if left_out > 0:
        caption += t(" {n} more replicas are not shown.", n=left_out)
    return [Picture("queue.svg", prose(alt, ALT_MAX), caption, lambda: lanes.queue(drawing, rows))]


# ---- what GPUs saw -------------------------------------------------------------------------------------


def _gpus(facts: Facts, drawing: Drawing) -> list[Picture]:
    shown = list(_readings(facts).values())
    if not any(value is not None for gpu in shown for value in (*gpu.temperature_c, *gpu.clock_mhz)):
        return []
    hottest = max((t for gpu in shown for t in gpu.temperature_c if t is not None), default=None)
    number = words.count(len(shown), "GPU")
    alt = t("Temperature and SM clock of {gpus} over time; no temperature was told.", gpus=number)
    if hottest is not None:
        alt = t(
            "Temperature and SM clock of {gpus} over time; the hottest reading is {degrees:g} °C.",
            gpus=number,
            degrees=hottest,
        )
    caption = t("Temperature and SM clock of {gpus} (`samples.ndjson`, probe `gpu`).", gpus=number)
    return [Picture("gpus.svg", prose(alt, ALT_MAX), caption, lambda: gpufigure.gpus(drawing, shown, _limits(facts)))]


def _readings(facts: Facts) -> dict[str, gpufigure.Gpu]:
    mine = {str(uuid) for victim in facts.victims.values() for uuid in victim.get("gpus") or ()}
    columns: dict[str, tuple[list[float], list[float | None], list[float | None]]] = {}
    names: dict[str, str] = {}
    for sample in facts.evidence.looks("gpu"):
        seen = sample["values"].get("gpus") if sample["ok"] else None
        for uuid, values in seen.items() if isinstance(seen, dict) else ():
            if isinstance(values, dict):
                index = values.get("index")
                names[str(uuid)] = f"GPU {index}, {str(uuid)[:12]}" if isinstance(index, int) else str(uuid)
                times, heat, clock = columns.setdefault(str(uuid), ([], [], []))
                times.append(float(sample["mono"]) - facts.zero)
                heat.append(_number(values, "temperature_c"))
                clock.append(_number(values, "sm_clock_mhz"))
    return {uuid: gpufigure.Gpu(names[uuid], uuid in mine, *columns[uuid]) for uuid in sorted(columns)}


def _number(values: Json, name: str) -> float | None:
    return float(values[name]) if is_number(values.get(name)) else None


def _limits(facts: Facts) -> list[gpufigure.Limit]:
    """Return the levels of the temperature that the run's own table of metrics judges."""
    given: Json = next((item["params"] for item in facts.planned("checks") if item["name"] == "metrics"), {})
    levels = given.get("thresholds") or {}
    return [
        gpufigure.Limit(word, float(levels[name]))
        for name, word in (("gpu_temperature_warn", "warn"), ("gpu_temperature_max", "fail"))
        if is_number(levels.get(name))
    ]
