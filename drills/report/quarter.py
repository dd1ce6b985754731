"""The review of a quarter: the SLA over its drills, action items by age, and the known pitfalls that were met.

Made from the same files as a month's, and from people's `pitfalls.yaml`: the same files, the same bytes, offline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from drills import stats
from drills.actions.items import ESCALATED
from drills.comparable import RULE, Change
from drills.lang import ENGLISH, mark, speaking, spoken, t
from drills.model import Outcome, Restored, Verdict
from drills.report import digest, items, month, page, pitfalls, review, trend_figures, trends, words
from drills.report.digest import Digest
from drills.report.escape import code, prose
from drills.report.source import find
from drills.report.trend_figures import Drawn, Standing
from drills.report.trends import Value
from drills.strictjson import is_number

QUARTER: Final = re.compile(r"([0-9]{4})Q([1-4])")
#: Months before the quarter that the figure of action items looks back on.
BURN_BACK: Final = 3
QUARTER_DAYS: Final = 90


def months(quarter: str) -> list[str]:
    """Return the three months of a quarter, `2026Q4`."""
    year, number = quarter[:4], int(quarter[5])
    return [f"{year}-{3 * (number - 1) + n:02}" for n in (1, 2, 3)]


def write(reports: Path, quarter: str, target: str | None = None, lang: str = ENGLISH) -> Iterator[str]:
    """Write the quarter's review and its figures; yields what there is to say about it. Raises FileProblem.

    In another language than English it stands beside the English one, which is written as well.
    """
    try:
        if begun := pitfalls.begin(reports):
            yield f"questions to answer: {begun}"
    except OSError as error:
        yield f"questions to answer: not begun: {error.filename}: {error.strerror}"
    made = render(reports, quarter, target, lang)
    yield str(review.write(reports / quarter, made, month.review_name(target, lang)))


def render(reports: Path, quarter: str, target: str | None = None, lang: str = ENGLISH) -> dict[str, bytes]:
    """Return the files of a quarter's review by name. Raises FileProblem when the runs cannot be listed."""
    made: dict[str, bytes] = {}
    for language in dict.fromkeys((lang, ENGLISH)):
        with speaking(language):
            made[month.review_name(target, language)], drawn = told(reports, quarter, target)
    return made | {figure.name: figure.svg for figure in drawn}


def told(reports: Path, quarter: str, target: str | None = None) -> tuple[bytes, list[Drawn]]:
    """Return the text of a quarter's review and its figures, none of them drawn yet. Raises FileProblem."""
    first, _, last = months(quarter)
    every = digest.every(reports, month.earlier(first, month.BACK), last)
    parts = [month.read(reports, name, target, every) for name in months(quarter)]
    runs = [run for part in parts for run in part.runs]
    places = {run.place for run in runs}
    shown = [one for one in trends.series(parts[-1].history) if (one.target, one.drill) in places]
    drawn, burn = trend_figures.of(shown), _burn_down(reports, quarter, target)
    seen = _Quarter(quarter, parts, runs, pitfalls.answers(reports))
    view = _view(reports, target, seen, burn.items, burn.drawn, drawn)
    return page.render("quarter.md.j2", view), [*drawn, *burn.drawn]


@dataclass(frozen=True)
class _Quarter:
    """What a quarter's review is made from."""

    name: str
    months: list[month.Month]
    runs: list[Digest]
    answers: pitfalls.Answers


@dataclass(frozen=True)
class _Burn:
    """The action items as they stand at the end, and the figure of how they got there; none without any item."""

    items: items.Items
    drawn: list[Drawn]


def _burn_down(reports: Path, quarter: str, target: str | None) -> _Burn:
    first, _, last = months(quarter)
    seen = items.read(reports, last, target, first)
    standings = []
    for back in range(BURN_BACK + 2, -1, -1):
        name = month.earlier(last, back)
        then = items.read(reports, name, target)
        ages = [len(one.seen) for one in then.open]
        old, middle = sum(age >= ESCALATED for age in ages), sum(age == ESCALATED - 1 for age in ages)
        standings.append(Standing(name, (len(ages) - middle - old, middle, old), len(then.ended)))
    some = any(sum(one.open) + one.ended for one in standings)
    return _Burn(seen, [trend_figures.burn_down(standings)] if some else [])


