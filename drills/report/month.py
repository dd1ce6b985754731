"""The review of a month: every drill of the suite with verdict and trend, findings, action items. Pure and offline.

Made from the folders under `runs`, from what each `drill monthly` was asked (the month's own JSON files) and from
`actions.yaml`: the same files, the same bytes. It is the index of the month, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from drills import files
from drills.comparable import RULE, Change
from drills.lang import ENGLISH, in_language, mark, speaking, t
from drills.model import Json, Left, Restored, Verdict
from drills.report import digest, items, lessons, page, review, trend_figures, trends, words
from drills.report.digest import MONTH as MONTH
from drills.report.digest import Digest
from drills.report.escape import code, prose
from drills.report.trends import Comparison

#: Earlier months that a trend looks back on, and those whose drills are the suite where nobody wrote one down.
BACK: Final = 12
SUITE_BACK: Final = 3
NAMES: Final = (
    mark("January {year}"), mark("February {year}"), mark("March {year}"), mark("April {year}"), mark("May {year}"),
    mark("June {year}"), mark("July {year}"), mark("August {year}"), mark("September {year}"), mark("October {year}"),
    mark("November {year}"), mark("December {year}"),
)  # fmt: skip


AS_JUDGED: Final = mark(
    "Where a run's files no longer give its verdict, the reasons are in English, as that verdict has them."
)


@dataclass(frozen=True)
class Asked:
    """A drill that should have run at a target; `why` it did not is empty where nobody knows."""

    target: str
    drill: str
    since: str  # stamp from which on a run of it counts
    when: str
    why: str
    run: str = ""  # the folder of its run, where that was written down


@dataclass(frozen=True)
class Month:
    """What a month's review is made from; `runs` are the month's own, without planted defects."""

    name: str
    runs: list[Digest]
    planted: list[Digest]
    found: list[Comparison]
    missing: list[Asked]
    order: list[tuple[str, str]]  # target and drill, as they were asked for
    history: list[Digest]
    problems: list[str]
    silent: bool  # no run, and nobody wrote down that one was asked for


def write(reports: Path, month: str, target: str | None = None, lang: str = ENGLISH) -> Path:
    """Write the month's review and its figures and return its path. Raises FileProblem.

    In another language than English it stands beside the English one, which is written as well.
    """
    return review.write(reports / month, render(reports, month, target, lang), review_name(target, lang))


def review_name(target: str | None, lang: str = ENGLISH) -> str:
    """Return the review's file: one of a single target stands beside the one of all."""
    return in_language(f"review-{trend_figures.plain(target)}.md" if target else "review.md", lang)


def render(reports: Path, month: str, target: str | None = None, lang: str = ENGLISH) -> dict[str, bytes]:
    """Return the files of a month's review by name. Raises FileProblem when the runs cannot be listed."""
    made: dict[str, bytes] = {}
    for language in dict.fromkeys((lang, ENGLISH)):
        with speaking(language):
            made[review_name(target, language)], drawn = told(reports, month, target)
    return made | {figure.name: figure.svg for figure in drawn}


def told(reports: Path, month: str, target: str | None = None) -> tuple[bytes, list[trend_figures.Drawn]]:
    """Return the text of a month's review and its figures, none of them drawn yet. Raises FileProblem."""
    seen = read(reports, month, target)
    actions = items.read(reports, month, target)
    shown = [one for one in trends.series(seen.history) if any(run.month == month for run in one.runs)]
    drawn = trend_figures.of(shown)
    return page.render("month.md.j2", _view(seen, actions, drawn)), drawn


def read(reports: Path, month: str, target: str | None = None, seen: Sequence[Digest] | None = None) -> Month:
    """Read what a month's review is made from; `seen` are the runs, where they were read already."""
    first = earlier(month, BACK)
    listed = digest.every(reports, first, month) if seen is None else seen
    every = [run for run in listed if first <= run.month <= month and target in (None, run.target)]
    history = [run for run in every if not run.defect]
    runs = [run for run in history if run.month == month]
    problems: list[str] = []
    asked = [one for one in _asked(reports / month, problems) if target in (None, one.target)]
    asked += _seen_before(month, history, {one.target for one in asked})
    missing = {(one.target, one.drill): one for one in asked if not _ran(one, runs)}
    found = [trends.compare(run, history) for run in runs if run.ran]
    planted = [run for run in every if run.defect and run.month == month]
    order = list(dict.fromkeys((one.target, one.drill) for one in asked))
    silent = not runs and not list((reports / month).glob("*.json"))
    return Month(month, runs, planted, found, list(missing.values()), order, history, problems, silent)


