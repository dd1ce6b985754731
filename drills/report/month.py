"""The review of a month: every drill of the suite with verdict and trend, findings, action items. Pure and offline.

Made from the folders under `runs`, from what each `drill monthly` was asked (the month's own JSON files) and from
`actions.yaml`: the same files, the same bytes. It is the index of the month, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from drills import files
from drills.comparable import RULE, Change
from drills.model import Json, Left, Restored, Verdict
from drills.report import digest, items, review, trend_figures, trends, words
from drills.report.digest import Digest
from drills.report.escape import code, prose
from drills.report.trends import Comparison

MONTH: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])")
#: Earlier months that a trend looks back on, and those whose drills are the suite where nobody wrote one down.
BACK: Final = 12
SUITE_BACK: Final = 3


@dataclass(frozen=True)
class Asked:
    """A drill that should have run at a target; `why` it did not is empty where nobody knows."""

    target: str
    drill: str
    since: str  # stamp from which on a run of it counts
    when: str
    why: str


@dataclass(frozen=True)
class Month:
    """What a month's review is made from; `runs` are the month's own, without planted defects."""

    name: str
    runs: list[Digest]
    planted: list[Digest]
    found: list[Comparison]
    missing: list[Asked]
    history: list[Digest]
    problems: list[str]


def write(reports: Path, month: str, target: str | None = None) -> Path:
    """Write the month's review and its figures and return its path. Raises FileProblem."""
    return review.write(reports / month, render(reports, month, target), review_name(target))


def review_name(target: str | None) -> str:
    """Return the review's file: one of a single target stands beside the one of all."""
    return f"review-{trend_figures.plain(target)}.md" if target else "review.md"


def render(reports: Path, month: str, target: str | None = None) -> dict[str, bytes]:
    """Return the files of a month's review by name. Raises FileProblem when the runs cannot be listed."""
    seen = read(reports, month, target)
    actions = items.read(reports, month, target)
    shown = [one for one in trends.series(seen.history) if any(run.month == month for run in one.runs)]
    drawn = trend_figures.of(shown)
    text = review.render("month.md.j2", _view(seen, actions, drawn))
    return {review_name(target): text} | {figure.name: figure.svg for figure in drawn}


def read(reports: Path, month: str, target: str | None = None) -> Month:
    """Read what a month's review is made from."""
    every = [run for run in digest.every(reports, earlier(month, BACK), month) if target in (None, run.target)]
    history = [run for run in every if not run.defect]
    runs = [run for run in history if run.month == month]
    problems: list[str] = []
    asked = [one for one in _asked(reports / month, problems) if target in (None, one.target)]
    asked += _seen_before(month, history, {one.target for one in asked})
    missing = {(one.target, one.drill): one for one in asked if not _ran(one, runs)}
    found = [trends.compare(run, history) for run in runs if run.ran]
    planted = [run for run in every if run.defect and run.month == month]
    return Month(month, runs, planted, found, list(missing.values()), history, problems)


def earlier(month: str, by: int) -> str:
    """Return the month so many months before."""
    count = int(month[:4]) * 12 + int(month[5:]) - 1 - by
    return f"{max(count, 0) // 12:04}-{max(count, 0) % 12 + 1:02}"


def named(month: str) -> str:
    """Return a month in words."""
    return f"{date.fromisoformat(f'{month}-01'):%B %Y}"


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
                why = "" if row.get("run") else str(row.get("why") or "")
                yield Asked(str(asked.get("target", "?")), str(row["drill"]), since, when[:16].replace("T", " "), why)


def _json(path: Path, problems: list[str]) -> Json:
    try:
        found = json.loads(files.read(path))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name}: cannot be read ({error}); what was asked for then is not known")
        return {}
    return found if isinstance(found, dict) else {}


def _seen_before(month: str, history: Sequence[Digest], known: set[str]) -> Iterator[Asked]:
    """Yield the drills of the months before, at targets of which nobody wrote down what was asked for."""
    since = earlier(month, SUITE_BACK)
    last = {run.place: run for run in history if since <= run.month < month and run.ran and run.target not in known}
    for (target, drill), run in sorted(last.items()):
        yield Asked(target, drill, month.replace("-", ""), "", f"it last ran on {run.day}")


def _ran(asked: Asked, runs: Sequence[Digest]) -> bool:
    """Whether there is a run of it. Whoever was killed in the middle of one has not written that down."""
    return any(run.place == (asked.target, asked.drill) and run.stamp >= asked.since for run in runs)


# ---- what is told ----------------------------------------------------------------------------------------