# ---- what is told ----------------------------------------------------------------------------------------


def _view(
    reports: Path,
    target: str | None,
    seen: _Quarter,
    actions: items.Items,
    burn: Sequence[Drawn],
    drawn: Sequence[Drawn],
) -> dict[str, Any]:
    history = seen.months[-1].history
    found = pitfalls.go_through(seen.runs, history, seen.answers)
    compared = [one for part in seen.months for one in part.found]
    return {
        "title": _named(seen.name),
        "summary": [_ran_words(seen), month.failed_words(seen.runs), month.put_back_words(seen.runs)],
        "months": [_month_row(part, reports, target) for part in seen.months],
        "sla": [_sla_row(run) for run in seen.runs if run.checks and run.ran],
        "sla_header": _sla_header(),
        "certainty": _certainty(seen.runs),
        "budget": _budget(seen.runs),
        "worse": review.changes(compared, Change.WORSE),
        "better": review.changes(compared, Change.BETTER),
        "within": sum(one.within for one in compared),
        "not_comparable": review.not_comparable(compared),
        "rule": t(RULE),
        "drawn": drawn,
        "burn": burn,
        "actions": actions.view(),
        "proposed": [] if actions.there else items.proposed(seen.runs),
        "met": [_met(one) for one in found if one.met],
        "not_met": [_pitfall(one) for one in found if one.met is False],
        "questions": [_question(one) for one in found if one.met is None],
        "lucky": review.lucky(seen.runs),
        "problems": [review.reason(one) for one in _problems(seen, actions)],
    }


QUARTERS: Final = (
    mark("the first quarter of {year}"), mark("the second quarter of {year}"), mark("the third quarter of {year}"),
    mark("the fourth quarter of {year}"),
)  # fmt: skip


def _named(quarter: str) -> str:
    return t(QUARTERS[int(quarter[5]) - 1], year=quarter[:4])


def _problems(seen: _Quarter, actions: items.Items) -> list[str]:
    told = [problem for part in seen.months for problem in part.problems]
    damaged = [
        t("{folder}: {problem}", folder=run.folder.name, problem=problem)
        for run in seen.runs
        for problem in run.problems
    ]
    return [*told, *damaged, *actions.problems, *seen.answers.problems]


def _ran_words(seen: _Quarter) -> str:
    title = _named(seen.name)
    gaps = sum(len(part.missing) for part in seen.months if not part.silent)
    missing = t(" Drills of the suite that did not run, month by month: {n}.", n=gaps) if gaps else ""
    silent = words.listed([month.named(part.name) for part in seen.months if part.silent])
    if silent:
        missing += t(" Of {months} there is nothing: not a run, and no word that any was asked for.", months=silent)
    if not seen.runs:
        return t("No drill ran in {quarter}.", quarter=title) + missing
    judged = sum(run.measured for run in seen.runs)
    passed = sum(run.measured and run.judged == Verdict.PASS for run in seen.runs)
    runs = words.count(len(seen.runs), "run")
    ran = t(
        "{runs} in {quarter}: {judged} were judged, and {passed} of those passed.",
        runs=runs,
        quarter=title,
        judged=judged,
        passed=passed,
    )
    return ran + missing


def _month_row(part: month.Month, reports: Path, target: str | None) -> list[str]:
    """Return how many runs of a month ended in which way."""
    names = [f"{part.name}/{month.review_name(target, language)}" for language in (spoken(), ENGLISH)]
    review_of = next((name for name in names if (reports / name).is_file()), "")
    title = month.named(part.name)

    def count(word: str) -> str:
        return str(sum(run.outcome == word for run in part.runs))

    other = sum(run.outcome not in (Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE) for run in part.runs)
    dirty = sum(run.restored != Restored.CLEAN for run in part.runs)
    kinds = [count(word) for word in (Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE)]
    link = f"[{title}](../{review_of})" if review_of else title
    if part.silent:
        return [link, *["—"] * 7]
    return [link, str(len(part.runs)), *kinds, str(other), str(len(part.missing)), str(dirty)]


def _sla_header() -> list[str]:
    *first, restored, run = t("month | drill | target | outcome | restored | run").split(" | ")
    return [*first, *(t(metric.short) for metric in trends.METRICS), restored, run]