def earlier(month: str, by: int) -> str:
    """Return the month so many months before."""
    count = int(month[:4]) * 12 + int(month[5:]) - 1 - by
    return f"{max(count, 0) // 12:04}-{max(count, 0) % 12 + 1:02}"


def named(month: str) -> str:
    """Return a month in words, whatever the machine's locale is."""
    return t(NAMES[int(month[5:]) - 1], year=month[:4])


# ---- what was asked for ----------------------------------------------------------------------------------


def _asked(folder: Path, problems: list[str]) -> Iterator[Asked]:
    """Yield what each `drill monthly` of the month was asked for."""
    for path in sorted(folder.glob("*.json")):
        asked = _json(path, problems)
        rows = asked.get("drills")
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and row.get("drill"):
                when = str(asked.get("began", "?"))
                since = re.sub(r"[-:]|\..*", "", when)
                target, drill, why = (str(said or "") for said in (asked.get("target"), row["drill"], row.get("why")))
                yield Asked(target, drill, since, when[:16].replace("T", " "), why, str(row.get("run") or ""))


def _json(path: Path, problems: list[str]) -> Json:
    try:
        found = json.loads(files.read(path))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(
            t("{file}: cannot be read ({reason}); what was asked for then is not known", file=path.name, reason=error)
        )
        return {}
    return found if isinstance(found, dict) else {}


def _seen_before(month: str, history: Sequence[Digest], known: set[str]) -> Iterator[Asked]:
    """Yield the drills of the months before, at targets of which nobody wrote down what was asked for."""
    since = earlier(month, SUITE_BACK)
    last = {run.place: run for run in history if since <= run.month < month and run.ran and run.target not in known}
    for (target, drill), run in sorted(last.items()):
        yield Asked(target, drill, month.replace("-", ""), "", t("it last ran on {day}", day=run.day))


def _ran(asked: Asked, runs: Sequence[Digest]) -> bool:
    """Whether there is a run of it. Whoever was killed in the middle of one has not written that down."""
    return bool(asked.run) or any(run.place == (asked.target, asked.drill) and run.stamp >= asked.since for run in runs)


# ---- what is told ----------------------------------------------------------------------------------------


def _view(seen: Month, actions: items.Items, drawn: Sequence[trend_figures.Drawn]) -> dict[str, Any]:
    compared, told = {one.run.folder: one for one in seen.found}, [review.retold(run) for run in seen.runs]
    return {
        "title": named(seen.name),
        "summary": [_ran_words(seen), failed_words(seen.runs), put_back_words(seen.runs)],
        "rows": _rows(seen, compared),
        "findings": _findings(seen, told, actions),
        "as_judged": t(AS_JUDGED) if any(run.foreign for run in told) else "",
        "worse": review.changes(seen.found, Change.WORSE),
        "better": review.changes(seen.found, Change.BETTER),
        "within": sum(one.within for one in seen.found),
        "not_comparable": review.not_comparable(seen.found),
        "rule": t(RULE),
        "figures_header": review.figures_header(),
        "figures": review.figures(seen.runs),
        "drawn": drawn,
        "actions": actions.view(),
        "proposed": [] if actions.there else items.proposed(seen.runs),
        "lucky": review.lucky(seen.runs),
        "planted": [_planted(run) for run in seen.planted],
        "problems": [review.reason(problem) for problem in [*seen.problems, *actions.problems]],
    }


def _ran_words(seen: Month) -> str:
    not_run, month = words.count(len(seen.missing), "drill"), named(seen.name)
    missing = t(" {drills} of the suite did not run.", drills=not_run) if seen.missing else ""
    if not seen.runs:
        return t("No drill ran in {month}.", month=month) + missing
    ends = [run.outcome for run in seen.runs]
    counts = sorted(((ends.count(word), word) for word in set(ends)), key=lambda one: (-one[0], one[1]))
    told = words.listed([t("{n} {outcome}", n=n, outcome=review.ending(word)) for n, word in counts])
    where = words.listed([code(name) for name in sorted({run.target for run in seen.runs})])
    runs = words.count(len(ends), "run")
    return (
        t("{runs} at {targets} in {month}: {outcomes}.", runs=runs, targets=where, month=month, outcomes=told) + missing
    )


