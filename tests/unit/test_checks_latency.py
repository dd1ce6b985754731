from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from drills.checks import CHECKS
from drills.model import Verdict
from drills.params import FROM_FILE
from tests.unit import runs
from tests.unit.runs import FAULT, HIT, RECOVERY, Run, judge


def slowed(count: int, by_s: float = 3.0) -> Run:
    """The first requests of the fault cohort take that much longer, from the first token on."""
    run = runs.healthy()
    for r in run.between(HIT, RECOVERY)[:count]:
        r |= {key: r[key] + by_s for key in ("first_token", "last_token", "end")}
        r["chunks"] = [ms + 1000 * by_s for ms in r["chunks"]]
    return run


def test_pass(tmp_path: Path) -> None:
    row = judge(slowed(4), tmp_path, "latency", metric="ttft", quantile=0.99)
    assert (row.verdict, row.value, row.bound, row.n, row.unit) == (Verdict.PASS, 0.1, 1.0, 1199, "s")
    assert row.interval == (0.1, 0.1)
    assert row.detail["violations"] == 4


def test_fail(tmp_path: Path) -> None:
    row = judge(slowed(30), tmp_path, "latency")
    assert (row.verdict, row.value, row.detail["violations"]) == (Verdict.FAIL, 3.1, 30)


def test_inconclusive_between(tmp_path: Path) -> None:
    row = judge(slowed(11), tmp_path, "latency")
    assert (row.verdict, row.value) == (Verdict.INCONCLUSIVE, 0.1)
    assert row.interval == (0.1, 3.1)


def test_failed_requests_are_infinitely_slow(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.between(HIT, RECOVERY)[:30])
    row = judge(run, tmp_path, "latency", max=25.0)
    assert (row.verdict, row.value, row.detail["failed"]) == (Verdict.FAIL, "inf", 30)
    assert row.interval == (None, None)  # both ends lie among the failed


def test_below_299_requests_no_p99_is_claimed(tmp_path: Path) -> None:
    run = runs.healthy(rate=4.0)
    row = judge(run, tmp_path, "latency")
    assert (row.n, row.verdict, row.value, row.interval) == (239, Verdict.INCONCLUSIVE, None, (None, None))
    assert "no p99 is claimed from fewer than 299" in row.reason
    assert judge(run, tmp_path, "latency", quantile=0.95).verdict is Verdict.PASS


@pytest.mark.parametrize("metric", ["ttft", "e2e", "max_gap"])
def test_every_metric_has_its_own_bound_in_the_sla(tmp_path: Path, metric: str) -> None:
    bounds = {"ttft": 1.0, "e2e": 6.0, "max_gap": 2.0}
    assert judge(runs.healthy(), tmp_path, "latency", metric=metric).bound == bounds[metric]


def test_max_gap_and_tpot_look_inside_the_stream(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.between(HIT, RECOVERY)[:30]:
        r["chunks"] = [100.0, 200.0, 2700.0, 2800.0]
        r["last_token"] += 6.2
    assert judge(run, tmp_path, "latency", metric="ttft").verdict is Verdict.PASS
    row = judge(run, tmp_path, "latency", metric="max_gap")
    assert (row.verdict, row.value) == (Verdict.FAIL, 2.5)
    row = judge(run, tmp_path, "latency", metric="tpot", max=0.2)
    assert row.verdict is Verdict.FAIL
    assert row.value == pytest.approx(6.9 / 31, abs=1e-5)


def test_answers_of_one_token_have_no_tpot(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.requests:
        r["tokens"] = 1
    assert judge(run, tmp_path, "latency", metric="tpot", max=1.0).n == 0


def test_a_multiple_of_the_baseline(tmp_path: Path) -> None:
    run = slowed(300, by_s=0.15)
    assert judge(run, tmp_path, "latency", max={"baseline_times": 3}).verdict is Verdict.PASS
    row = judge(run, tmp_path, "latency", max={"baseline_times": 2})
    assert (row.verdict, row.bound) == (Verdict.FAIL, 0.2)


def test_a_baseline_without_a_quantile_is_no_bound(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.between(runs.BASELINE, FAULT)[:200])
    row = judge(run, tmp_path, "latency", max={"baseline_times": 2})
    assert (row.verdict, row.bound) == (Verdict.INCONCLUSIVE, None)
    thin = judge(runs.healthy(rate=4.0), tmp_path, "latency", max={"baseline_times": 2})
    assert thin.verdict is Verdict.INCONCLUSIVE


def test_no_requests_are_inconclusive(tmp_path: Path) -> None:
    assert judge(runs.quiet(), tmp_path, "latency").verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "written",
    [
        {"metric": "tpot"},
        {"max": 3},
        {"max": "fast"},
        {"max": {"baseline_times": 0}},
        {"max": {"times": 2}},
        {"quantile": 1.0},
        {"quantile": "p99"},
        {"metric": "latency"},
        {"cohort": "caught"},
        {"maximum": "1s"},
    ],
)
def test_parameters_that_are_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CHECKS["latency"].Params.model_validate(written, context=FROM_FILE)


def test_parameters_as_written_and_as_resolved_are_the_same() -> None:
    written = {"metric": "tpot", "quantile": 0.95, "max": "50ms"}
    params = CHECKS["latency"].Params.model_validate(written, context=FROM_FILE)
    assert CHECKS["latency"].Params.model_validate(params.model_dump(mode="json")) == params
    relative = CHECKS["latency"].Params.model_validate({"max": {"baseline_times": 2}}, context=FROM_FILE)
    assert CHECKS["latency"].Params.model_validate(relative.model_dump(mode="json")) == relative
