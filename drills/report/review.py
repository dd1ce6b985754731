"""What the reviews of a month and of a quarter share: links, findings, comparisons, luck. Lines are inert Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from drills import files
from drills.comparable import Change
from drills.errors import DrillError
from drills.lang import ENGLISH, mark, spoken, t
from drills.model import Json, Left, Restored, Verdict
from drills.report import lessons, source, trends, words
from drills.report.digest import CRASHED, CUT_SHORT, NO_VERDICT, REFUSED, STOPPED, Digest
from drills.report.escape import code, prose
from drills.report.follows import cause_of
from drills.report.trends import Comparison, Moved, Value

#: Texts of others are cut at this length in a review; the postmortem has the rest.
REASON_MAX: Final = 160
#: Of more than these of a kind only so many are written out in a sentence.
SHOWN_MAX: Final = 3
ARROWS: Final = {
    Change.WORSE: mark("▼ worse, {run}"),
    Change.BETTER: mark("▲ better, {run}"),
    Change.CHANCE: mark("= within chance, {run}"),
}


def write(folder: Path, made: dict[str, bytes], first: str) -> Path:
    """Write the files of a review, the text last, and return its path. Raises FileProblem."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(made, key=lambda name: name == first):
        files.write(folder / name, made[name])
    return folder / first


# ---- words ---------------------------------------------------------------------------------------------


def link(run: Digest) -> str:
    """Return a link to what shows a run best, from a folder beside `runs`."""
    return f"[{run.run}](../runs/{quote(run.folder.name, safe='')}/{run.shown})"


def named(run: Digest) -> str:
    """Return drill, target and run, for a sentence."""
    return t("{drill} at {target}, run {run}", drill=code(run.drill), target=code(run.target), run=link(run))


def began(run: Digest) -> str:
    """Return the day and time (UTC) at which a run began."""
    return f"{run.day} {run.stamp[9:11]}:{run.stamp[11:13]}"


def ending(word: str) -> str:
    """Return an outcome for a sentence: how a run ended that has no verdict is said in words, a verdict is a value."""
    return prose(t(word) if word in (CUT_SHORT, NO_VERDICT) else word)


def outcome(run: Digest) -> str:
    """Return how a run ended, in a word; what is not fine stands out."""
    said = ending(run.outcome)
    return said if run.outcome == Verdict.PASS else f"**{said}**"


def put_back(run: Digest) -> str:
    """Return whether what a run changed is put back."""
    return prose(run.restored) if run.restored == Restored.CLEAN else f"**{prose(run.restored)}**"


def left(run: Digest) -> str:
    """Return how the service was left."""
    return f"**{prose(run.left)}**" if run.left == Left.DEGRADED else prose(run.left)


def reason(text: str) -> str:
    """Return somebody's reason, shortened."""
    return prose(text, REASON_MAX)


def against(found: Comparison) -> str:
    """Return a run's trend for a table cell."""
    if found.before is None:
        return "—"
    before = link(found.before)
    return t(ARROWS[found.trend], run=before) if found.trend else t("no interval, {run}", run=before)


# ---- findings ------------------------------------------------------------------------------------------


def retold(run: Digest) -> Digest:
    """Return a run whose verdict gives the reasons that findings repeat in the language that is spoken.

    For that it is judged again, in memory. Where its files no longer give the stored verdict, that stays, in English.
    """
    if spoken() == ENGLISH or run.outcome not in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        return run
    try:
        seen = source.translated(source.read(run.folder))
    except (OSError, DrillError):
        return replace(run, foreign=True)
    return replace(run, verdict=seen.verdict, foreign=seen.foreign)


def findings(run: Digest, found: Comparison) -> Iterator[tuple[int, str]]:
    """Yield what a lead has to know of a run, each with its rank: 0 is the worst."""
    if run.restored != Restored.CLEAN:
        said = t(
            "**Not known to be put back ({restored})**: {run}: `drill recover {id}`, then look at what it says.",
            restored=prose(run.restored),
            run=named(run),
            id=run.run,
        )
        yield 0, said
    if run.left == Left.DEGRADED:
        yield 0, t("**The service was left degraded**: {run}.", run=named(run))
    if told := _ended(run):
        yield told
    if run.outcome == Verdict.FAIL:
        failed = t("**Failed**: {run}: {checks}.", run=named(run), checks=_failed(causes(run)))
        yield 1, failed + _passed_before(found)
    elif run.outcome == Verdict.INCONCLUSIVE:
        why = reason(run.reason) if run.reason else t("no data on why")
        yield 3, t("**Could not be judged**: {run}: {reason}.", run=named(run), reason=why)
    for problem in run.problems:
        yield 4, t("**Damaged file**: {run}: {reason}.", run=named(run), reason=reason(problem))


def _ended(run: Digest) -> tuple[int, str] | None:
    """Say that a run did not come to its end, or has no verdict."""
    if run.ended == CUT_SHORT:
        said = t(
            "**Cut short**: {run}: its journal stops without an end, as its driver was killed or is still at it; "
            "what it shows is not the whole run.",
            run=named(run),
        )
        return 2, said
    if run.ended in _EARLY:
        why = t(": {reason}", reason=reason(run.reason)) if run.reason else ""
        return 2, t(_EARLY[run.ended], run=named(run), why=why)
    if run.outcome == NO_VERDICT:
        return 2, t("**No verdict yet**: {run}: `drill judge {id}` makes it.", run=named(run), id=run.run)
    return None


