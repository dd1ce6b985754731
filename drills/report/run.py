"""A run's postmortem: its folder → postmortem.md, postmortem.json and the figures beside them.

Pure and offline: the same files give the same bytes. `notes.md`, where people write, is included and never written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from drills import files
from drills.errors import UsageError
from drills.evidence import Evidence
from drills.lang import ENGLISH, in_language, speaking, t
from drills.report import (
    budget,
    compose,
    detection,
    drilled,
    factors,
    figures,
    headline,
    lessons,
    page,
    pictures,
    response,
    retries,
    sections,
    stages,
    todo,
    validity,
    waste,
    words,
)
from drills.report.escape import code, prose, visible
from drills.report.facts import Facts
from drills.report.pictures import Picture
from drills.report.source import Source, read, translated

POSTMORTEM = "postmortem.md"
MACHINE = "postmortem.json"
NOTES = "notes.md"


def write(folder: Path | str, seen: Evidence | None = None, tz: str | None = None, lang: str = ENGLISH) -> Path:
    """Write the postmortem and its figures into a run folder and return the path of the one in the language asked for.

    Raises DrillError.
    """
    folder = Path(folder)
    made = render(folder, seen, tz, lang)
    for name, content in made.items():
        files.write(folder / name, content)
    return folder / in_language(POSTMORTEM, lang)


def render(
    folder: Path | str, seen: Evidence | None = None, tz: str | None = None, lang: str = ENGLISH
) -> dict[str, bytes]:
    """Return the files of the report by name, without writing any; raises DrillError.

    `seen`: the folder's evidence, where it was read already; `tz`: the reader's time zone, beside UTC. In another
    language there is one page more: what programs read and what is drawn is English in any case.
    """
    with speaking(lang):  # one that is unknown is said before anything is read
        source = read(Path(folder), seen)
        with speaking(ENGLISH):
            made = _in_english(source, tz)
        return made if lang == ENGLISH else made | {in_language(POSTMORTEM, lang): _translation(source, tz)}


def _in_english(source: Source, tz: str | None) -> dict[str, bytes]:
    facts = Facts(source)
    shown = _pictures(facts)
    every = [picture for group in shown.values() for picture in group]
    return {
        POSTMORTEM: _page(facts, shown, tz),
        MACHINE: compose.encode(compose.postmortem(facts, every, tz)),
        **{picture.file: figures.svg(picture.draw()) for picture in every},
    }


def _translation(source: Source, tz: str | None) -> bytes:
    facts = Facts(translated(source))
    return _page(facts, _pictures(facts), tz)


def _pictures(facts: Facts) -> dict[str, list[Picture]]:
    """Return the figures by what they show, none of them drawn."""
    drawing = pictures.drawn(facts)
    return {"users": pictures.impact(facts, drawing), "replicas": pictures.replicas(facts, drawing)}


def _page(facts: Facts, shown: dict[str, list[Picture]], tz: str | None) -> bytes:
    return page.render("run.md.j2", view(facts, _notes(facts.source.folder), zone_of(tz)) | {"pictures": shown})


def zone_of(tz: str | None) -> ZoneInfo | None:
    """Return the reader's time zone; raises UsageError for a name that no zone has."""
    if not tz:
        return None
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"--tz {tz}: no time zone of that name; write one such as Europe/Berlin") from None


def _notes(folder: Path) -> str:
    path = folder / NOTES
    if not path.is_file():
        return ""
    return visible(path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n"), keep_newlines=True).strip(
        "\n"
    )


def _todo(items: dict[str, Any], judged: bool) -> str:
    """Say how much is to be done, by how many nobodies, and where it stands."""
    rows, lonely = items["actions"], items["unowned"]
    if not rows:
        return t("nothing that this run found.") if judged else t("nobody knows yet: nothing was judged.")
    items_found, heading = words.count(len(rows), "action item"), t("Action items")
    told = f"[{items_found}](#{words.anchor(heading)})"
    return t("{items}, {n} of them without an owner.", items=told, n=lonely) if lonely else t("{items}.", items=told)


def _repeat(facts: Facts) -> str:
    command = facts.header.get("command")
    text = " ".join(str(word) for word in command) if isinstance(command, list) else command
    return code(text) if text else t(words.NO_DATA)


def view(facts: Facts, notes: str, zone: ZoneInfo | None = None) -> dict[str, Any]:
    """Return everything the template shows."""
    rows, cut = sections.timeline_rows(facts, zone)
    attempts, items = retries.attempts_of(facts), todo.view(facts)
    return {
        **_head(facts),
        "summary": headline.summary(facts),
        "checks": sections.check_rows(facts),
        "metrics": sections.metric_rows(facts),
        "outcomes": sections.outcome_rows(facts),
        "latencies": sections.latency_rows(facts),
        "impact": [
            *sections.impact_lines(facts),
            *budget.lines(facts),
            *retries.lines(facts, attempts),
            *waste.lines(facts, attempts),
        ],
        "amplification": retries.rows(facts, attempts),
        "timeline": rows,
        "timeline_cut": cut,
        "timeline_header": sections.timeline_header(zone),
        "clocks": sections.clocks(facts),
        "alerts": detection.alert_rows(facts),
        "no_alerts": detection.no_alerts(facts),
        "detection": detection.lines(facts),
        "deeds": response.rows(facts),
        "response": response.lines(facts),
        "downtime": sections.stage_rows(facts, stages.downtime(facts)),
        "no_downtime": t("a control: no effect is claimed") if facts.control else t("no data: nothing was injected"),
        "gpu_steps": sections.stage_rows(facts, stages.gpu_reset(facts)),
        "uptime": sections.uptime_line(facts),
        "well": lessons.well(facts),
        "badly": lessons.badly(facts),
        "lucky": lessons.lucky(facts),
        "factors": factors.factors(facts),
        "deviations": factors.deviations(facts),
        "drilled": drilled.rows(facts),
        **items,
        "todo": _todo(items, bool(facts.checks)),
        "repeat": _repeat(facts),
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
        "verdict": prose(verdict.get("verdict") or t("none yet")),
        "run": prose(facts.evidence.run),
        "target": prose(facts.target.get("name") or "unknown"),
        "when": t("{time} UTC, {length}", time=f"{first.time[:10]} {first.time[11:19]}", length=length),
        "unfinished": unfinished(facts),
        "defect": headline.defect(facts),
        "hypothesis": prose(facts.experiment.get("hypothesis") or t(words.NO_DATA)),
        "playbook": code(facts.experiment["playbook"]) if facts.experiment.get("playbook") else "",
        "zero": facts.zero_name,
    }


def unfinished(facts: Facts) -> str:
    """Return why a run did not come to its end, empty when it did."""
    end = facts.first("end")  # a later recovery does not change how the run ended
    if end is None:
        return t("its journal stops without an end; `drill status` says whether something is still to be put back")
    if end.data.get("status") == "completed":
        return ""
    status, reason = prose(end.data.get("status")), end.data.get("reason")
    return t("{status}, {reason}", status=status, reason=prose(reason)) if reason else status
