"""The sections of a run's postmortem as inert Markdown strings; the template only lays them out."""

from __future__ import annotations

from typing import Final
from zoneinfo import ZoneInfo

from drills.lang import mark, t
from drills.model import Json
from drills.report import headline, impact, lessons, stages, words
from drills.report.escape import code, prose
from drills.report.facts import Facts, references
from drills.report.timeline import timeline
from drills.strictjson import is_number

Row = list[str]
#: The cohorts that latencies are compared of.
COHORTS: Final = {"baseline": mark("baseline"), "fault": mark("fault")}


def offset(facts: Facts, mono: float | None) -> str:
    """Return an instant as seconds from the zero."""
    return words.offset(None if mono is None else mono - facts.zero)


# ---- verdict and impact -------------------------------------------------------------------------------


def check_rows(facts: Facts) -> list[Row]:
    """Return one row for each check of the verdict."""
    return [_check_row(check) for check in facts.checks]


def _check_row(check: Json) -> Row:
    unit = str(check.get("unit") or "")
    interval = check.get("interval")
    events = check.get("events") or []
    return [
        code(lessons.label(check)),
        f"**{prose(check.get('verdict'))}**",
        prose(words.quantity(check.get("value"), unit)),
        "—" if check.get("bound") is None else prose(words.quantity(check["bound"], unit)),
        "—" if check.get("n") is None else f"{check['n']:,}",
        prose(words.between(interval[0], interval[1], unit)) if interval else "—",
        prose(check.get("reason") or "") or "—",
        references(events) if events else f"verdict.json: {code(check['check'])}",
    ]


def metric_rows(facts: Facts) -> list[Row]:
    """Return the rows of the checks that judged a table of metrics; empty when there was none."""
    return [_metric_row(row) for check in facts.checks for row in (check.get("detail") or {}).get("rows") or ()]


def _metric_row(row: Json) -> Row:
    unit = str(row.get("unit") or "")

    def figure(name: str) -> str:
        if row.get(name) is None:
            return "—"
        return prose(words.quantity(row[name], unit) + (" °C" if unit == "°C" else ""))

    side, bound = str(row.get("side") or ""), figure("bound")
    return [
        prose(row["metric"]),
        f"**{prose(row['verdict'])}**",
        figure("value"),
        prose(t(side)) + f" {bound}" if side and row.get("bound") is not None else bound,
        prose(row.get("reason") or "") or "—",
        code(row["source"]) if row.get("source") else "—",
    ]


def outcome_rows(facts: Facts) -> list[Row]:
    """Return arrivals by outcome and class."""
    columns = ("baseline", "caught", "fault", "whole run")
    rows = [[prose(label), *(f"{counts[c]:,}" for c in columns)] for label, counts in impact.by_outcome(facts).items()]
    if rows:
        totals = {**facts.cohorts, "whole run": facts.evidence.measured}
        rows.append([t("**all**"), *(f"{totals[c].height:,}" for c in columns)])
    return rows


def latency_rows(facts: Facts) -> list[Row]:
    """Return p50 and p99 of TTFT, longest gap and E2E by cohort."""
    names = {
        "ttft": t("time to first token"),
        "max_gap": t("longest gap in an answer"),
        "e2e": t("whole answer"),
    }
    rows = []
    for q in impact.quantiles(facts):
        interval = words.between(*q.interval, "s") if q.interval else t(words.NO_DATA)
        name = f"p{q.quantile * 100:g} {names[q.metric]}"
        rows.append([name, t(COHORTS[q.cohort]), words.seconds(q.value_s), f"{q.n:,}", interval])
    return rows


def impact_lines(facts: Facts) -> list[str]:
    """Return streams cut, the worst ten seconds and degraded answers."""
    lines = []
    if not facts.control:
        streams = t("Streams: {streams} (`ledger.ndjson`, `requests.ndjson`).", streams=headline.streams(facts))
        lines.append(streams + _reached(facts))
    lines.append(t("Worst 10 s: {worst}.", worst=_worst(facts, impact.WINDOW_S)))
    lines.append(t("Worst minute: {worst}.", worst=_worst(facts, impact.MINUTE_S)))
    answers, begun = impact.degraded(facts, "fault")
    if not begun:
        return [*lines, t("Degraded answers: no data.")]
    degraded = t(
        "Degraded answers: {n:,} of {total:,} begun after the injection (`requests.ndjson`).", n=answers, total=begun
    )
    return [*lines, degraded]


