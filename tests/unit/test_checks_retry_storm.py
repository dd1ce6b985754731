from pathlib import Path
from typing import Any

import pytest

from drills.checks import CHECKS
from drills.model import Verdict
from drills.params import FROM_FILE
from tests.unit import runs
from tests.unit.retries import OFF, again, cut_link, held, in_fault, late, quiet_service
from tests.unit.runs import END, HIT, RECOVERY, judge


def test_pass_when_the_router_tries_a_few_of_them_again(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, "retry_storm")
    assert (row.verdict, row.value, row.bound) == (Verdict.PASS, 1.035, 1.1)
    assert row.detail["during"] == {"client": 1.0, "hop": 1.035, "engine": 1.035}
    assert row.detail["at_the_end"] == {"client": 1.0, "hop": 1.0, "engine": 1.0}
    assert row.detail["settled_s"] == 0.0
    assert row.detail["source"] == "ledger"


@pytest.mark.parametrize("by_client", [True, False])
def test_fail_when_a_window_in_the_fault_has_too_many(tmp_path: Path, by_client: bool) -> None:
    run = quiet_service()
    again(run, in_fault(run, HIT + 20, HIT + 30)[::2], 2, by_client=by_client)
    row = judge(held(run), tmp_path, "retry_storm")
    assert (row.verdict, row.value) == (Verdict.FAIL, 2.0)
    assert row.detail["during"]["client"] == (2.0 if by_client else 1.0)
    assert row.detail["during"]["hop"] == (1.0 if by_client else 2.0)
    assert row.detail["during"]["engine"] == 2.0
    assert "2.00 attempts a request" in row.reason
    assert "1.10 allowed" in row.reason


def test_the_largest_of_the_three_decides(tmp_path: Path) -> None:
    """A client that tries three times at a router that tries five times costs fifteen attempts."""
    run = quiet_service()
    storm = in_fault(run, HIT + 20, HIT + 30)
    again(run, storm, 2, by_client=True)
    again(run, storm, 12)
    row = judge(held(run), tmp_path, "retry_storm")
    assert row.detail["during"] == {"client": 3.0, "hop": 5.0, "engine": 15.0}
    assert (row.verdict, row.value) == (Verdict.FAIL, 15.0)


def test_fail_when_it_does_not_settle(tmp_path: Path) -> None:
    run = held(quiet_service())
    again(run, run.between(OFF + 20, END)[::12], 1)
    row = judge(run, tmp_path, "retry_storm")
    assert (row.verdict, row.bound) == (Verdict.PASS, 1.1)  # 1.08 where 1.05 may be: noise of few windows
    again(run, run.between(OFF + 20, END)[1::6], 1)
    row = judge(run, tmp_path / "b", "retry_storm")
    assert (row.verdict, row.bound) == (Verdict.FAIL, 1.05)
    assert "after the injection" in row.reason


def test_a_single_attempt_too_many_fails_nobody(tmp_path: Path) -> None:
    run = held(quiet_service())
    again(run, in_fault(run, HIT + 20, HIT + 30)[:21], 1)
    row = judge(run, tmp_path, "retry_storm")
    assert (row.verdict, row.value) == (Verdict.PASS, 1.105)
    assert "within the noise of counting" in row.reason


def test_a_little_too_much_all_the_time_is_too_much(tmp_path: Path) -> None:
    run = held(quiet_service())
    again(run, in_fault(run)[::6], 1)
    row = judge(run, tmp_path, "retry_storm")
    assert row.verdict is Verdict.FAIL
    assert row.value == pytest.approx(1.17, abs=0.005)
    assert "59 s from 0 s" in row.reason


def test_a_budget_is_the_clients_own_or_the_checks(tmp_path: Path) -> None:
    run = held(quiet_service())
    again(run, in_fault(run)[::4], 1)
    load = run.plan["experiment"]["load"]
    assert judge(run, tmp_path / "a", "retry_storm").verdict is Verdict.FAIL
    load["client"] = {"retries": {"max": 2, "budget": 0.3}}
    assert judge(run, tmp_path / "b", "retry_storm").verdict is Verdict.PASS
    assert judge(run, tmp_path / "c", "retry_storm", budget=0.1).verdict is Verdict.FAIL
    load["client"] = {"retries": {"max": 2}}  # no budget: what is usual
    assert judge(run, tmp_path / "d", "retry_storm").bound == 1.1
    load["client"] = {"retries": {"max": 0, "budget": 0.3}}  # a client that never retries needs none
    assert judge(run, tmp_path / "e", "retry_storm").bound == 1.1


