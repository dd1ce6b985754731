from pathlib import Path
from typing import Literal

import pytest

from drills.checks import CHECKS
from drills.checks.accounted import AccountedParams
from drills.evidence import read
from drills.model import CheckResult, Verdict
from tests.unit import runs
from tests.unit.runs import Run

IN_FLIGHT: Literal["in_flight_on_victim"] = "in_flight_on_victim"


def judge(run: Run, folder: Path, max_hung: int | Literal["in_flight_on_victim"] = 0) -> CheckResult:
    """Judge the run as it is: what the generator said is not adjusted."""
    return CHECKS["accounted"].judge(read(run.write(folder)), AccountedParams(max_hung=max_hung))


def test_pass(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path)
    assert (row.verdict, row.value, row.n) == (Verdict.PASS, 0, 3400)


def test_fail_when_an_arrival_has_no_record(tmp_path: Path) -> None:
    run = runs.healthy()
    del run.requests[500]
    row = judge(run, tmp_path)
    assert (row.verdict, row.reason) == (Verdict.FAIL, "3400 arrivals were drawn, 3399 have a record")


def test_fail_when_an_arrival_has_two(tmp_path: Path) -> None:
    run = runs.healthy()
    run.requests[500] = dict(run.requests[499])
    assert judge(run, tmp_path).reason == "3400 records are of 3399 arrivals"


@pytest.mark.parametrize("change", [{"outcome": "error"}, {"outcome": "fine"}, {"outcome": None}])
def test_fail_when_the_outcomes_do_not_add_up(tmp_path: Path, change: dict[str, str]) -> None:
    run = runs.healthy()
    run.requests[500] |= change
    assert judge(run, tmp_path).verdict is Verdict.FAIL


def test_fail_when_the_generator_says_it_wrote_another_number(tmp_path: Path) -> None:
    run = runs.healthy()
    run.of("load.stopped")[0]["records"] = 3399
    assert judge(run, tmp_path).verdict is Verdict.FAIL


def test_fail_when_a_request_hung(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.requests[1500:1502], "hung", None)
    run.recount()
    assert (judge(run, tmp_path).verdict, judge(run, tmp_path).value) == (Verdict.FAIL, 2)
    assert judge(run, tmp_path, max_hung=2).verdict is Verdict.PASS


def test_what_a_victim_had_in_flight_may_hang_where_that_is_said(tmp_path: Path) -> None:
    run = runs.healthy()
    on_victim = sorted(runs.healthy().evidence(tmp_path / "before").in_flight_on_victims)
    assert on_victim
    run.fail([run.requests[arrival] for arrival in on_victim], "hung", None)
    run.recount()
    row = judge(run, tmp_path / "a", IN_FLIGHT)
    assert (row.verdict, row.value, row.bound) == (Verdict.PASS, len(on_victim), len(on_victim))
    assert judge(run, tmp_path / "b").verdict is Verdict.FAIL


def test_fail_when_another_request_hung_than_the_victim_had(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.requests[1500:1501], "hung", None)
    run.recount()
    row = judge(run, tmp_path, IN_FLIGHT)
    assert (row.verdict, row.reason) == (Verdict.FAIL, "1 of 1 that hung were not in flight on the victim")


def test_inconclusive_without_a_ledger_where_the_victim_s_streams_may_hang(tmp_path: Path) -> None:
    run = runs.healthy()
    run.has_ledger = False
    assert judge(run, tmp_path, IN_FLIGHT).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("drawn", [None, 0, "absent"])
def test_inconclusive_when_the_generator_never_said(tmp_path: Path, drawn: object) -> None:
    run = runs.healthy()
    if drawn == "absent":
        run.drop("load.stopped")
    else:
        run.of("load.stopped")[0]["drawn"] = drawn
    assert judge(run, tmp_path).verdict is Verdict.INCONCLUSIVE
