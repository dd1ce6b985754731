from pathlib import Path

import pytest

from drills.checks import CHECKS
from drills.model import Verdict
from drills.params import FROM_FILE
from tests.unit import runs
from tests.unit.runs import HIT, RECOVERY, VICTIM, judge

IN_FLIGHT = "in_flight_on_victim"


def test_pass_when_only_what_was_in_flight_is_cut(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, "streams", max_cut=IN_FLIGHT)
    assert (row.verdict, row.value, row.bound, row.n) == (Verdict.PASS, 5, 5, 5)
    assert row.detail["cut_elsewhere"] == 0
    assert row.detail["cut_on_victim"] == 5


@pytest.mark.parametrize(("wrong_s", "verdict"), [(0.15, Verdict.PASS), (0.05, Verdict.FAIL)])
def test_a_ledger_whose_clock_is_a_little_early_hides_no_stream(
    tmp_path: Path, wrong_s: float, verdict: Verdict
) -> None:
    """It says that they broke off right before the injection; how wrong it may be it says too."""
    run = runs.healthy()
    for one in run.ledger:
        if one["close"] in ("upstream_fin", "upstream_reset") and one["start"] <= HIT < one["end"]:
            one["end"] = HIT - 0.1
    run.of("collected")[0]["clock_error_s"] = wrong_s
    row = judge(run, tmp_path, "streams", max_cut=IN_FLIGHT)
    assert (row.verdict, row.bound) == (verdict, 5 if verdict is Verdict.PASS else 0)


def test_fail_when_more_were_cut(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.between(HIT, RECOVERY)[:3]:
        r |= {"outcome": "truncated", "done": False, "finish": None, "tokens": None}
    row = judge(run, tmp_path, "streams", max_cut=IN_FLIGHT)
    assert (row.verdict, row.value, row.detail["cut_elsewhere"]) == (Verdict.FAIL, 8, 3)


def test_a_promised_drain_allows_none(tmp_path: Path) -> None:
    run = runs.healthy()
    assert judge(run, tmp_path, "streams", max_cut=0).verdict is Verdict.FAIL
    for r in run.requests:
        if r["outcome"] in ("truncated", "error"):
            r |= runs.record(r["arrival"], r["intended"])
    row = judge(run, tmp_path, "streams", max_cut=0)
    assert (row.verdict, row.value, row.n) == (Verdict.PASS, 0, 5)


def test_an_answer_ended_by_abort_is_cut_not_shortened_in_silence(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.requests:
        if r["outcome"] == "truncated":
            r |= {"finish": "abort", "done": True, "tokens": 7}
    row = judge(run, tmp_path, "streams", max_cut=IN_FLIGHT)
    assert (row.verdict, row.detail["shortened"]) == (Verdict.PASS, [])


@pytest.mark.parametrize("outcome", ["ok", "truncated"])
def test_fail_when_an_answer_is_shortened_in_silence(tmp_path: Path, outcome: str) -> None:
    run = runs.healthy()
    short = run.between(HIT, RECOVERY)[7]
    short |= {"outcome": outcome, "tokens": 20, "finish": "length", "done": True}
    row = judge(run, tmp_path, "streams", max_cut=1000)
    assert (row.verdict, row.detail["shortened"]) == (Verdict.FAIL, [short["arrival"]])


def test_fail_when_the_end_of_a_cut_stream_is_made_up(tmp_path: Path) -> None:
    run = runs.healthy()
    cut = [r for r in run.requests if r["outcome"] == "truncated"]
    for r in cut:
        r |= {"finish": "stop", "done": True, "tokens": None}
    row = judge(run, tmp_path, "streams", max_cut=IN_FLIGHT)
    assert (row.verdict, row.detail["shortened"]) == (Verdict.FAIL, [r["arrival"] for r in cut])


def test_fail_when_an_answer_is_repeated(tmp_path: Path) -> None:
    run = runs.healthy()
    run.between(HIT, RECOVERY)[7]["dup"] = True
    assert judge(run, tmp_path, "streams", max_cut=1000).verdict is Verdict.FAIL


def test_a_request_refused_before_its_first_token_is_not_a_cut_stream(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.between(HIT, RECOVERY)[:10])
    assert judge(run, tmp_path, "streams", max_cut=IN_FLIGHT).value == 5


def test_what_happened_before_the_injection_is_not_the_faults(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.between(HIT - 20, HIT - 10)[:9]:
        r |= {"outcome": "truncated", "done": False, "finish": None, "tokens": None, "dup": True}
    assert judge(run, tmp_path, "streams", max_cut=IN_FLIGHT).verdict is Verdict.PASS


def test_inconclusive_when_nothing_was_in_flight_on_the_victim(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.requests:
        if r["outcome"] in ("truncated", "error"):
            r |= runs.record(r["arrival"], r["intended"])
    run.ledger = [a for a in run.ledger if not (a["replica"] == VICTIM and a["start"] <= HIT < a["end"])]
    assert judge(run, tmp_path, "streams", max_cut=IN_FLIGHT).verdict is Verdict.INCONCLUSIVE
    assert judge(run, tmp_path, "streams", max_cut=0).verdict is Verdict.INCONCLUSIVE


def test_the_control_needs_no_stream_on_the_pretended_victim(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.requests:
        r |= runs.record(r["arrival"], r["intended"])
    run.ledger = [a for a in run.ledger if a["replica"] != VICTIM]
    assert judge(run, tmp_path, "streams", max_cut=0).verdict is Verdict.INCONCLUSIVE
    run.of("receipt")[0]["receipt"]["fault"] = "noop"
    assert judge(run, tmp_path, "streams", max_cut=0).verdict is Verdict.PASS
    run.requests = [r for r in run.requests if not HIT - 1 < r["intended"] < HIT]
    assert judge(run, tmp_path, "streams", max_cut=0).verdict is Verdict.INCONCLUSIVE


def test_without_a_ledger_only_a_number_can_be_judged(tmp_path: Path) -> None:
    run = runs.healthy()
    run.has_ledger = False
    assert judge(run, tmp_path, "streams", max_cut=IN_FLIGHT).verdict is Verdict.INCONCLUSIVE
    assert judge(run, tmp_path, "streams", max_cut=5).verdict is Verdict.PASS
    assert judge(run, tmp_path, "streams", max_cut=3).verdict is Verdict.FAIL


def test_inconclusive_without_an_injection(tmp_path: Path) -> None:
    assert judge(runs.quiet(), tmp_path, "streams", max_cut=0).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("max_cut", [-1, 1.5, "all", "2", True])
def test_parameters_that_are_refused(max_cut: object) -> None:
    with pytest.raises(ValueError, match="max_cut"):
        CHECKS["streams"].Params.model_validate({"max_cut": max_cut}, context=FROM_FILE, strict=True)
