"""A run's postmortem: its folder → postmortem.md and two figures beside it.

Pure and offline: the same files give the same bytes. `notes.md`, where people write, is included and never written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from drills import files
from drills.evidence import Evidence, at
from drills.model import Phase
from drills.report import actions, detection, figures, headline, lessons, retries, sections, stages, validity, words
from drills.report.drawing import GOOD, POINTS_MAX, Drawing, Mark, Span
from drills.report.escape import code, prose, visible
from drills.report.facts import Facts
from drills.report.source import read

POSTMORTEM = "postmortem.md"
NOTES = "notes.md"
#: Alternative texts of figures name every phase and mark.
ALT_MAX = 600


def write(folder: Path | str, seen: Evidence | None = None, tz: str | None = None) -> Path:
    """Write the postmortem and its figures into a run folder and return its path; raises DrillError."""
    folder = Path(folder)
    made = render(folder, seen, tz)
    for name, content in made.items():
        files.write(folder / name, content)
    return folder / POSTMORTEM


def render(folder: Path | str, seen: Evidence | None = None, tz: str | None = None) -> dict[str, bytes]:
    """Return the files of the report by name, without writing any; raises DrillError.

    `seen`: the folder's evidence, where it was read already; `tz`: the reader's time zone, beside UTC.
    """
    folder = Path(folder)
    facts = Facts(read(folder, seen))
    drawing = drawn(facts)
    text = _template().render(view(facts, drawing, _notes(folder)))
    return {
        POSTMORTEM: (text.rstrip("\n") + "\n").encode(),
        "latency.svg": figures.svg(figures.latency(drawing)),
        "outcomes.svg": figures.svg(figures.outcomes(drawing)),
    }


def _template() -> Any:
    # What is rendered is Markdown, and every string in it is already inert (drills.report.escape).
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # noqa: S701
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("run.md.j2")


def _notes(folder: Path) -> str:
    path = folder / NOTES
    if not path.is_file():
        return ""
    return visible(path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n"), keep_newlines=True).strip(
        "\n"
    )


def view(facts: Facts, drawing: Drawing, notes: str) -> dict[str, Any]:
    """Return everything the template shows."""
    rows, cut = sections.timeline_rows(facts)
    attempts = retries.attempts_of(facts)
    return {
        **_head(facts),
        **_captions(facts, drawing),
        "summary": headline.summary(facts),
        "checks": sections.check_rows(facts),
        "metrics": sections.metric_rows(facts),
        "outcomes": sections.outcome_rows(facts),
        "latencies": sections.latency_rows(facts),
        "impact": [*sections.impact_lines(facts), *retries.lines(facts, attempts)],
        "amplification": retries.rows(facts, attempts),
        "timeline": rows,
        "timeline_cut": cut,
        "alerts": detection.alert_rows(facts),
        "no_alerts": detection.no_alerts(facts),
        "detection": detection.lines(facts),
        "downtime": sections.stage_rows(facts, stages.downtime(facts)),
        "no_downtime": "a control: no effect is claimed" if facts.control else "no data: nothing was injected",
        "gpu_steps": sections.stage_rows(facts, stages.gpu_reset(facts)),
        "uptime": sections.uptime_line(facts),
        "well": lessons.well(facts),
        "badly": lessons.badly(facts),
        "lucky": lessons.lucky(facts),
        "actions": [sections.action_row(action) for action in actions.actions(facts)],
        "no_actions": actions.none(facts),
        "judged": bool(facts.checks),
        "validity": validity.gate_rows(facts),
        "limits": validity.limits(facts),
        "command": validity.command(facts),
        "identity": validity.identity(facts),
        "files": validity.files(facts),
        "notes": notes,
    }


def _head(facts: Facts) -> dict[str, str]:
    verdict = facts.verdict
    first, last = facts.events[0], facts.events[-1]
    length = words.seconds(last.mono - first.mono)
    return {
        "title": prose(facts.experiment.get("title") or facts.name),
        "left": prose(verdict.get("left") or facts.data("left").get("left") or "unknown"),
        "restored": prose(verdict.get("restored") or "unknown"),
        "verdict": prose(verdict.get("verdict") or "none yet"),
        "run": prose(facts.evidence.run),
        "target": prose(facts.target.get("name") or "unknown"),
        "when": f"{first.time[:10]} {first.time[11:19]} UTC, {length}",
        "unfinished": unfinished(facts),
        "defect": headline.defect(facts),
        "hypothesis": prose(facts.experiment.get("hypothesis") or words.NO_DATA),
        "playbook": code(facts.experiment["playbook"]) if facts.experiment.get("playbook") else "",
        "zero": facts.zero_name,
    }


def unfinished(facts: Facts) -> str:
    """Return why a run did not come to its end, empty when it did."""
    end = facts.first("end")  # a later recovery does not change how the run ended
    if end is None:
        return "its journal stops without an end; `drill status` says whether something is still to be put back"
    if end.data.get("status") == "completed":
        return ""
    reason = end.data.get("reason")
    return f"{prose(end.data.get('status'))}" + (f", {prose(reason)}" if reason else "")


def drawn(facts: Facts) -> Drawing:
    """Return what the figures show."""
    zero, intended = facts.zero, pl.col("intended")
    rows = facts.evidence.requests.filter(intended.is_not_null()).select(
        (intended - zero).alias("at_s"),
        (pl.coalesce("end", "intended") - zero).alias("end_s"),
        pl.col("outcome").fill_null("None"),
        (pl.col("first_token") - intended).alias("ttft_s"),
    )
    rate = ((facts.experiment.get("load") or {}).get("arrivals") or {}).get("rate")
    return Drawing(
        arrivals=rows,
        phases=[Span(p.name, p.begin - facts.zero, p.end - facts.zero) for p in facts.phases],
        marks=_marks(facts),
        sla_ttft_s=facts.sla_ttft_s,
        rate_per_s=float(rate) if isinstance(rate, int | float) else None,
        origin=facts.zero_name,
    )


def _marks(facts: Facts) -> list[Mark]:
    marks = [Mark("injection", 0.0)] if facts.hit is not None else []
    off = [at(event) for event in facts.of("proof.off") if event.data.get("ok") is True]
    if facts.hit is not None and off:
        marks.append(Mark("off", max(off) - facts.zero))
    served = [stage.at for stage in stages.downtime(facts) if stage.name == "first good completion"]
    marks += [Mark("replica back", moment - facts.zero) for moment in served if moment is not None]
    alerts = detection.marks(facts)
    return marks + [Mark(name, moment - facts.zero) for name, moment in alerts]


def _captions(facts: Facts, drawing: Drawing) -> dict[str, str]:
    total = drawing.arrivals.height
    bad = total - sum(drawing.number(name) for name in GOOD)
    shown = min(total, POINTS_MAX)
    phases = ", ".join(span.name for span in drawing.phases) or "none"
    thinned = f" Thinned: {shown:,} of {total:,} points are drawn, failures first." if shown < total else ""
    marks = ", ".join(f"{mark.name} {mark.at_s:+.1f} s" for mark in drawing.marks) or "none"
    fault = facts.phase(Phase.FAULT)
    span = f" The fault phase ends at {words.offset(fault.end - facts.zero)}." if fault else ""
    scatter = f"Scatter of time to first token by time: {total:,} arrivals, {bad:,} of them failed."
    late = int(drawing.late.sum())
    after = (
        f", {late:,} of them later than the SLA of {words.seconds(facts.sla_ttft_s)} to the first token" if late else ""
    )
    stack = f"How the arrivals of each second ended, stacked: {total - bad:,} of {total:,} were answered{after}."
    bars = "Bars: arrivals by the second in which they ended."
    hatched = " Hatched: answered, the first token later than the SLA allows." if late else ""
    return {
        "latency_alt": prose(f"{scatter} Phases: {phases}. Marks: {marks}.", ALT_MAX),
        "latency_caption": f"Time to first token, log scale; each kind of failure has a row of its own.{span}{thinned}",
        "outcomes_alt": prose(f"{stack} The line is the load offered. Phases: {phases}.", ALT_MAX),
        "outcomes_caption": f"{bars} Line: arrivals begun in that second.{hatched}",
    }
