"""What machines get: JUnit XML and JSON, whatever happens, and nothing that a parser chokes on."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills import cli, junit, suite, upkeep, verdict
from drills.errors import FileProblem, Refused
from drills.junit import Ended
from drills.machines import Machines
from drills.model import Json
from drills.session import Told
from tests.unit import runs

FIRST = "20261101T100000Z-pod-kill-aaaaaaaa"
STRICT: Json = {"check": "latency", "params": {"metric": "ttft", "quantile": 0.99, "cohort": "fault", "max": 0.01}}
LOOSE: Json = STRICT | {"params": STRICT["params"] | {"max": "sla"}}


def folder(reports: Path, checks: list[Json], name: str = FIRST) -> Path:
    """Write and judge a run whose service is healthy."""
    run = runs.healthy()
    run.plan["experiment"]["checks"] = checks
    place = run.write(reports / "runs" / name)
    verdict.write(place)
    return place


def row(verdict: str, check: str = "failover", **more: Any) -> Json:
    return {"check": check, "verdict": verdict, "reason": f"{check} said so", "params": {}} | more


def judged(merged: str, *rows: Json, **more: Any) -> Json:
    """Return a verdict.json."""
    base: Json = {"run": "aaaaaaaa", "verdict": merged, "restored": "clean", "left": "healthy", "reason": "because"}
    return base | {"checks": list(rows)} | more


def cases(*drills: Ended) -> dict[str, tuple[str, str]]:
    """Return what became of each test case, and the message."""
    found = {}
    for case in read(junit.document(drills)).iter("testcase"):
        [*told] = case
        found[case.attrib["name"]] = (told[0].tag, told[0].attrib["message"]) if told else ("", "")
    return found


# ---- JUnit ----------------------------------------------------------------------------------------------


def read(document: bytes) -> ET.Element:
    """Return the document, held against what JUnit's schema asks for."""
    root = ET.fromstring(document)
    assert root.tag == "testsuites"
    counted = [counts(suite) for suite in root]
    assert counts(root) == tuple(sum(numbers) for numbers in zip(*counted, strict=True))
    for one in root:
        assert one.tag == "testsuite"
        assert one.attrib["name"]
        listed, *tests = one
        assert listed.tag == "properties"
        assert all(p.tag == "property" and set(p.attrib) == {"name", "value"} for p in listed)
        assert [test.tag for test in tests] == ["testcase"] * len(tests)
        assert all(set(test.attrib) == {"classname", "name"} and len(test) <= 1 for test in tests)
        told = [what for test in tests for what in test]
        assert {what.tag for what in told} <= {"failure", "skipped", "error"}
        assert all(set(what.attrib) == {"message"} for what in told)
        of = [what.tag for what in told]
        assert counts(one) == (len(tests), of.count("failure"), of.count("error"), of.count("skipped"))
        names = [test.attrib["name"] for test in tests]
        assert len(set(names)) == len(names)
    return root


def counts(element: ET.Element) -> tuple[int, ...]:
    return tuple(int(element.attrib[name]) for name in ("tests", "failures", "errors", "skipped"))


def test_pass_fail_and_what_was_not_judged() -> None:
    told = judged(
        "fail", row("pass"), row("fail", "alert"), row("not judged", "metrics"), row("inconclusive", "rejoin")
    )
    assert cases(Ended("pod-kill", 1, verdict=told)) == {
        "run": ("", ""),
        "failover": ("", ""),
        "alert": ("failure", "alert said so"),
        "metrics": ("skipped", "not judged: metrics said so"),
        "rejoin": ("skipped", "inconclusive: rejoin said so"),
    }


def test_a_measurement_that_is_not_valid_is_no_failure_and_no_pass() -> None:
    told = judged("inconclusive", row("pass"), row("fail", "alert"), reason="the generator used 95% of a core")
    found = cases(Ended("pod-kill", 2, verdict=told))
    assert found["run"] == ("skipped", "inconclusive: the generator used 95% of a core")
    assert found["alert"] == ("skipped", "fail, in a measurement that is not valid: alert said so")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (3, "refused before anything was touched: because"),
        (4, "stopped, and put back: because"),
        (5, "not restored: because"),
        (70, "our bug: because"),
    ],
)
def test_what_went_wrong_with_the_run_is_an_error_of_it(code: int, said: str) -> None:
    assert cases(Ended("pod-kill", code, verdict=judged("inconclusive")))["run"] == ("error", said)
    assert cases(Ended("pod-kill", code, reason="because")) == {"run": ("error", said)}


def test_what_was_not_begun_is_skipped() -> None:
    assert cases(Ended("pod-kill", None, "it was not")) == {"run": ("skipped", "not begun: it was not")}


def test_checks_of_one_name_are_told_apart() -> None:
    assert list(cases(Ended("x", 0, verdict=judged("pass", row("pass"), row("pass"))))) == [
        "run",
        "failover",
        "failover 2",
    ]


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_is_valid_xml_and_gives_the_same_bytes(name: str, reason: str) -> None:
    told = judged("fail", row("fail", name, reason=reason), row("inconclusive", name, reason=reason), reason=reason)
    ended = [Ended(name or "x", 1, verdict=told, properties={name: reason}), Ended("y", 5, reason)]
    document = junit.document(ended)
    read(document)
    assert junit.document(ended) == document
    assert all(char.isprintable() or char == "\n" for char in document.decode())


# ---- drill run, drill monthly ---------------------------------------------------------------------------


