"""The known pitfalls of serving LLMs: which of them a quarter's drills met, and what people answered.

The list is data (drills/data/pitfalls.yaml). What a check can show is read off the runs; the rest are questions, and
people answer them in `pitfalls.yaml` beside their reports, once and for all quarters: that file is begun when it is not
there and never written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from drills import yamlfile
from drills.checks.rows import AT_LEAST, AT_MOST
from drills.comparable import Change
from drills.errors import FileProblem
from drills.lang import mark, t
from drills.model import Json
from drills.params import Line, Params
from drills.report import lessons, trends, words
from drills.report.digest import Digest
from drills.report.escape import code, prose
from drills.report.review import link, reason
from drills.validate import validate

SHIPPED: Final = Path(__file__).parent.parent / "data" / "pitfalls.yaml"
FILE: Final = "pitfalls.yaml"
YES, NO, UNKNOWN = "yes", "no", "unknown"
#: So much evidence is shown that a pitfall was met; that it was not, the last run says as well as all of them.
EVIDENCE_MAX: Final = 3
BEGIN: Final = """\
# Known pitfalls of serving LLMs: your answers, which every quarter's review shows. Drills never write into this file.
# answer: yes (it is taken care of), no (it is not) or unknown; by: who says so; date: 2026-11-30; note: what you like.
pitfalls:
"""

Word = Literal["pass", "fail", "inconclusive", "not judged"]


class Rule(Params):
    """A row of a verdict that shows a pitfall, or speaks against it."""

    check: Line
    row: Line | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    met: tuple[Word, ...] = ("fail",)
    fine: tuple[Word, ...] = ("pass",)
    many: bool = False
    upgrade: tuple[Line, ...] = ()


class Pitfall(Params):
    """One pitfall; the texts are ours, and are Markdown: `t` says them in the reader's language."""

    id: Line
    title: Line
    why: Line
    find: Line
    question: Line
    checks: tuple[Rule, ...] = ()


class Shipped(Params):
    """The whole list."""

    pitfalls: tuple[Pitfall, ...]


@dataclass(frozen=True)
class Answer:
    """What people said; empty where they did not."""

    answer: str = UNKNOWN
    by: str = ""
    date: str = ""
    note: str = ""


@dataclass(frozen=True)
class Answers:
    """What is in people's file, and what is wrong with it."""

    given: dict[str, Answer] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def of(self, name: str) -> Answer:
        """Return the answer to a question."""
        return self.given.get(name, Answer())


@dataclass(frozen=True)
class Found:
    """A pitfall, what the runs show of it, and what people say. `met` is None where no run shows anything."""

    pitfall: Pitfall
    met: bool | None
    evidence: tuple[str, ...]
    answer: Answer


@cache
def shipped() -> tuple[Pitfall, ...]:
    """Return the list as it is shipped."""
    document = yamlfile.read(SHIPPED)
    return validate(Shipped, document.data, document).pitfalls


def go_through(runs: Sequence[Digest], earlier: Sequence[Digest], answers: Answers) -> list[Found]:
    """Return every pitfall with what the runs show; `earlier` are all runs up to the last of these, in order."""
    return [_found(one, runs, earlier, answers.of(one.id)) for one in shipped()]


def _found(pitfall: Pitfall, runs: Sequence[Digest], earlier: Sequence[Digest], answer: Answer) -> Found:
    seen = [one for rule in pitfall.checks for run in runs for one in _seen(rule, run, earlier)]
    met = any(bad for bad, _ in seen) if seen else None
    told = list(dict.fromkeys(text for bad, text in seen if bad == met))
    shown = told[-EVIDENCE_MAX:] if met else told[-1:]
    more = [t("and {n} more", n=len(told) - len(shown))] if len(told) > len(shown) else []
    return Found(pitfall, met, (*shown, *more), answer)


# ---- what the runs show --------------------------------------------------------------------------------


def _seen(rule: Rule, run: Digest, earlier: Sequence[Digest]) -> Iterator[tuple[bool, str]]:
    """Yield what a run shows by a rule: whether the pitfall was met, and the evidence."""
    if not run.measured or (rule.many and _alone(run)):
        return
    if rule.upgrade:
        yield from _upgraded(rule, run, earlier)
        return
    for label, row in _rows(rule, run):
        verdict = row.get("verdict")
        if verdict in rule.met or verdict in rule.fine:
            said = t(
                "{check} of {drill}, {run}: {seen}",
                check=code(label),
                drill=code(run.drill),
                run=link(run),
                seen=_told(row),
            )
            yield verdict in rule.met, said