def _worst(facts: Facts, span_s: float) -> str:
    worst = impact.worst_window(facts, span_s)
    if worst is None:
        return t(words.NO_DATA)
    return t(
        "from {offset}, {n} of {total} arrivals ({share}) broke the SLA of {bound} to the first token "
        "(`requests.ndjson`)",
        offset=words.offset(worst.begin_s),
        n=worst.violations,
        total=worst.n,
        share=words.share(worst.violations / worst.n),
        bound=words.seconds(facts.sla_ttft_s),
    )


def _reached(facts: Facts) -> str:
    """Explain why more streams were in flight on the victims than were open at the injection."""
    seen = impact.streams(facts)
    if seen is None or not seen.reached:
        return ""
    if seen.reached == 1:
        return t(
            " 1 of them was begun later and is no *caught* request: a fault that is held comes on step by step, and "
            "what reached a victim before the last step was in flight on it as well."
        )
    return t(
        " {n:,} of them were begun later and are no *caught* request: a fault that is held comes on step by step, and "
        "what reached a victim before the last step was in flight on it as well.",
        n=seen.reached,
    )


# ---- time ---------------------------------------------------------------------------------------------


def timeline_header(zone: ZoneInfo | None) -> Row:
    """Return the header of the timeline, with the reader's zone beside UTC where there is one."""
    return ["UTC", *([prose(zone.key)] if zone else []), *t("offset | what | source").split(" | ")]


def timeline_rows(facts: Facts, zone: ZoneInfo | None) -> tuple[list[Row], str]:
    """Return the timeline and a word on what was left out."""
    lines, surplus = timeline(facts)
    rows = [[*_when(facts.wall(line.mono), zone), offset(facts, line.mono), line.what, line.source] for line in lines]
    return rows, words.count(surplus, "line") if surplus else ""


def _when(wall: float, zone: ZoneInfo | None) -> Row:
    return [words.clock(wall), *([words.clock(wall, zone)] if zone else [])]


def clocks(facts: Facts) -> str:
    """Say whose clock the times are of, and by how much another one may differ."""
    told = [t("Times are of the clock of the machine that drove the run.")]
    offsets = (facts.header.get("clock") or {}).get("offsets") or {}
    told += [
        _clock(code(host), value)
        for host, value in (sorted(offsets.items()) if isinstance(offsets, dict) else ())
        if is_number(value) and value
    ]
    error_s = facts.evidence.ledger_error_s
    if error_s:
        told.append(
            t(
                "Those of `ledger.ndjson` are of other machines and may be wrong by {duration}.",
                duration=words.seconds(error_s),
            )
        )
    return " ".join(told)


def _clock(host: str, ahead_s: float) -> str:
    if ahead_s > 0:
        return t("The clock of {host} was {duration} ahead.", host=host, duration=words.seconds(ahead_s))
    return t("The clock of {host} was {duration} behind.", host=host, duration=words.seconds(-ahead_s))


def stage_rows(facts: Facts, reached: list[stages.Stage]) -> list[Row]:
    """Return the stages of a downtime, each with the time since the one before that was seen."""
    rows, previous = [], facts.zero
    for stage in reached:
        step = "—" if stage.at is None else t("earlier") if stage.at < previous else words.seconds(stage.at - previous)
        rows.append([t(stage.name), t(stage.meaning), offset(facts, stage.at), step, stage.source])
        previous = previous if stage.at is None else max(previous, stage.at)
    return rows


def uptime_line(facts: Facts) -> str:
    """Return the proof that the device itself was reset."""
    seen = stages.uptime(facts)
    if seen is None:
        return ""
    boot = {True: t("same boot id"), False: t("**another boot id**"), None: t("boot id: no data")}[seen.same_boot]
    return t(
        "Uptime of the GPU: {before} before, {after} after the reset; {boot} ({source}).",
        before=words.seconds(seen.before_s),
        after=words.seconds(seen.after_s),
        boot=boot,
        source=seen.source,
    )