class Ran:
    """Drills that end as they are told to, in the place of `suite.run`."""

    def __init__(self, *told: Told, error: BaseException | None = None) -> None:
        self.told, self.error = told, error

    def __call__(self, _: Any, __: Any, echo: Callable[[str], None], hear: Callable[[Told], None]) -> int:
        for one in self.told:
            hear(one)
            echo("for people")
        print("for people, too")
        if self.error:
            raise self.error
        return max((one.code for one in self.told), default=0)


def drill(*words: str) -> int:
    code = cli.app(list(words), standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_a_run_is_one_object_on_standard_output_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder(tmp_path, [LOOSE])
    monkeypatch.setattr(suite, "run", Ran(Told(0, (), place), Told(3, ("refused: limits forbid it",))))
    assert drill("run", "./my.yaml", "gpu-reset", "noop", "--json") == 3
    said = capsys.readouterr()
    first, second, third = [json.loads(line) for line in said.out.splitlines()]
    assert first == json.loads((place / "verdict.json").read_text()) | {"drill": "pod-kill", "folder": str(place)}
    assert (second["drill"], second["exit_code"], second["run"]) == ("gpu-reset", 3, None)
    assert second["reason"] == "limits forbid it"
    assert (third["drill"], third["exit_code"]) == ("noop", None)
    assert said.err.splitlines() == ["for people", "for people", "for people, too"]


def test_without_json_people_read_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "run", Ran(Told(0, ())))
    assert drill("run", "noop") == 0
    assert capsys.readouterr() == ("for people\nfor people, too\n", "")


def test_junit_has_every_drill_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder(tmp_path, [STRICT])
    monkeypatch.setattr(suite, "monthly", Ran(Told(1, (), place)))
    assert drill("monthly", "--junit", str(tmp_path / "j.xml")) == 1
    suites = list(read((tmp_path / "j.xml").read_bytes()))
    assert [one.attrib["name"] for one in suites] == ["pod-kill", "packet-loss", "pod-kill", "gpu-reset"]
    assert [counts(one) for one in suites] == [(2, 1, 0, 0), *[(1, 0, 0, 1)] * 3]
    given = {p.attrib["name"]: p.attrib["value"] for p in suites[0][0]}
    assert given == {
        "run": "aaaaaaaa",
        "seed": str(json.loads((place / "plan.json").read_text()).get("seed", "")),
        "target": json.loads((place / "plan.json").read_text())["target"].get("name", ""),
        "verdict": "fail",
        "restored": "clean",
        "left": "healthy",
        "exit_code": "1",
        "folder": FIRST,
    }


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (Refused("target lab: run x holds it"), 3, "target lab: run x holds it"),
        (RuntimeError("x"), 70, "RuntimeError: x"),
        (KeyboardInterrupt(), 4, "stopped before anything was touched"),
    ],
)
def test_an_error_is_told_to_machines_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    reason: str,
) -> None:
    monkeypatch.setattr(suite, "run", Ran(error=error))
    with suppress(type(error)):  # the last one is made an exit code on its way
        drill("run", "noop", "pod-kill", "--json", "--junit", str(tmp_path / "j.xml"))
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["drill"], first["exit_code"], first["reason"]) == ("noop", code, reason)
    assert (second["drill"], second["exit_code"]) == ("pod-kill", None)
    assert counts(read((tmp_path / "j.xml").read_bytes())) == (2, 0, 1, 1)


def test_a_file_that_cannot_be_written_is_said_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "run", Ran(error=AssertionError("it began")))
    with pytest.raises(FileProblem, match="its folder is not there"):
        drill("run", "noop", "--junit", str(tmp_path / "none" / "j.xml"))


def test_a_file_that_cannot_be_written_in_the_end_hides_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "j.xml").mkdir()
    monkeypatch.setattr(suite, "run", Ran(Told(1, ())))
    assert drill("run", "noop", "--junit", str(tmp_path / "j.xml")) == 1
    assert "j.xml: cannot be written" in capsys.readouterr().err


def test_a_verdict_that_could_not_be_written_is_an_error(tmp_path: Path) -> None:
    place = folder(tmp_path, [LOOSE])
    (place / "verdict.json").unlink()
    with Machines(tmp_path / "j.xml", False, ["pod-kill"]) as machines:
        machines.told(Told(2, ("completed", "the verdict cannot be written: disk full"), place))
    [case] = read((tmp_path / "j.xml").read_bytes()).iter("testcase")
    assert case[0].attrib["message"] == "no verdict: completed; the verdict cannot be written: disk full"


# ---- the others -----------------------------------------------------------------------------------------


def test_judge_prints_the_verdict_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path, [STRICT])
    out = str(tmp_path / "j.xml")
    assert drill("judge", "aaaaaaaa", "--reports", str(tmp_path), "--json", "--junit", out) == 1
    said = capsys.readouterr()
    assert said.out == (place / "verdict.json").read_text()
    assert "verdict: fail" in said.err
    assert counts(read((tmp_path / "j.xml").read_bytes())) == (2, 1, 0, 0)


def test_experiments_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert drill("list", "--json") == 0
    found = json.loads(capsys.readouterr().out)["experiments"]
    assert {"name": "noop", "problem": None} in [{k: one[k] for k in ("name", "problem")} for one in found]


def test_status_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("DRILL_LAB_DIR", str(tmp_path / "lab"))
    assert drill("status", "--reports", str(tmp_path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["held"], found["outstanding"], found["running"]) == ("lab", None, [], False)
    assert upkeep.status(None, None, tmp_path)[1:] == ["no run holds it", "nothing is to be put back"]
