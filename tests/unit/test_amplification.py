"""Attempts are counted as a script that looks at one record at a time would count them, on any run."""

import random
from pathlib import Path

import pytest

from drills.checks import CHECKS
from drills.checks.amplification import WINDOW_S, Attempts, Series
from drills.evidence import read
from drills.model import Verdict
from tests.unit import runs
from tests.unit.retries import again, cut_link, degrade, held, in_fault, quiet_service
from tests.unit.runs import END, HIT, START

MINE = ("retried", "retry_storm", "degraded", "sessions", "goodput")


def by_hand(run: runs.Run, begin: float, end: float) -> tuple[int, int, int, int]:
    """Return arrivals, attempts of the client, at primaries and at fallbacks, of those intended in that time."""
    mine = [r for r in run.requests if begin <= r["intended"] < end and r["attempts"]]
    wanted = {r["arrival"] for r in mine}
    lines = [line for line in run.ledger if line["id"] and int(line["id"].split("-")[1]) in wanted]
    primary = sum(line["role"] == "primary" for line in lines)
    return len(mine), sum(len(r["attempts"]) for r in mine), primary, len(lines) - primary


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_counting_by_hand(tmp_path: Path, seed: int) -> None:
    rng, run = random.Random(seed), held(quiet_service(7.0 + seed))
    for r in rng.sample(run.requests, 300):
        again(run, [r], rng.randint(1, 4), by_client=rng.random() < 0.5)
    for r in rng.sample(run.requests, 100):
        run.ledger.append(runs.attempt(r["arrival"], r["intended"], "small-0", role="fallback"))
    for r in rng.sample(run.requests, 50):
        r |= {"outcome": "shed", "sent": None, "attempts": []}
    run.ledger.append(runs.attempt(3, HIT, "replica-0", id=None))
    attempts = Attempts(run.evidence(tmp_path))
    for _ in range(20):
        begin = rng.uniform(START, END)
        end = begin + rng.uniform(0, 40)
        found = attempts.count(begin, end)
        assert (found.arrivals, found.client, found.engine, found.fallback) == by_hand(run, begin, end)


def test_windows_end_with_the_load(tmp_path: Path) -> None:
    attempts = Attempts(held(quiet_service()).evidence(tmp_path))
    begins = [round(count.begin - HIT, 6) for count in attempts.windows(HIT, END, END)]
    assert begins == [float(n) for n in range(len(begins))]
    assert HIT + begins[-1] + WINDOW_S <= END < HIT + begins[-1] + WINDOW_S + 1.0
    assert [count.begin for count in attempts.windows(END - 3, END, END)] == []


def test_a_counter_grows_evenly_between_looks() -> None:
    series = Series([1.0, 2.0, 4.0], [0.0, 10.0, 30.0])
    assert [series.at(t) for t in (0.0, 1.0, 1.5, 3.0, 4.0, 9.0)] == [0.0, 0.0, 5.0, 20.0, 30.0, 30.0]
    assert series.between(1.5, 3.0) == 15.0
    assert Series([], []).at(1.0) == 0.0


def test_no_prefix_of_a_journal_breaks_a_check(tmp_path: Path) -> None:
    run = cut_link(quiet_service(4.0))
    degrade(in_fault(run)[:20])
    again(run, in_fault(run)[20:30], 2, by_client=True)
    run.recount()
    path = run.write(tmp_path) / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for length in range(1, len(lines) + 1):
        path.write_text("".join(lines[:length]))
        ev = read(tmp_path)
        rows = [CHECKS[name].judge(ev, CHECKS[name].Params()) for name in MINE]
        if not ev.hits:
            assert {row.verdict for row in rows} == {Verdict.INCONCLUSIVE}
