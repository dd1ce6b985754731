from pathlib import Path

import pytest

from drills.checks import CHECKS
from drills.model import Verdict
from drills.params import FROM_FILE
from tests.unit import runs
from tests.unit.retries import again, cut_link, degrade, held, in_fault, quiet_service
from tests.unit.runs import HIT, MOVED, VICTIM, judge


def refused(run: runs.Run, count: int = 20) -> list[runs.Json]:
    """Have the victim refuse an attempt of so many arrivals, all of which another replica answers."""
    mine = in_fault(run)[:count]
    for r in mine:
        gone = {"status": None, "first_byte": None, "last_byte": None, "close": "refused", "end": r["intended"] + 0.003}
        run.ledger.append(runs.attempt(r["arrival"], r["intended"], VICTIM, **gone))
    return mine


def test_pass_when_the_router_saves_them(tmp_path: Path) -> None:
    run = quiet_service()
    refused(run)
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, row.value, row.bound, row.n) == (Verdict.PASS, 1.0, 0.95, 20)
    assert (row.detail["hit_at_replicas"], row.detail["hit_at_client"]) == (20, 0)


def test_pass_when_the_client_saves_them(tmp_path: Path) -> None:
    run = quiet_service()
    again(run, in_fault(run)[:20], 1, by_client=True)
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, row.value, row.n) == (Verdict.PASS, 1.0, 20)
    assert (row.detail["hit_at_replicas"], row.detail["hit_at_client"]) == (0, 20)


def test_fail_when_they_are_lost(tmp_path: Path) -> None:
    run = quiet_service()
    run.fail(refused(run)[:10])
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, row.value, row.detail["lost"]) == (Verdict.FAIL, 0.5, 10)
    assert "5 % may be" in row.reason


def test_one_of_a_few_lost_is_not_enough_to_say(tmp_path: Path) -> None:
    run = quiet_service()
    run.fail(refused(run, 12)[:1])
    row = judge(run, tmp_path, "retried")
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.value == pytest.approx(0.917, abs=0.001)
    assert judge(run, tmp_path, "retried", min_share=0.9).verdict is Verdict.PASS


def test_what_was_cut_after_its_first_token_no_retry_could_save(tmp_path: Path) -> None:
    run = quiet_service()
    for r in refused(run):
        end = r["first_token"] + 0.2
        r |= {"outcome": "truncated", "done": False, "finish": None, "end": end}
        r["attempts"][-1] |= {"outcome": "truncated", "end": end}
        run.ledger[-1]["end"] = end
    for line in run.ledger[-20:]:
        line |= {"close": "upstream_reset", "end": line["start"] + 0.3}
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, row.detail["hit_at_replicas"], row.detail["hit_at_client"]) == (Verdict.INCONCLUSIVE, 0, 0)


def test_a_degraded_answer_is_no_retry(tmp_path: Path) -> None:
    run = quiet_service()
    mine = refused(run)
    degrade(mine[:10])
    row = judge(run, tmp_path / "a", "retried")
    assert (row.verdict, row.n, row.detail["degraded"]) == (Verdict.PASS, 10, 10)
    degrade(mine)
    row = judge(run, tmp_path / "b", "retried")
    assert (row.verdict, "all 20 hit got a degraded answer" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_an_attempt_that_was_given_up_and_made_elsewhere_was_saved(tmp_path: Path) -> None:
    run = quiet_service()
    for r in in_fault(run)[:20]:
        hung: runs.Json = {"status": None, "first_byte": None, "last_byte": None, "close": "client_gone"}
        hung["end"] = r["first_token"] - 0.05
        run.ledger.append(runs.attempt(r["arrival"], r["intended"] - 0.001, VICTIM, **hung))
    assert judge(run, tmp_path, "retried").detail["hit_at_replicas"] == 20


def test_failures_at_other_replicas_and_before_the_fault_are_not_the_faults(tmp_path: Path) -> None:
    run = quiet_service()
    for r in [*run.between(HIT - 20, HIT - 19), *in_fault(run)[:20]]:
        replica = "replica-2" if r["intended"] > HIT else VICTIM
        gone = {"close": "refused", "end": r["intended"] + 0.003}
        run.ledger.append(runs.attempt(r["arrival"], r["intended"], replica, **gone))
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, "nothing to retry" in row.reason) == (Verdict.INCONCLUSIVE, True)


# ---- a cut link: nobody behind it sees what it swallows -------------------------------------------------


