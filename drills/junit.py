"""Drills as JUnit XML: a test suite a run, a test case a check, and one, `run`, for the run itself. Pure.

A failing check is a failure only where the run's verdict is fail, so that a build is as red as the exit code says:
in a measurement that is not valid it is skipped, with the reason. Refused, stopped, not restored and our own bugs are
errors of the case `run`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from drills.errors import EXIT_BUG, EXIT_NOT_RESTORED, EXIT_REFUSED, EXIT_STOPPED
from drills.model import Json, Verdict
from drills.output import visible
from drills.report import lessons

#: What the case `run` is an error of, by exit code.
ERRORS: Final = {
    EXIT_NOT_RESTORED: "not restored",
    EXIT_BUG: "our bug",
    EXIT_STOPPED: "stopped, and put back",
    EXIT_REFUSED: "refused before anything was touched",
}
FAILURE, SKIPPED, ERROR = "failure", "skipped", "error"


@dataclass(frozen=True)
class Ended:
    """How one drill ended. `code` None: it was not begun; `verdict` is verdict.json, empty where there is none."""

    drill: str
    code: int | None
    reason: str = ""
    verdict: Json = field(default_factory=dict)
    properties: Json = field(default_factory=dict)
    began: str = ""  # UTC, 2026-11-30T16:18:14
    seconds: float | None = None


@dataclass(frozen=True)
class _Case:
    name: str
    what: str = ""  # failure | skipped | error; empty: passed
    message: str = ""


def document(drills: Sequence[Ended]) -> bytes:
    """Return the XML of all drills, in their order."""
    root = ET.Element("testsuites", name="drill")
    told = [(ended, [_run(ended), *_checks(ended)]) for ended in drills]
    _count(root, [case for _, cases in told for case in cases])
    for ended, cases in told:
        _suite(root, ended, cases)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _suite(root: ET.Element, ended: Ended, cases: Sequence[_Case]) -> None:
    suite = ET.SubElement(root, "testsuite", name=visible(ended.drill))
    _count(suite, cases)
    if ended.began:
        suite.set("timestamp", ended.began)
    if ended.seconds is not None:
        suite.set("time", f"{ended.seconds:.3f}")
    listed = ET.SubElement(suite, "properties")
    for name, value in ended.properties.items():
        ET.SubElement(listed, "property", name=visible(name), value=visible("" if value is None else value))
    for case in cases:
        entry = ET.SubElement(suite, "testcase", classname=f"drill.{visible(ended.drill)}", name=visible(case.name))
        if case.what:
            ET.SubElement(entry, case.what, message=visible(case.message))


def _count(element: ET.Element, cases: Sequence[_Case]) -> None:
    element.set("tests", str(len(cases)))
    for name, what in (("failures", FAILURE), ("errors", ERROR), ("skipped", SKIPPED)):
        element.set(name, str(sum(case.what == what for case in cases)))


def _run(ended: Ended) -> _Case:
    """Return the case of the run itself: as good as the way in which it ended, and as its measurement."""
    reason = ended.reason or str(ended.verdict.get("reason") or "")
    if ended.code is None:
        return _Case("run", SKIPPED, f"not begun: {reason}" if reason else "not begun")
    if ended.code in ERRORS:
        return _Case("run", ERROR, ERRORS[ended.code] + (f": {reason}" if reason else ""))
    if not ended.verdict:
        return _Case("run", ERROR, f"no verdict: {reason or 'it could not be written'}")
    if ended.verdict.get("verdict") == Verdict.INCONCLUSIVE:
        return _Case("run", SKIPPED, f"inconclusive: {reason}" if reason else "inconclusive")
    return _Case("run")


def _checks(ended: Ended) -> list[_Case]:
    """Return a case for each check; two that would have one name are numbered."""
    seen: dict[str, int] = {}
    cases = []
    for check in ended.verdict.get("checks") or ():
        name = lessons.label(check)
        seen[name] = seen.get(name, 0) + 1
        cases.append(_check(ended, check, name if seen[name] == 1 else f"{name} {seen[name]}"))
    return cases


def _check(ended: Ended, check: Json, name: str) -> _Case:
    verdict, reason = check["verdict"], str(check.get("reason") or "no reason given")
    if verdict == Verdict.PASS:
        return _Case(name)
    if verdict == Verdict.FAIL and ended.verdict.get("verdict") == Verdict.FAIL:
        return _Case(name, FAILURE, lessons.failed(check, show=str))
    if verdict == Verdict.FAIL:
        return _Case(name, SKIPPED, f"fail, in a measurement that is not valid: {reason}")
    return _Case(name, SKIPPED, f"{verdict}: {reason}")
