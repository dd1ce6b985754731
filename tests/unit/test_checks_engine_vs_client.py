from pathlib import Path

import pytest

from drills.model import Verdict
from tests.unit import runs
from tests.unit.probed import QUEUE_S
from tests.unit.runs import FAULT, HIT, RECOVERY, VICTIM, Run, judge


def held_up(run: Run, by_s: float) -> Run:
    """Requests begun in the fault wait that much longer at the client, and not at the engine."""
    for r in run.between(HIT, RECOVERY):
        r |= {key: r[key] + by_s for key in ("headers", "first_token", "last_token", "end")}
        r["chunks"] = [ms + 1000 * by_s for ms in r["chunks"]]
    return run


@pytest.mark.parametrize("metric", ["ttft", "e2e", "tpot"])
@pytest.mark.parametrize("cohort", ["baseline", "fault"])
def test_pass_and_the_probes_own_completions_do_not_count(tmp_path: Path, metric: str, cohort: str) -> None:
    row = judge(runs.healthy(), tmp_path, "engine_vs_client", metric=metric, cohort=cohort, max=0.02)
    assert row.verdict is Verdict.PASS, row.reason
    assert row.value == pytest.approx(0.0 if metric == "tpot" else QUEUE_S, abs=0.005)
    assert row.detail["metrics"].startswith("vllm:")
    if metric != "tpot":
        assert row.detail["engine"]["not_ours"] == pytest.approx(170, abs=25)


def test_fail_when_the_time_is_lost_in_front_of_the_engine(tmp_path: Path) -> None:
    row = judge(held_up(runs.healthy(), 3.0), tmp_path, "engine_vs_client", metric="ttft", max=0.25)
    assert row.verdict is Verdict.FAIL
    assert row.value == pytest.approx(3.01, abs=0.005)
    assert "in the mean 3100 ms at the client" in row.reason
    assert "250 ms allowed" in row.reason
    assert row.detail["baseline"]["client_mean_s"] == pytest.approx(0.1)


def test_what_the_engine_itself_lost_is_not_in_front_of_it(tmp_path: Path) -> None:
    run = held_up(runs.healthy(), 0.5)
    for s in run.samples:
        if s["probe"] == "vllm" and s["ok"]:
            served = max(0.0, s["mono"] - max(HIT, s["values"]["started"])) * 20 / 3
            s["values"]["ttft_sum"] += 0.5 * served * (1 if s["subject"] == VICTIM else 1.17)
    row = judge(run, tmp_path, "engine_vs_client", metric="ttft", max=0.1)
    assert row.verdict is Verdict.PASS, row.reason


def test_inconclusive_without_answers_of_the_model(tmp_path: Path) -> None:
    run = runs.healthy()
    for r in run.between(HIT, RECOVERY):
        r |= {"outcome": "degraded", "model": "lab-small"}
    row = judge(run, tmp_path, "engine_vs_client", max=0.1)
    assert (row.verdict, "0 full answers of the model" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_without_counters(tmp_path: Path) -> None:
    run = runs.healthy()
    run.samples = [s for s in run.samples if s["probe"] != "vllm" or s["mono"] < FAULT]
    row = judge(run, tmp_path / "a", "engine_vs_client", max=0.1)
    assert (row.verdict, row.reason) == (Verdict.INCONCLUSIVE, "ttft: replica-0 never told it")
    assert judge(runs.quiet(), tmp_path / "b", "engine_vs_client", max=0.1).verdict is Verdict.INCONCLUSIVE


def test_inconclusive_when_counters_were_reset_and_most_of_them_is_lost(tmp_path: Path) -> None:
    run = runs.healthy()
    run.samples = [
        s
        for s in run.samples
        if s["probe"] != "vllm" or int(s["mono"] - HIT) % 9 == 0 or not s["ok"] or s["mono"] < HIT
    ]
    for s in run.samples:
        if s["probe"] == "vllm" and s["ok"] and s["mono"] > HIT + 2:
            s["values"] |= {"started": s["mono"]} | {
                k: v * 0.001 for k, v in s["values"].items() if k.endswith(("sum", "count"))
            }
    row = judge(run, tmp_path, "engine_vs_client", max=0.1)
    assert (row.verdict, "counters were reset" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_without_a_ledger_the_engines_own_mean_is_taken_as_it_is(tmp_path: Path) -> None:
    run = runs.healthy()
    run.has_ledger = False
    row = judge(run, tmp_path, "engine_vs_client", max=0.1)
    assert (row.verdict, row.detail["engine"]["not_ours"]) == (Verdict.PASS, None)


def test_what_was_given_up_in_front_of_the_engine_was_made_by_it_all_the_same(tmp_path: Path) -> None:
    """A delay holds the first bytes back; most clients leave, a few wait."""
    run = runs.healthy()
    kept = {r["arrival"] for r in run.between(HIT, RECOVERY)[::20]}
    for r in run.between(HIT, RECOVERY):
        r |= {} if r["arrival"] in kept else {"outcome": "degraded", "model": "lab-small"}
        r |= {key: r[key] + 3 for key in ("headers", "first_token", "last_token", "end")}
    for a in run.ledger:
        if HIT <= a["start"] < RECOVERY and int(a["id"].split("-")[1]) not in kept:
            a |= {
                "first_byte": None,
                "last_byte": None,
                "status": None,
                "end": a["start"] + 0.4,
                "close": "client_gone",
            }
    row = judge(run, tmp_path, "engine_vs_client", metric="ttft", max=0.25)
    assert row.verdict is Verdict.FAIL, row.reason
    assert row.value == pytest.approx(3.01, abs=0.01)


def test_inconclusive_when_most_of_what_the_engine_did_was_for_others(tmp_path: Path) -> None:
    run = runs.healthy()
    for s in run.samples:
        if s["probe"] == "vllm" and s["ok"]:
            s["values"]["ttft_count"] *= 3
    row = judge(run, tmp_path, "engine_vs_client", metric="ttft", max=0.25)
    assert (row.verdict, "were not the run's" in row.reason) == (Verdict.INCONCLUSIVE, True)


@pytest.mark.parametrize("took", ["gone", "failed", None, -5.0, "x"])
def test_inconclusive_when_the_probes_own_completions_are_not_known(tmp_path: Path, took: object) -> None:
    run = runs.healthy()
    for s in run.samples:
        if s["probe"] == "completion" and s["ok"]:
            s["values"]["ttft_ms"] = took
    if took in ("gone", "failed"):
        run.samples = [
            s | {"ok": False, "error": "timed out"} if s["probe"] == "completion" else s
            for s in run.samples
            if took == "failed" or s["probe"] != "completion"
        ]
    row = judge(run, tmp_path, "engine_vs_client", max=0.1)
    assert (row.verdict, "no completion of one token was measured" in row.reason) == (Verdict.INCONCLUSIVE, True)


def test_inconclusive_when_one_engine_was_not_read(tmp_path: Path) -> None:
    run = runs.healthy()
    run.samples = [s for s in run.samples if (s["probe"], s["subject"]) != ("vllm", "replica-2")]
    row = judge(run, tmp_path, "engine_vs_client", max=0.1)
    assert (row.verdict, row.reason) == (Verdict.INCONCLUSIVE, "ttft: replica-2 never told it")