def test_a_cut_link_is_counted_by_its_rule(tmp_path: Path) -> None:
    row = judge(cut_link(quiet_service(), swallowed=20), tmp_path, "retried")
    assert (row.verdict, row.n, row.detail["swallowed"], row.value) == (Verdict.PASS, 20, 20, 1.0)


def test_what_the_client_saw_of_a_cut_link_is_among_what_the_rule_counted(tmp_path: Path) -> None:
    run = cut_link(quiet_service(), swallowed=40)
    victims = [r for r in in_fault(run, HIT, HIT + 10) if r["arrival"] % 3 == 1]
    again(run, victims[:10], 1, by_client=True)
    again(run, victims[10:20], 1, by_client=True, last="error")
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, row.n, row.detail["hit_at_client"], row.detail["lost"]) == (Verdict.FAIL, 40, 20, 10)


def test_health_checks_are_no_hits(tmp_path: Path) -> None:
    run = cut_link(quiet_service(), swallowed=0)
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, "nothing to retry" in row.reason) == (Verdict.INCONCLUSIVE, True)
    assert judge(run, tmp_path, "retried", health_checks=None).n == 59


def test_inconclusive_when_nobody_looked_at_the_counter(tmp_path: Path) -> None:
    run = cut_link(quiet_service(), swallowed=20)
    run.samples = [s for s in run.samples if s["probe"] != "fault"]
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, "nobody looked at the counter" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_who_was_degraded_behind_a_cut_link_is_left_out(tmp_path: Path) -> None:
    run = cut_link(quiet_service(), swallowed=20)
    mine = [r for r in in_fault(run, HIT, MOVED) if r["arrival"] % 3 == 1]
    degrade(mine)
    gone = {r["arrival"] for r in mine}
    run.ledger = [line for line in run.ledger if int(line["id"].split("-")[1]) not in gone]
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, row.n, row.detail["degraded"]) == (Verdict.PASS, 20 - len(mine), len(mine))


def test_inconclusive_when_there_is_nothing_to_retry(tmp_path: Path) -> None:
    for n, run in enumerate([quiet_service(), held(quiet_service()), runs.quiet()]):
        assert judge(run, tmp_path / str(n), "retried").verdict is Verdict.INCONCLUSIVE


def test_without_a_ledger_the_client_tells(tmp_path: Path) -> None:
    run = quiet_service()
    again(run, in_fault(run)[:20], 1, by_client=True)
    run.has_ledger = False
    assert judge(run, tmp_path, "retried").n == 20


@pytest.mark.parametrize("params", [{"min_share": "120%"}, {"min_share": 0.9}, {"health_checks": 1}, {"budget": "10%"}])
def test_parameters_that_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(params))):
        CHECKS["retried"].Params.model_validate(params, context=FROM_FILE, strict=True)


def test_connections_are_no_requests(tmp_path: Path) -> None:
    """One request that was lost may have made any number of them, so they do not dilute it."""
    for number, per_s in enumerate((1, 2, 4)):
        run = cut_link(quiet_service(), swallowed=10, checks_per_s=1.0 + per_s)
        again(run, in_fault(run, HIT + 20)[:6], 1, by_client=True, last="error")
        row = judge(run, tmp_path / str(number), "retried")
        assert row.verdict is not Verdict.PASS
        assert row.detail["lost"] == 6
    assert "6 were lost, of at least 6 and at most" in row.reason


def test_what_comes_as_steadily_as_health_checks_is_no_hit(tmp_path: Path) -> None:
    row = judge(cut_link(quiet_service(), swallowed=0, checks_per_s=3.0), tmp_path, "retried")
    assert (row.verdict, "as steadily as health checks come" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_a_counter_that_cannot_be_true_shows_nothing(tmp_path: Path) -> None:
    row = judge(cut_link(quiet_service(), swallowed=100_000), tmp_path / "many", "retried")
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "the rule counted 100000 attempts to connect, and only " in row.reason
    for name, (first, second) in {"backwards": (40, 5), "stood still": (7, 7)}.items():
        run = cut_link(quiet_service(), swallowed=20)
        for sample in run.samples:
            if sample["probe"] == "fault":
                sample["values"]["new"] = first if sample["mono"] < HIT + 30 else second
        row = judge(run, tmp_path / name, "retried")
        assert (row.verdict, name in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_without_requests_nothing_was_saved(tmp_path: Path) -> None:
    run = cut_link(quiet_service(), swallowed=20)
    run.requests, run.ledger = run.between(runs.START, HIT - 5), []
    row = judge(run, tmp_path, "retried")
    assert (row.verdict, "no request was open" in row.reason) == (Verdict.INCONCLUSIVE, True)
