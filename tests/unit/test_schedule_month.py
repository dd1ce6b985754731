"""`drill monthly` and the review that it keeps: what was asked for, what ran, and what did not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drills import cli, gate, opening, session, suite, upkeep
from drills.errors import DrillError, NotRestored, Refused
from drills.experiment import Experiment
from drills.months import Month
from drills.options import Options
from drills.report import month as reviews
from drills.session import Told

FOUR = ["upstream-delay", "packet-loss", "pod-kill", "gpu-reset"]


def folder_of(reports: Path, drill: str, number: int, month: str = "202611", day: str = "", **verdict: Any) -> Path:
    """Write what a review reads of a run."""
    folder = reports / "runs" / f"{month}{day or f'01T02000{number}'}Z-{drill}-0000000{number}"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"experiment": {"name": drill}, "target": {"name": "lab"}}))
    (folder / "journal.jsonl").write_text("")
    if verdict:
        verdict = {"run": f"0000000{number}", "checks": []} | verdict
        (folder / "verdict.json").write_text(json.dumps(verdict))
        (folder / "postmortem.md").write_text("# It held\n")
    return folder


PASS: dict[str, Any] = {"verdict": "pass", "restored": "clean", "left": "healthy", "exit_code": 0}
REFUSED: dict[str, Any] = {"verdict": "inconclusive", "restored": "clean", "left": "unknown", "exit_code": 3}
DIRTY: dict[str, Any] = {"verdict": "fail", "restored": "dirty", "left": "degraded", "exit_code": 5}


class Ran:
    """Carries out `drill monthly` with drills that end as they are told to; one that ran has a folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, codes: dict[str, int | DrillError]) -> None:
        self.begun: list[str] = []
        self.said: list[str] = []
        self.put_back: Callable[[], bool] = lambda: False
        self.codes, self.reports = codes, tmp_path / "reports"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("DRILL_LAB_DIR", str(tmp_path / "lab"))
        monkeypatch.setattr(upkeep, "put_back_leftovers", lambda *_: self.put_back())
        monkeypatch.setattr(opening, "open_target", self.opened)
        monkeypatch.setattr(opening, "refuse_impossible", lambda *_: None)
        monkeypatch.setattr(gate, "settle", lambda *_, **__: True)
        monkeypatch.setattr(session, "_run_one", self.run_one)

    @contextmanager
    def opened(self, *_: Any) -> Iterator[Any]:
        yield SimpleNamespace(endpoint="http://127.0.0.1:9/v1", expected_replicas=3)

    def run_one(self, one: Experiment, *_: Any) -> Told:
        self.begun.append(one.name)
        code = self.codes.get(one.name, 0)
        if isinstance(code, DrillError):
            raise code
        number = len(self.begun)
        return Told(code, (f"{one.name} ended",), folder_of(self.reports, one.name, number, **PASS))

    def __call__(self, *names: str) -> int:
        return suite.monthly(names, Options(reports=self.reports), self.said.append)

    def record(self) -> Any:
        [path] = self.reports.glob("????-??/*.json")
        return json.loads(path.read_text())

    def review(self) -> str:
        [path] = self.reports.glob("????-??/review.md")
        return path.read_text()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ran:
    return Ran(monkeypatch, tmp_path, {})


# ---- drill monthly ---------------------------------------------------------------------------------------


def test_a_month_is_the_suite_in_its_order_and_what_was_asked_is_kept(ran: Ran) -> None:
    assert ran() == 0
    assert ran.begun == FOUR
    record = ran.record()
    assert [row["drill"] for row in record["drills"]] == FOUR
    assert all(row["run"] for row in record["drills"])
    assert (record["target"], record["exit_code"]) == ("lab", 0)
    assert re.fullmatch(r"review: .*/\d{4}-\d{2}/review\.md", ran.said[-1])


def test_other_drills_may_be_named_in_its_place(ran: Ran) -> None:
    assert ran("noop", "pod-kill") == 0
    assert ran.begun == ["noop", "pod-kill"]


def test_drill_run_monthly_is_the_same(ran: Ran) -> None:
    assert suite.run(["monthly"], Options(reports=ran.reports), ran.said.append) == 0
    assert ran.begun == FOUR
    assert "Drills in" in ran.review()


def test_a_drill_that_is_named_keeps_no_review(ran: Ran) -> None:
    assert suite.run(["noop"], Options(reports=ran.reports), ran.said.append) == 0
    assert not list(ran.reports.glob("????-??"))


def test_the_worst_exit_code_is_kept_and_what_did_not_run_is_told(ran: Ran) -> None:
    ran.codes |= {"packet-loss": Refused("packet-loss: limits forbid it"), "pod-kill": 1, "upstream-delay": 2}
    assert ran() == 3
    assert ran.begun == FOUR
    assert ran.record()["exit_code"] == 3
    assert "**Did not run**: `packet-loss` at `lab`" in ran.review()
    assert "packet-loss: limits forbid it" in ran.review()


def test_what_a_stopped_suite_did_not_begin_is_told(ran: Ran) -> None:
    ran.codes |= {"packet-loss": 4}
    assert ran() == 4
    assert "**Did not run**: `pod-kill`" in ran.review()
    assert "**Did not run**: `gpu-reset`" in ran.review()
    assert "**Did not run**: `packet-loss`" not in ran.review()


def test_leftovers_that_cannot_be_put_back_end_it_and_the_review_says_so(ran: Ran) -> None:
    def stuck() -> bool:
        raise NotRestored("target lab: not put back; run the commands above by hand, then `drill recover`")

    ran.put_back = stuck
    with pytest.raises(NotRestored):
        ran()
    assert ran.begun == []
    assert ran.record()["exit_code"] == 5
    assert ran.review().count("not put back") == len(FOUR)


