from collections.abc import Callable
from pathlib import Path

import pytest

from drills.checks import engines
from drills.model import Verdict
from tests.unit import runs
from tests.unit.probed import CACHED, PROMPT
from tests.unit.runs import BACK, BASELINE, END, FAULT, HIT, READY, START, VICTIM, Json, Run, judge


def counted(run: Run, cached: Callable[[float], int], begin: float = BACK) -> Run:
    """From `begin` on the victim's engine finds so many of a prompt's tokens in its cache."""
    found, before = 0.0, begin
    for s in run.samples:
        if s["probe"] != "vllm" or s["subject"] != VICTIM or not s["ok"] or s["mono"] < begin:
            continue
        found += cached(s["mono"]) * (s["mono"] - before) * 20 / 3
        before = s["mono"]
        s["values"]["prefix_hits"] = found
    return run


def slow(run: Run, until: float, by_s: float = 0.2) -> Run:
    """Until then what the victim answers after its return takes that much longer to its first token."""
    mine = {int(a["id"].split("-")[1]) for a in run.ledger if a["replica"] == VICTIM and BACK <= a["start"] < until}
    for r in run.requests:
        if r["arrival"] in mine:
            r |= {key: r[key] + by_s for key in ("first_token", "last_token", "end")}
            r["chunks"] = [ms + 1000 * by_s for ms in r["chunks"]]
    return run


def test_pass(tmp_path: Path) -> None:
    row = judge(runs.healthy(), tmp_path, "cache_recovery", within=20.0)
    assert (row.verdict, row.value, row.bound) == (Verdict.PASS, 0.0, 20.0)
    detail = row.detail[VICTIM]
    assert detail["baseline_hit_rate"] == pytest.approx(CACHED / PROMPT, abs=1e-6)
    assert detail["re_prefilled_tokens"] == 0
    assert "vllm:prefix_cache_hits_total" in row.detail["metrics"]


def test_counted_from_the_return_to_the_first_window_that_is_as_good(tmp_path: Path) -> None:
    run = counted(runs.healthy(), lambda mono: CACHED if mono > READY + 20 else 0)
    row = judge(run, tmp_path, "cache_recovery", within=20.0)
    assert row.verdict is Verdict.PASS
    assert row.value == pytest.approx(19, abs=1.1)
    cold_s = READY + 20 - BACK
    assert row.detail[VICTIM]["re_prefilled_tokens"] == pytest.approx(cold_s * 20 / 3 * CACHED, rel=0.1)
    late = judge(run, tmp_path, "cache_recovery", within=10.0)
    assert (late.verdict, "10 s allowed" in late.reason) == (Verdict.FAIL, True)


def test_a_cache_that_is_warm_does_not_help_while_first_tokens_are_late(tmp_path: Path) -> None:
    row = judge(slow(runs.healthy(), READY + 30), tmp_path, "cache_recovery", within=40.0)
    assert row.verdict is Verdict.PASS
    assert row.value == pytest.approx(25, abs=2.1)  # half of a window is enough for its median


def test_fail_when_the_cache_stays_cold(tmp_path: Path) -> None:
    row = judge(counted(runs.healthy(), lambda _: 300), tmp_path, "cache_recovery", within=20.0)
    assert (row.verdict, row.value) == (Verdict.FAIL, None)
    assert "hit rate 42.9 % (64.3 % needed)" in row.reason
    assert "20 s allowed" in row.reason


def test_fail_when_there_was_no_prefix_cache_to_begin_with(tmp_path: Path) -> None:
    run = runs.healthy()
    for s in run.samples:
        if s["probe"] == "vllm" and s["ok"]:
            s["values"] |= {"prefix_hits": 0, "prefix_queries": 0}
    row = judge(run, tmp_path / "off", "cache_recovery", within=20.0)
    assert row.verdict is Verdict.FAIL
    assert "looked up in a prefix cache: it is off; at least 50 % are needed" in row.reason
    low = counted(runs.healthy(), lambda _: 200, begin=START)
    row = judge(low, tmp_path / "low", "cache_recovery", within=20.0)
    assert (row.verdict, "served 28.6 %" in row.reason) == (Verdict.FAIL, True)
    assert judge(low, tmp_path / "low", "cache_recovery", within=20.0, baseline_min=0.2).verdict is Verdict.PASS


def test_fail_when_the_victim_never_came_back(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("completion")
    row = judge(run, tmp_path, "cache_recovery", within=20.0)
    assert (row.verdict, "never came back" in row.reason) == (Verdict.FAIL, True)


def test_a_victim_that_was_not_restarted_is_back_when_the_fault_is_off(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("replica")
    run.drop("completion")
    for proof in (*run.of("proof.on"), *run.of("proof.off")):
        proof["held"] = True
    for event in run.events:
        if event["event"] == "proof.off":
            event["mono"] = READY
    row = judge(run, tmp_path, "cache_recovery", within=20.0)
    assert row.verdict is Verdict.PASS
    assert row.value == pytest.approx(0.5, abs=0.6)


def _first_turns(run: Run) -> None:
    for r in run.requests:
        r["turn"] = 1


def _unread(run: Run) -> None:
    run.samples = [s for s in run.samples if s["probe"] != "vllm"]


def _unread_after(run: Run) -> None:
    run.samples = [s for s in run.samples if s["probe"] != "vllm" or s["mono"] < FAULT]


def _nameless(run: Run) -> None:
    for s in run.samples:
        if s["probe"] == "vllm" and s["ok"]:
            s["values"] = {k: v for k, v in s["values"].items() if k != "prefix_hits"}


@pytest.mark.parametrize("spoil", [_first_turns, _unread, _unread_after, _nameless])
def test_inconclusive_without_turns_or_counters(tmp_path: Path, spoil: Callable[[Run], None]) -> None:
    run = runs.healthy()
    spoil(run)
    row = judge(run, tmp_path, "cache_recovery", within=20.0)
    assert row.verdict is Verdict.INCONCLUSIVE, row.reason


def test_inconclusive_when_nothing_was_injected_or_the_watch_was_too_short(tmp_path: Path) -> None:
    assert judge(runs.quiet(), tmp_path / "a", "cache_recovery", within=20.0).verdict is Verdict.INCONCLUSIVE
    cold = counted(runs.healthy(), lambda _: 300)
    assert judge(cold, tmp_path / "b", "cache_recovery", within=90.0).verdict is Verdict.INCONCLUSIVE


def test_a_restart_is_seen_also_when_the_new_counters_are_soon_higher(tmp_path: Path) -> None:
    """The engine's own start time tells; the values alone would not."""
    run = runs.healthy()
    for s in run.samples:
        if s["probe"] == "vllm" and s["subject"] == VICTIM and s["ok"] and s["mono"] > HIT:
            values: Json = s["values"]
            values |= {"prefix_hits": values["prefix_hits"] + 1e6, "prefix_queries": values["prefix_queries"] + 1.4e6}
    ev = run.evidence(tmp_path)
    counter = engines.counter(ev, VICTIM, "prefix_hits")
    before, after = counter.rise(BASELINE, FAULT), counter.rise(FAULT, END)
    assert before == pytest.approx(60 * 20 / 3 * CACHED, rel=0.05)
    assert after == pytest.approx(1e6 + (END - BACK) * 20 / 3 * CACHED, rel=0.05)