def test_what_is_usual_before_the_fault_is_no_storm(tmp_path: Path) -> None:
    """A service that always asks two replicas is compared with itself."""
    run = held(quiet_service())
    again(run, run.requests, 1)
    late(in_fault(run)[:30])
    row = judge(run, tmp_path, "retry_storm")
    assert (row.verdict, row.detail["baseline"]["engine"], row.value) == (Verdict.PASS, 2.0, 1.0)


# ---- a cut link: what the rule counted ------------------------------------------------------------------


def test_what_the_network_swallowed_is_added_without_health_checks(tmp_path: Path) -> None:
    run = cut_link(quiet_service(), swallowed=12)
    row = judge(run, tmp_path, "retry_storm")
    assert (row.verdict, row.detail["swallowed"]) == (Verdict.PASS, 12)
    assert row.value == pytest.approx(1.06, abs=0.001)
    assert row.detail["source"] == "ledger and the rule's counter of new connections"
    many = judge(run, tmp_path, "retry_storm", health_checks=None)
    assert many.detail["swallowed"] == 71


def test_a_second_without_a_health_check_takes_nothing_back(tmp_path: Path) -> None:
    row = judge(cut_link(quiet_service(), swallowed=12, checks_per_s=0.5), tmp_path, "retry_storm")
    assert (row.verdict, 10 <= row.detail["swallowed"] <= 12) == (Verdict.PASS, True)


def test_a_watch_that_ended_early_because_all_was_well_will_do(tmp_path: Path) -> None:
    run = cut_link(quiet_service())
    run.drop("load.stopping")
    run.tell(OFF + 21, "load.stopping")
    row = judge(run, tmp_path / "a", "retry_storm")
    assert (row.verdict, row.detail["settled_s"]) == (Verdict.PASS, 0.0)
    again(run, run.between(OFF + 9, OFF + 21)[::3], 1)
    row = judge(run, tmp_path / "b", "retry_storm")
    assert (row.verdict, row.detail["settled_s"]) == (Verdict.FAIL, None)


def test_how_long_it_took_to_settle(tmp_path: Path) -> None:
    run = held(quiet_service())
    again(run, run.between(OFF, OFF + 15)[::6], 1)
    row = judge(run, tmp_path / "a", "retry_storm", budget=0.3)
    assert row.verdict is Verdict.PASS
    assert 5.0 <= row.detail["settled_s"] <= 15.0
    assert judge(run, tmp_path / "b", "retry_storm", budget=0.3, settles_within=2.0).verdict is Verdict.FAIL


def test_fail_when_the_network_swallowed_a_storm(tmp_path: Path) -> None:
    row = judge(cut_link(quiet_service(), swallowed=100), tmp_path, "retry_storm")
    assert row.verdict is Verdict.FAIL
    assert row.value == pytest.approx(1.5, abs=0.01)


def test_in_the_dark_an_attempt_is_counted_once_so_a_storm_there_is_one(tmp_path: Path) -> None:
    assert (
        judge(cut_link(quiet_service(), "blackhole", swallowed=8), tmp_path / "a", "retry_storm").verdict
        is Verdict.PASS
    )
    assert (
        judge(cut_link(quiet_service(), "blackhole", swallowed=100), tmp_path / "b", "retry_storm").verdict
        is Verdict.FAIL
    )


def _unlooked(run: runs.Run, begin: float, end: float) -> runs.Run:
    run.samples = [s for s in run.samples if s["probe"] != "fault" or not begin < s["mono"] < end]
    return run


def test_inconclusive_when_nobody_looked_at_the_counter(tmp_path: Path) -> None:
    for n, (begin, end) in enumerate([(0, END), (HIT + 20, HIT + 30), (HIT - 1, HIT + 6)]):
        row = judge(_unlooked(cut_link(quiet_service()), begin, end), tmp_path / str(n), "retry_storm")
        assert (row.verdict, "nobody looked at the counter" in row.reason) == (Verdict.INCONCLUSIVE, True)
        assert row.detail["during"]["engine"] is None


def test_the_client_alone_can_fail_it(tmp_path: Path) -> None:
    run = _unlooked(cut_link(quiet_service()), 0, END)
    again(run, in_fault(run), 2, by_client=True)
    assert judge(run, tmp_path, "retry_storm").verdict is Verdict.FAIL


# ---- without a ledger -----------------------------------------------------------------------------------