def _view(seen: Month, actions: items.Items, drawn: Sequence[trend_figures.Drawn]) -> dict[str, Any]:
    compared = {one.run.folder: one for one in seen.found}
    return {
        "title": named(seen.name),
        "summary": [_ran_words(seen), failed_words(seen.runs), put_back_words(seen.runs)],
        "rows": _rows(seen, compared),
        "findings": _findings(seen, actions),
        "worse": review.changes(seen.found, Change.WORSE),
        "better": review.changes(seen.found, Change.BETTER),
        "within": sum(one.within for one in seen.found),
        "not_comparable": review.not_comparable(seen.found),
        "rule": RULE,
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
    asked = words.count(len(seen.missing), "drill")
    missing = f"{asked} of the suite did not run" if seen.missing else ""
    if not seen.runs:
        return f"No drill ran in {named(seen.name)}{f': {missing}' if missing else ''}."
    counts = {
        word: sum(run.outcome == word for run in seen.runs) for word in dict.fromkeys(r.outcome for r in seen.runs)
    }
    told = words.listed([f"{n} {prose(word)}" for word, n in sorted(counts.items(), key=lambda one: (-one[1], one[0]))])
    where = words.listed([code(name) for name in sorted({run.target for run in seen.runs})])
    runs = words.count(len(seen.runs), "run")
    return f"{runs} at {where} in {named(seen.name)}: {told}{f'; {missing}' if missing else ''}."


def failed_words(runs: Sequence[Digest]) -> str:
    """Return which drills failed, in a sentence."""
    failed = [run for run in runs if run.outcome == Verdict.FAIL]
    if not failed:
        judged = any(run.measured for run in runs)
        return "No drill that was judged failed." if judged else "No drill came to a verdict of pass or fail."
    names = list(dict.fromkeys(f"{code(run.drill)} at {code(run.target)}" for run in failed))
    more = len(names) - 5
    return f"Failed: {words.listed(names[:5])}{f', and {more} more' if more > 0 else ''}."


def put_back_words(runs: Sequence[Digest]) -> str:
    """Return what is not put back and where a service was left degraded, in a sentence."""
    dirty = [review.link(run) for run in runs if run.restored != Restored.CLEAN]
    hurt = [review.link(run) for run in runs if run.left == Left.DEGRADED]
    told = [f"**not known to be put back: {words.listed(dirty)}**"] if dirty else []
    told += [f"**left degraded by {words.listed(hurt)}**"] if hurt else []
    if told:
        text = "; ".join(told)
        return f"{text[:2]}{text[2].upper()}{text[3:]}."
    return "Everything that the drills changed is put back." if runs else "There was nothing to put back."


def _rows(seen: Month, compared: dict[Path, Comparison]) -> list[list[str]]:
    """Return a row for each run, and for each drill that did not run, by target and drill."""
    rows = [((*run.place, run.stamp), _row(run, compared.get(run.folder))) for run in seen.runs]
    rows += [((one.target, one.drill, "~"), _missing_row(one)) for one in seen.missing]
    return [row for _, row in sorted(rows, key=lambda one: one[0])]


def _row(run: Digest, found: Comparison | None) -> list[str]:
    trend = review.against(found) if found else "—"
    state = [review.outcome(run), review.left(run), review.put_back(run)]
    return [code(run.target), code(run.drill), review.began(run), *state, trend, review.link(run)]


def _missing_row(asked: Asked) -> list[str]:
    return [code(asked.target), code(asked.drill), "—", "**did not run**", "—", "—", "—", "—"]


def _findings(seen: Month, actions: items.Items) -> list[str]:
    compared = {one.run.folder: one for one in seen.found}
    nothing = Comparison
    ranked = [
        finding for run in seen.runs for finding in review.findings(run, compared.get(run.folder, nothing(run, None)))
    ]
    ranked += [(2, _missing_words(one)) for one in seen.missing]
    if worse := sum(len([m for m in one.moved if m.change is Change.WORSE]) for one in seen.found):
        ranked.append((3, f"**Got worse beyond chance**: {words.count(worse, 'figure')}, see below."))
    if escalated := len(actions.escalated):
        ranked.append(
            (1, f"**Escalated**: {words.count(escalated, 'action item')} seen in three drills or more, see below.")
        )
    return [text for _, text in sorted(ranked, key=lambda one: one[0])]


def _missing_words(asked: Asked) -> str:
    when = f", asked for on {prose(asked.when)} UTC" if asked.when else ""
    why = review.reason(asked.why) if asked.why else "why is not known"
    return f"**Did not run**: {code(asked.drill)} at {code(asked.target)}{when}: {why}."


def _planted(run: Digest) -> str:
    return f"{review.named(run)}: planted {code(run.defect)}; {review.outcome(run)}, restored {review.put_back(run)}."