def _sla_row(run: Digest) -> list[str]:
    cells = [_sla_cell(trends.value(run, metric)) for metric in trends.METRICS]
    return [
        run.month,
        code(run.drill),
        code(run.target),
        review.outcome(run),
        *cells,
        review.put_back(run),
        review.link(run),
    ]


def _sla_cell(found: Value | None) -> str:
    """Return a figure beside what is allowed, with its interval and n; one that broke it stands out."""
    if found is None or not found.known:
        return "—"
    told = [found.told]
    told += [t("allowed {bound}", bound=words.quantity(found.bound, found.unit))] if found.bound is not None else []
    told += [f"n {found.n:,}"] if isinstance(found.n, int) and found.interval else []
    text = prose(words.clauses(told))
    return f"**{text}**" if found.verdict == Verdict.FAIL else text


def _certainty(runs: Sequence[Digest]) -> list[list[str]]:
    """Return what so many drills can show: across faults the unit is the injection, not the request."""
    rows = []
    for target, drill in sorted({run.place for run in runs}):
        mine = [run for run in runs if run.place == (target, drill)]
        judged = [run for run in mine if run.measured]
        failed = sum(run.judged == Verdict.FAIL for run in judged)
        most = words.share(stats.upper_bound(failed, len(judged))) if judged else t(words.NO_DATA)
        rows.append([code(target), code(drill), str(len(mine)), str(len(judged)), str(failed), most])
    return rows


def _budget(runs: Sequence[Digest]) -> list[str]:
    """Return what the drills' own requests cost, against what the SLA lets fail in a quarter of the drills' load."""
    targets = sorted({run.target for run in runs})
    by_target = {name: [run for run in runs if run.target == name and run.outcomes] for name in targets}
    return [_burnt_words(target, mine) for target, mine in by_target.items() if mine]


def _burnt_words(target: str, runs: Sequence[Digest]) -> str:
    sent, bad = sum(sum(run.outcomes.values()) for run in runs), sum(_unanswered(run) for run in runs)
    burnt = [_burnt(run) for run in runs]
    known = [share for share in burnt if share is not None]
    if len(known) < len(burnt):
        return t(
            "{target}: {n:,} of {total:,} requests of the drills were not answered. What part of the error budget that "
            "is, is not known: not every drill has a rate and an SLA.",
            target=code(target),
            n=bad,
            total=sent,
        )
    return t(
        "{target}: {n:,} of {total:,} requests of the drills were not answered: {share} of the errors that the SLA "
        "allows in {days} days at their load.",
        target=code(target),
        n=bad,
        total=sent,
        share=words.share(sum(known)),
        days=QUARTER_DAYS,
    )


def _unanswered(run: Digest) -> int:
    good = sum(run.outcomes.get(word, 0) for word in (Outcome.OK, Outcome.DEGRADED))
    return sum(run.outcomes.values()) - good


def _burnt(run: Digest) -> float | None:
    """Return which share of a quarter's budget of errors a run used; None where its plan does not say that budget."""
    experiment, target = (run.plan.get(name) for name in ("experiment", "target"))
    rate = find(find(experiment, "arrivals"), "rate")
    share = find(find(target, "sla"), "errors")
    if not is_number(rate) or not is_number(share) or rate <= 0 or share <= 0:
        return None
    return _unanswered(run) / float(share * rate * QUARTER_DAYS * 86400.0)


def _pitfall(found: pitfalls.Found) -> str:
    answer = pitfalls.said(found.answer)
    return t(
        "**{title}**{answer}: {evidence}.",
        title=t(found.pitfall.title),
        answer=words.in_brackets(answer),
        evidence=words.clauses(found.evidence),
    )


def _met(found: pitfalls.Found) -> str:
    return t("{pitfall} {why}", pitfall=_pitfall(found), why=t(found.pitfall.why))


def _question(found: pitfalls.Found) -> str:
    answer = pitfalls.said(found.answer)
    box = "x" if found.answer.answer == pitfalls.YES else " "
    one = found.pitfall
    return t(
        "[{box}] **{title}** (`{id}`). {question}{answer} {why} *How to find out*: {find}",
        box=box,
        title=t(one.title),
        id=one.id,
        question=t(one.question),
        answer=t(" {answer}.", answer=answer[0].upper() + answer[1:]) if answer else "",
        why=t(one.why),
        find=t(one.find),
    )