def failed_words(runs: Sequence[Digest]) -> str:
    """Return which drills failed, and by which checks, in a sentence."""
    failed = {run.place: run for run in runs if run.outcome == Verdict.FAIL}  # of several the last one
    if not failed:
        judged = any(run.measured for run in runs)
        if judged:
            return t("No drill that was judged failed.")
        return t("No drill came to a verdict of pass or fail.")
    shown = list(failed.values())[: review.SHOWN_MAX]
    names = [
        t("{drill} at {target} ({checks})", drill=code(run.drill), target=code(run.target), checks=_by(run))
        for run in shown
    ]
    more = len(failed) - len(shown)
    names += [words.count(more, "more drill")] if more else []
    return t("Failed: {drills}.", drills=words.listed(names))


def _by(run: Digest) -> str:
    rows = [code(lessons.label(row)) for row in review.causes(run)]
    more = len(rows) - review.SHOWN_MAX
    return words.listed([*rows[: review.SHOWN_MAX], *([t("{n} more", n=more)] if more > 0 else [])])


def put_back_words(runs: Sequence[Digest]) -> str:
    """Return what is not put back and where a service was left degraded, in a sentence."""
    dirty = [_linked(run) for run in runs if run.restored != Restored.CLEAN]
    hurt = [_linked(run) for run in runs if run.left == Left.DEGRADED]
    told = [t("**Not known to be put back**: {drills}.", drills=words.listed(dirty))] if dirty else []
    told += [t("**The service was left degraded** by {drills}.", drills=words.listed(hurt))] if hurt else []
    if told:
        return " ".join(told)
    if runs:
        return t("Everything that the drills changed is put back.")
    return t("There was nothing to put back.")


def _linked(run: Digest) -> str:
    return t("{drill} ({run})", drill=code(run.drill), run=review.link(run))


def _rows(seen: Month, compared: dict[Path, Comparison]) -> list[list[str]]:
    """Return a row for each run, and for each drill that did not run, in the order in which they were asked for."""

    def place(target: str, drill: str, stamp: str) -> tuple[str, int, str, str]:
        known = (target, drill) in seen.order
        return target, seen.order.index((target, drill)) if known else len(seen.order), drill, stamp

    rows = [(place(*run.place, run.stamp), _row(run, compared.get(run.folder))) for run in seen.runs]
    rows += [(place(one.target, one.drill, ""), _missing_row(one)) for one in seen.missing]
    return [row for _, row in sorted(rows, key=lambda one: one[0])]


def _row(run: Digest, found: Comparison | None) -> list[str]:
    trend = review.against(found) if found else "—"
    state = [review.outcome(run), review.left(run), review.put_back(run)]
    return [code(run.target), code(run.drill), review.began(run), *state, trend, review.link(run)]


def _missing_row(asked: Asked) -> list[str]:
    return [code(asked.target), code(asked.drill), "—", t("**did not run**"), "—", "—", "—", "—"]


def _findings(seen: Month, told: Sequence[Digest], actions: items.Items) -> list[str]:
    compared = {one.run.folder: one for one in seen.found}
    nothing = Comparison
    ranked = [finding for run in told for finding in review.findings(run, compared.get(run.folder, nothing(run, None)))]
    ranked += [(2, _missing_words(one)) for one in seen.missing]
    if worse := sum(len([m for m in one.moved if m.change is Change.WORSE]) for one in seen.found):
        ranked.append(
            (3, t("**Got worse beyond chance**: {figures}, see below.", figures=words.count(worse, "figure")))
        )
    if escalated := len(actions.escalated):
        items_seen = words.count(escalated, "action item")
        ranked.append((1, t("**Escalated**: {items} seen in three drills or more, see below.", items=items_seen)))
    return [text for _, text in sorted(ranked, key=lambda one: one[0])]


def _missing_words(asked: Asked) -> str:
    drill, target = code(asked.drill), code(asked.target)
    why = review.reason(asked.why) if asked.why else t("why is not known")
    if not asked.when:
        return t("**Did not run**: {drill} at {target}: {reason}.", drill=drill, target=target, reason=why)
    return t(
        "**Did not run**: {drill} at {target}, asked for on {time} UTC: {reason}.",
        drill=drill,
        target=target,
        time=prose(asked.when),
        reason=why,
    )


def _planted(run: Digest) -> str:
    return t(
        "{run}: planted {defect}; {outcome}, restored {restored}.",
        run=review.named(run),
        defect=code(run.defect),
        outcome=review.outcome(run),
        restored=review.put_back(run),
    )