def _told(row: Json) -> str:
    """Return what a row measured, and on which side of what bound it should be."""
    unit = str(row.get("unit") or "")
    degrees = f" {unit}" if unit not in ("s", "ratio", "count") else ""
    value, bound = (words.quantity(row.get(name), unit) + degrees for name in ("value", "bound"))
    if row.get("bound") is None:
        return prose(value)
    if row.get("side") == AT_MOST:
        return prose(t("{value} (at most {bound})", value=value, bound=bound))
    if row.get("side") == AT_LEAST:
        return prose(t("{value} (at least {bound})", value=value, bound=bound))
    return prose(t("{value} (allowed {bound})", value=value, bound=bound))


def _rows(rule: Rule, run: Digest) -> Iterator[tuple[str, Json]]:
    """Yield the rows that a rule is about. What failed requests made infinite says nothing of a pitfall."""
    for row in run.rows(rule.check):
        params = row.get("params") or {}
        if any(params.get(name) != wanted for name, wanted in rule.params.items()):
            continue
        if rule.row is None:
            yield lessons.label(row), row
            continue
        for inner in (row.get("detail") or {}).get("rows") or ():
            if inner["metric"] == rule.row and inner.get("value") != "inf":
                yield f"{rule.check}: {rule.row}", inner


def _alone(run: Digest) -> bool:
    load = (run.plan.get("experiment") or {}).get("load") or {}
    arrivals = load.get("arrivals") if isinstance(load, dict) else None
    users = arrivals.get("users") if isinstance(arrivals, dict) else None
    return isinstance(users, int) and users <= 1


def _upgraded(rule: Rule, run: Digest, earlier: Sequence[Digest]) -> Iterator[tuple[bool, str]]:
    """Yield what the first run after an upgrade shows beside the last comparable one before it."""
    found = trends.compare(run, earlier)
    if found.before is None:
        return
    old, new = found.before.versions, run.versions
    changed = [name for name in rule.upgrade if name in old and name in new and old[name] != new[name]]
    worse = any(one.change is Change.WORSE and one.after.get("check") == rule.check for one in found.moved)
    message = _WORSE if worse else _NOT_WORSE
    places = {"check": code(rule.check), "drill": code(run.drill), "before": link(found.before), "run": link(run)}
    for name in changed:
        versions = f"{prose(name)} {code(old[name])} → {code(new[name])}"
        yield worse, t(message, versions=versions, **places)


_WORSE: Final = mark("{versions}: {check} of {drill} is worse beyond chance, {before} and {run}")
_NOT_WORSE: Final = mark("{versions}: {check} of {drill} is not worse beyond chance, {before} and {run}")


# ---- what people say -----------------------------------------------------------------------------------


def answers(reports: Path) -> Answers:
    """Return what people answered; an answer that is none is named, and counts as unknown."""
    path = reports / FILE
    try:
        data = yamlfile.read(path).data.get("pitfalls")
    except FileProblem as error:
        return Answers(problems=(str(error).replace(f"{path}:", f"{FILE}:"),) if path.exists() else ())
    if not isinstance(data, dict):
        return Answers(problems=(t("{file}: holds no map `pitfalls`", file=FILE),))
    known, problems = {one.id for one in shipped()}, []
    given: dict[str, Answer] = {}
    for name, said in data.items():
        answer = _answer(said)
        if name not in known:
            problems.append(t("{file}: {name}: is none of the pitfalls", file=FILE, name=name))
        elif answer is None:
            problems.append(t("{file}: {name}: answer is not yes, no or unknown", file=FILE, name=name))
        else:
            given[name] = answer
    return Answers(given, tuple(problems))


def _answer(said: Any) -> Answer | None:
    """Return an answer; None for what is none. Some programs write true and false for yes and no."""
    entry = said if isinstance(said, dict) else {"answer": said}
    given = entry.get("answer")
    word = {True: YES, False: NO, None: UNKNOWN}.get(given) if isinstance(given, bool | None) else given
    if word not in (YES, NO, UNKNOWN):
        return None
    by, date, note = (_text(entry.get(name)) for name in ("by", "date", "note"))
    return Answer(word, by, date, note)


def _text(value: Any) -> str:
    return "" if value is None or isinstance(value, dict | list) else str(value)


def begin(reports: Path) -> Path | None:
    """Begin people's file with all questions unanswered, and return it; None where it is there. Raises OSError."""
    path = reports / FILE
    lines = [f"  # {one.question}\n  {one.id}: {{answer: unknown, by: , date: , note: }}\n" for one in shipped()]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(BEGIN + "".join(lines))
    except FileExistsError:
        return None
    return path


def said(answer: Answer) -> str:
    """Return an answer in words; empty where there is none."""
    if answer.answer == UNKNOWN and not answer.note:
        return ""
    return t(
        "answered **{answer}**{who}{when}{note}",
        answer=answer.answer,
        who=t(" by {person}", person=prose(answer.by)) if answer.by else "",
        when=t(", {date}", date=prose(answer.date)) if answer.date else "",
        note=t(": {reason}", reason=reason(answer.note)) if answer.note else "",
    )
