from pathlib import Path

import pytest

from drills.model import Verdict
from tests.unit import runs
from tests.unit.runs import BACK, HIT, READY, VICTIM, Run, judge


def said(run: Run, begin: float, end: float, status: int | None, name: str = VICTIM) -> Run:
    """In that time the replica's health endpoint gives this answer."""
    for s in run.samples:
        if s["probe"] == "health" and s["subject"] == name and begin <= s["mono"] < end:
            s["values"]["status"] = status
    return run


def test_pass(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, "health_honest")
    assert (row.verdict, row.value, row.bound, row.n) == (Verdict.PASS, 0.0, 5.0, 3)
    assert row.detail["replicas"][VICTIM] == {"200": 80, "none": 20}
    assert row.detail["not_completing_s"] == {VICTIM: pytest.approx(19.0)}


@pytest.mark.parametrize("status", [503, 500, None])
def test_every_answer_but_200_says_that_a_replica_is_ill(tmp_path: Path, status: int | None) -> None:
    run = said(runs.healthy(), HIT, READY, status)
    assert judge(run, tmp_path, "health_honest").verdict is Verdict.PASS


def test_fail_when_it_says_well_while_nothing_completes(tmp_path: Path) -> None:
    row = judge(said(runs.healthy(), HIT, READY, 200), tmp_path, "health_honest")
    assert row.verdict is Verdict.FAIL
    assert row.value == pytest.approx(19.0)
    assert (
        row.reason == "replica-1: its health endpoint said 200 while no completion of it worked for 19.0 s; 5 s allowed"
    )


def test_a_short_disagreement_is_allowed(tmp_path: Path) -> None:
    run = said(runs.healthy(), HIT, HIT + 5, 200)
    row = judge(run, tmp_path, "health_honest")
    assert row.verdict is Verdict.PASS
    assert row.value == pytest.approx(4.0)
    assert judge(run, tmp_path, "health_honest", within=3.0).verdict is Verdict.FAIL


def test_fail_when_a_replica_that_completes_is_called_ill(tmp_path: Path) -> None:
    row = judge(said(runs.healthy(), BACK, BACK + 12, 503, "replica-2"), tmp_path, "health_honest")
    assert row.verdict is Verdict.FAIL
    assert row.value == pytest.approx(11.0)
    assert "replica-2: its health endpoint said no while completions of it worked" in row.reason


def test_inconclusive_when_no_replica_stopped_answering(tmp_path: Path) -> None:
    run = said(runs.healthy(), HIT, READY, 200)
    for s in run.samples:
        if s["probe"] == "completion" and not s["ok"]:
            s |= {"ok": True, "values": {"ttft_ms": 20.0, "tokens": 1}}
    row = judge(run, tmp_path, "health_honest")
    assert (row.verdict, "nothing could lie" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_when_nobody_asked(tmp_path: Path) -> None:
    run = runs.healthy()
    run.samples = [s for s in run.samples if s["probe"] != "health"]
    assert judge(run, tmp_path / "a", "health_honest").verdict is Verdict.INCONCLUSIVE
    run = runs.healthy()
    run.samples = [s for s in run.samples if s["probe"] != "health" or not HIT < s["mono"] < READY]
    row = judge(run, tmp_path / "b", "health_honest")
    assert (row.verdict, "was not asked for" in row.reason) == (Verdict.INCONCLUSIVE, True)
    assert judge(runs.quiet(), tmp_path / "c", "health_honest").verdict is Verdict.INCONCLUSIVE


def test_looks_that_are_missing_beside_a_disagreement_count_against_it(tmp_path: Path) -> None:
    """Seen for 3 or 4 s, and for some more nobody asked the one or the other."""
    for probe in ("completion", "health"):
        run = said(runs.healthy(), HIT, HIT + 5, 200)
        gone = {"probe": probe, "subject": VICTIM}
        run.samples = [s for s in run.samples if not (gone.items() <= s.items() and HIT + 4 < s["mono"] < HIT + 7)]
        row = judge(run, tmp_path / probe, "health_honest")
        assert (row.verdict, "it may have been" in row.reason) == (Verdict.INCONCLUSIVE, True), row.reason


def test_inconclusive_when_a_replica_was_not_watched(tmp_path: Path) -> None:
    for probe in ("completion", "health"):
        run = runs.healthy()
        run.samples = [s for s in run.samples if (s["probe"], s["subject"]) != (probe, "replica-0")]
        row = judge(run, tmp_path / probe, "health_honest")
        assert (row.verdict, "replica-0: its" in row.reason) == (Verdict.INCONCLUSIVE, True)


# ---- what a controller says ------------------------------------------------------------------------------


def ready(run: Run, begin: float, end: float) -> Run:
    """The victim's controller says Ready from `begin` to `end`, and of everybody else always."""
    for s in [s for s in run.samples if s["probe"] == "health"]:
        word = s["subject"] != VICTIM or not HIT <= s["mono"] < READY or begin <= s["mono"] < end
        run.samples.append(s | {"probe": "readiness", "values": {"endpoint": "its controller's word", "ready": word}})
    return run


def test_a_readiness_probe_that_says_no_while_nothing_completes_is_honest(tmp_path: Path) -> None:
    assert judge(ready(runs.healthy(), HIT, HIT), tmp_path, "health_honest").verdict is Verdict.PASS


def test_fail_when_it_says_ready_while_nothing_completes(tmp_path: Path) -> None:
    row = judge(ready(runs.healthy(), HIT + 2, READY), tmp_path, "health_honest")
    assert row.verdict is Verdict.FAIL
    assert row.reason.startswith("replica-1: its readiness probe said Ready while no completion of it worked for 1")
    assert "its controller's word" in row.detail["endpoints"]


def test_one_that_is_called_ready_late_is_no_lie(tmp_path: Path) -> None:
    run = ready(runs.healthy(), HIT, HIT)
    for s in run.samples:
        if s["probe"] == "readiness" and s["subject"] == VICTIM and s["mono"] < BACK + 12:
            s["values"] = s["values"] | {"ready": s["mono"] < HIT}
    assert judge(run, tmp_path, "health_honest").verdict is Verdict.PASS


def test_inconclusive_when_the_controller_was_not_asked_for_a_while(tmp_path: Path) -> None:
    run = ready(runs.healthy(), HIT, HIT)
    run.samples = [s for s in run.samples if s["probe"] != "readiness" or not HIT < s["mono"] < READY]
    row = judge(run, tmp_path, "health_honest")
    assert (row.verdict, "its readiness was not asked for" in row.reason) == (Verdict.INCONCLUSIVE, True)