#: How a run ended early → what is said of it.
_EARLY: Final = {
    REFUSED: mark("**Refused, so it did not run**: {run}{why}."),
    STOPPED: mark("**Stopped before its end**, so it is not judged: {run}{why}."),
    CRASHED: mark("**Crashed before its end**, so it is not judged: {run}{why}."),
}


def causes(run: Digest) -> list[Json]:
    """Return the failing rows that stand for themselves; the others follow from one of these."""
    failed = [row for row in run.checks if row.get("verdict") == Verdict.FAIL]
    return [row for row in failed if cause_of(row, failed) is None]


def _failed(rows: Sequence[Json]) -> str:
    told = [t("{check}: {seen}", check=code(lessons.label(row)), seen=lessons.failed(row)) for row in rows[:SHOWN_MAX]]
    more = len(rows) - len(told)
    told += [t("and {checks}", checks=words.count(more, "more check"))] if more else []
    return words.clauses(told)


def _passed_before(found: Comparison) -> str:
    before = found.before
    if before is None or before.judged != Verdict.PASS:
        return ""
    return t(" The last comparable run, {run}, passed.", run=link(before))


# ---- what changed --------------------------------------------------------------------------------------


def changes(found: Sequence[Comparison], change: Change) -> list[str]:
    """Return what is better, or worse, beyond chance, a line each."""
    return [_moved(one, moved) for one in found for moved in one.moved if moved.change is change]


def _moved(found: Comparison, moved: Moved) -> str:
    assert found.before is not None
    unit = str(moved.after.get("unit") or "")
    was, now = (_value(row, unit) for row in (moved.before, moved.after))
    return t(
        "{check} of {run}: {now}; it was {was} in {before} of {day}.",
        check=code(lessons.label(moved.after)),
        run=named(found.run),
        now=now,
        was=was,
        before=link(found.before),
        day=found.before.day,
    )


def _value(row: Json, unit: str) -> str:
    ends = row.get("interval")
    low, high = (lessons.number(end) for end in ends) if isinstance(ends, list) and len(ends) == 2 else (None, None)
    value, between = words.quantity(row.get("value"), unit), words.between(low, high, unit)
    return t("{value} ({interval})", value=prose(value), interval=prose(between))


def not_comparable(found: Sequence[Comparison]) -> list[str]:
    """Say which runs have nothing to be compared with, and where the last one was another drill."""
    alone = [one for one in found if one.before is None and one.run.measured]
    first = [t("{drill} ({run})", drill=code(one.run.drill), run=link(one.run)) for one in alone if not one.other]
    told = [t("Nothing to compare with yet: {drills}.", drills=words.listed(first))] if first else []
    return told + [
        t(
            "{run} is not comparable with {other}: {differences}.",
            run=named(one.run),
            other=link(one.other),
            differences=words.clauses(map(reason, one.why[:SHOWN_MAX])),
        )
        for one in alone
        if one.other
    ]


# ---- luck ----------------------------------------------------------------------------------------------


def lucky(runs: Sequence[Digest]) -> list[str]:
    """Return narrow passes, idle victims and degraded answers, of runs that came to a verdict."""
    return [line for run in runs if run.measured for line in _lucky(run)]


def _lucky(run: Digest) -> Iterator[str]:
    for row in run.checks:
        spare = lessons.margin(row) if row.get("verdict") == Verdict.PASS else None
        if spare is not None and spare < lessons.MARGIN_MIN:
            yield t(
                "{run}: {check} passed with {share} to spare: {seen}.",
                run=named(run),
                check=code(lessons.label(row)),
                share=words.share(max(spare, 0.0)),
                seen=lessons.measured(row),
            )
    if any(_detail(row, "in_flight_on_victim") == 0 for row in run.rows("streams")):
        yield t("{run}: the victim was idle at the injection: no stream was in flight on it.", run=named(run))
    degraded = [n for row in run.rows("availability") if (n := _detail(row, "outcomes", "degraded"))]
    if degraded:
        yield t(
            "{run}: {answers} came from the degradation path: users got less than they asked for.",
            run=named(run),
            answers=words.count(int(degraded[0]), "answer"),
        )


def _detail(row: Json, *keys: str) -> float | None:
    found: Any = row.get("detail")
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return lessons.number(found)


# ---- each run's own figures ----------------------------------------------------------------------------


def figures_header() -> list[str]:
    """Return the header of a table of figures."""
    *first, last = t("drill | began (UTC) | outcome | run").split(" | ")
    return [*first, *(t(metric.short) for metric in trends.METRICS), last]


def figures(runs: Sequence[Digest]) -> list[list[str]]:
    """Return each run's own figures, of runs that have any; none of them is averaged."""
    found = [(run, [trends.value(run, metric) for metric in trends.METRICS]) for run in runs]
    return [_figures(run, values) for run, values in found if any(v and v.known for v in values)]


def _figures(run: Digest, values: Sequence[Value | None]) -> list[str]:
    cells = [prose(found.told) if found else "—" for found in values]
    return [code(run.drill), began(run), outcome(run), *cells, link(run)]