def test_what_was_known_is_kept_whenever_the_driver_dies(ran: Ran) -> None:
    class Died(BaseException):
        pass

    def die(*_: Any) -> Told:
        if ran.begun:
            raise Died
        return Ran.run_one(ran, *_)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_run_one", die)
        with pytest.raises(Died):
            ran()
    assert [bool(row["run"]) for row in ran.record()["drills"]] == [True, False, False, False]


def test_a_driver_that_is_killed_in_its_first_drill_leaves_word_of_the_others(ran: Ran) -> None:
    class Died(BaseException):
        pass

    def die(one: Experiment, *_: Any) -> Told:
        folder_of(ran.reports, one.name, 1, month=f"{datetime.now(UTC):%Y%m}", day=f"{datetime.now(UTC):%dT%H%M%S}")
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_run_one", die)
        patch.setattr(Month, "write", kill_at(2, Month.write, Died))
        with pytest.raises(Died):
            ran()
    month = f"{datetime.now(UTC):%Y-%m}"
    text = rendered(ran.reports, month)
    assert [bool(row["run"]) for row in ran.record()["drills"]] == [False] * 4
    assert text.count("not begun") == 3
    assert "**Did not run**: `upstream-delay`" not in text, "it has a run"


def kill_at(number: int, write: Callable[[Any], Path], death: type[BaseException]) -> Callable[[Any], Path]:
    """Return a `write` that dies the given time, and does nothing afterwards."""
    calls: list[int] = []

    def one(month: Any) -> Path:
        calls.append(1)
        if len(calls) >= number:
            raise death
        return write(month)

    return one


def test_a_review_that_cannot_be_written_hides_no_exit_code(ran: Ran) -> None:
    def unwritable(*_: Any) -> Told:
        [folder] = ran.reports.glob("????-??")
        if folder.is_dir():
            shutil.rmtree(folder)
            folder.write_text("no folder any more")
        return Ran.run_one(ran, *_)

    ran.codes |= {"packet-loss": 5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_run_one", unwritable)
        assert ran() == 5
    assert ran.begun == ["upstream-delay", "packet-loss"]
    assert "review: not written" in ran.said[-1]


def test_every_report_and_the_month_are_published_and_a_failure_changes_no_code(ran: Ran, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    words = f"[cp, -r, '{{folder}}', {tmp_path}/out]"
    (tmp_path / "drill.yaml").write_text(f"targets: {{lab: {{kind: lab, publish: {{run: {words}}}}}}}\n")
    assert ran("noop") == 0
    [run] = (ran.reports / "runs").iterdir()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {run.name, reviews.MONTH.findall(ran.said[-1])[0]}
    (tmp_path / "drill.yaml").write_text("targets: {lab: {kind: lab, publish: {run: ['false', '{folder}']}}}\n")
    again = Ran.__call__(ran, "noop")
    assert again == 0
    assert any("false ended with 1" in line for line in ran.said)


def test_the_command_line_has_it(ran: Ran) -> None:
    assert cli.app(["monthly", "noop", "--reports", str(ran.reports)], standalone_mode=False) == 0
    assert ran.begun == ["noop"]


# ---- the review of such a month --------------------------------------------------------------------------


def rendered(reports: Path, month: str) -> str:
    return reviews.told(reports, month)[0].decode()


def test_the_review_has_the_months_runs_and_no_others(tmp_path: Path) -> None:
    folder_of(tmp_path, "noop", 1, month="202610", **PASS)
    one, two = folder_of(tmp_path, "pod-kill", 2, **PASS), folder_of(tmp_path, "gpu-reset", 3, **REFUSED)
    three, four = folder_of(tmp_path, "packet-loss", 4, **DIRTY), folder_of(tmp_path, "upstream-delay", 5)
    text = rendered(tmp_path, "2026-11")
    assert "4 runs at `lab` in November 2026: 1 fail, 1 no verdict yet, 1 pass and 1 refused. 1 drill of" in text
    rows = [line for line in text.splitlines() if line.startswith("| `lab` | ") and " | 2026-11-01 " in line]
    assert [line.split(" | ")[1:6:2] for line in rows if "TTFT" not in line] == [
        ["`gpu-reset`", "**refused**", "clean"],
        ["`packet-loss`", "**fail**", "**dirty**"],
        ["`pod-kill`", "pass", "clean"],
        ["`upstream-delay`", "**no verdict yet**", "**unknown**"],
    ]
    links = re.findall(r"\]\(([^)]+)\)", "".join(rows))
    assert [(tmp_path / "2026-11" / link).resolve().parent for link in links] == [two, three, one, four]
    assert all((tmp_path / "2026-11" / link).resolve().is_file() for link in links)
    assert rendered(tmp_path, "2026-11") == text


def test_damaged_files_keep_nothing_else_out_of_the_review(tmp_path: Path) -> None:
    good, bad = folder_of(tmp_path, "pod-kill", 1, **PASS), folder_of(tmp_path, "noop", 2, **PASS)
    (bad / "plan.json").write_text("[1")
    (bad / "verdict.json").write_text('"no"')
    (tmp_path / "2026-11").mkdir()
    (tmp_path / "2026-11" / "x.json").write_text('{"drills": [1, {"drill": "a|b`c", "why": "[x](http://evil)"}]}')
    text = rendered(tmp_path, "2026-11")
    assert good.name in text
    assert bad.name in text
    assert r"\[x\](http&#58;//evil)" in text
    assert "no verdict yet" in text
    assert text.count("**Damaged file**") == 2


def test_a_month_without_runs_says_so(tmp_path: Path) -> None:
    assert rendered(tmp_path, "2026-11").startswith("# Drills in November 2026\n\nNo drill ran in November 2026.\n")