def counters(run: runs.Run, factor: float = 1.0, *, restart: bool = False) -> runs.Run:
    """Have each primary tell what it ended, runs and lets wait; the fault multiplies what it took."""
    run.has_ledger = False
    run.samples = [s for s in run.samples if s["probe"] != "vllm"]
    for name in ("replica-0", "replica-1", "replica-2"):
        ended, lost = 1000.0, 0.0
        for second in range(int(END - runs.START)):
            mono = runs.START + second + 0.5
            ended += (20 / 3) * (factor if HIT + 15 <= mono < HIT + 35 else 1.0)
            if restart and name == "replica-1" and second == 75:
                lost = ended
            values = {"requests": ended - lost, "running": 5.0, "waiting": 0.0}
            run.samples.append(
                {"mono": mono, "time": "", "ok": True, "probe": "vllm", "subject": name, "values": values}
            )
    return run


def test_without_a_ledger_the_engines_own_counters_tell(tmp_path: Path) -> None:
    run = counters(held(quiet_service()))
    late(in_fault(run)[:30])
    row = judge(run, tmp_path / "a", "retry_storm")
    assert (row.verdict, row.detail["source"]) == (Verdict.PASS, "vLLM's own counters")
    assert row.detail["during"]["engine"] == pytest.approx(1.0, abs=0.01)
    assert judge(counters(held(quiet_service()), 2.0), tmp_path / "b", "retry_storm").verdict is Verdict.FAIL


def test_an_engine_that_starts_anew_counts_from_nothing(tmp_path: Path) -> None:
    run = counters(held(quiet_service()), restart=True)
    late(in_fault(run)[:30])
    row = judge(run, tmp_path, "retry_storm")
    assert (row.verdict, row.detail["during"]["engine"]) == (Verdict.PASS, pytest.approx(1.0, abs=0.03))


def test_inconclusive_when_only_the_clients_side_is_known(tmp_path: Path) -> None:
    run = held(quiet_service())
    run.has_ledger = False
    row = judge(run, tmp_path, "retry_storm")
    assert (row.verdict, "only the client's attempts" in row.reason) == (Verdict.INCONCLUSIVE, True)
    again(run, in_fault(run), 2, by_client=True)
    assert judge(run, tmp_path, "retry_storm").verdict is Verdict.FAIL


# ---- nothing to judge -----------------------------------------------------------------------------------


def test_inconclusive_when_nobody_had_a_reason_to_retry(tmp_path: Path) -> None:
    row = judge(held(quiet_service()), tmp_path, "retry_storm")
    assert (row.verdict, row.reason.startswith("nothing to retry")) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_when_windows_are_too_thin(tmp_path: Path) -> None:
    run = held(quiet_service(2.0))
    late(in_fault(run)[:5])
    row = judge(run, tmp_path, "retry_storm")
    assert (row.verdict, "too few arrivals" in row.reason) == (Verdict.INCONCLUSIVE, True)


def _never_off(run: runs.Run) -> None:
    run.of("proof.off")[0]["ok"] = False


def _no_baseline(run: runs.Run) -> None:
    run.drop("phase", lambda data: data["phase"] == "baseline")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_never_off, "never proven off"),
        (_no_baseline, "no baseline"),
        (lambda run: run.tell(OFF + 9, "load.stopping"), "in the 9.0 s watched after the fault"),
    ],
)
def test_inconclusive_without_what_it_takes(tmp_path: Path, spoil: Any, reason: str) -> None:
    run = held(quiet_service())
    late(in_fault(run)[:30])
    if "watched" in reason:
        run.drop("load.stopping")
    spoil(run)
    row = judge(run, tmp_path, "retry_storm")
    assert (row.verdict, reason in row.reason) == (Verdict.INCONCLUSIVE, True), row.reason
    assert judge(runs.quiet(), tmp_path / "q", "retry_storm").verdict is Verdict.INCONCLUSIVE


def test_arrivals_that_were_never_sent_hide_nothing(tmp_path: Path) -> None:
    run = held(quiet_service())
    storm = in_fault(run, HIT + 20, HIT + 30)
    again(run, storm[::2], 1)
    for r in storm[1::2]:
        r |= {"outcome": "shed", "sent": None, "attempts": []}
    assert judge(run, tmp_path, "retry_storm").value == 2.0


def test_what_a_link_held_back_and_let_go_later_is_no_retry(tmp_path: Path) -> None:
    run = held(quiet_service())
    late(in_fault(run, OFF - 10, OFF))
    for line in run.ledger:
        if OFF - 10 <= line["start"] < OFF:
            line["start"] = OFF + 21
    assert judge(run, tmp_path, "retry_storm").verdict is Verdict.PASS


def test_the_watch_that_it_needs() -> None:
    check = CHECKS["retry_storm"]
    assert check.window_s(check.Params.model_validate({"settles_within": "15s"}, context=FROM_FILE)) == 25.0
    assert RECOVERY < END
