from pathlib import Path

from drills.checks import CHECKS
from drills.model import Verdict
from tests.unit import runs
from tests.unit.retries import degrade, held, in_fault
from tests.unit.runs import HIT, judge


def going_on(run: runs.Run) -> set[int]:
    """Return the chats with turns on both sides of the injection."""
    before = {r["session"] for r in run.requests if r["intended"] < HIT}
    return before & {r["session"] for r in run.requests if r["intended"] >= HIT}


def test_pass_when_all_could_go_on(tmp_path: Path) -> None:
    run = runs.healthy()
    row = judge(run, tmp_path, "sessions")
    assert (row.verdict, row.value, row.bound, row.n) == (Verdict.PASS, 1.0, 0.99, len(going_on(run)))
    assert row.n == 75


def test_a_degraded_turn_is_answered(tmp_path: Path) -> None:
    run = runs.healthy()
    degrade(in_fault(run)[:100])
    assert judge(run, tmp_path, "sessions").verdict is Verdict.PASS


def test_fail_when_chats_broke_off(tmp_path: Path) -> None:
    run = runs.healthy()
    mine = going_on(run)
    lost = [r for r in in_fault(run) if r["session"] in mine][:20]
    run.fail(lost)
    row = judge(run, tmp_path, "sessions")
    broken = {r["session"] for r in lost}
    assert (row.verdict, row.value) == (Verdict.FAIL, round(1 - len(broken) / 75, 6))
    assert row.detail["broken"] == sorted(broken)[:20]
    assert "99 % are needed" in row.reason


def test_one_broken_chat_of_some_is_not_enough_to_say(tmp_path: Path) -> None:
    run = runs.healthy()
    mine = going_on(run)
    run.fail([next(r for r in in_fault(run) if r["session"] in mine)])
    row = judge(run, tmp_path, "sessions")
    assert (row.verdict, row.detail["turns_not_answered"]) == (Verdict.INCONCLUSIVE, 1)
    assert judge(run, tmp_path, "sessions", min_share=0.95).verdict is Verdict.PASS


def test_what_was_cut_at_the_injection_and_what_began_after_it_do_not_count(tmp_path: Path) -> None:
    run = runs.healthy()
    mine = going_on(run)
    run.fail([r for r in run.requests if r["intended"] < HIT and r["session"] in mine])
    run.fail([r for r in in_fault(run) if r["session"] not in mine])
    assert judge(run, tmp_path, "sessions").verdict is Verdict.PASS


def test_a_turn_that_was_in_flight_on_the_victim_while_the_fault_came_on_is_no_later_turn(tmp_path: Path) -> None:
    run = held(runs.healthy())
    mine = going_on(run)
    turn = next(r for r in in_fault(run, HIT, HIT + 0.1) if r["session"] in mine)
    run.fail([turn], "hung", None)
    line = next(line for line in run.ledger if line["id"] == turn["attempts"][0]["id"])
    line["replica"] = "replica-0"
    assert judge(run, tmp_path / "a", "sessions").detail["turns_not_answered"] == 1
    line["replica"] = runs.VICTIM
    assert judge(run, tmp_path / "b", "sessions").detail["turns_not_answered"] == 0


def test_inconclusive_when_no_chat_was_open(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.requests:
        r["session"], r["turn"] = r["arrival"], 1
    row = judge(run, tmp_path / "a", "sessions")
    assert (row.verdict, row.n, row.value) == (Verdict.INCONCLUSIVE, 0, None)
    assert judge(runs.quiet(), tmp_path / "b", "sessions").verdict is Verdict.INCONCLUSIVE


def test_a_workload_of_single_questions_is_refused() -> None:
    check = CHECKS["sessions"]

    def errors(turns: int) -> list[str]:
        plan = {"experiment": {"load": {"workload": {"turns": turns}}}}
        return check.plan_errors(check.Params(), plan)

    assert errors(4) == []
    assert errors(1) == ["a chat of one turn cannot go on; make load.workload.turns 2 or more"]
