"""A run folder is read as it is: cohorts, instants, victims; missing and torn files are said, not guessed."""

import math
from pathlib import Path

import pytest

from drills import evidence
from drills.errors import DrillError
from drills.model import Phase
from tests.unit import runs
from tests.unit.runs import BASELINE, END, FAULT, HIT, RECOVERY, START, VICTIM


def test_cohorts_by_intended_start(tmp_path: Path) -> None:
    ev = runs.healthy().evidence(tmp_path)
    baseline, caught, fault = (ev.cohort(name) for name in ("baseline", "caught", "fault"))
    assert baseline["intended"].min() == BASELINE
    assert baseline["intended"].max() == pytest.approx(HIT - 6.0 - 0.03)  # one E2E SLA before the injection
    assert fault["intended"].min() == pytest.approx(HIT + 0.02)
    assert fault["intended"].max() == pytest.approx(RECOVERY - 0.05)
    assert caught["intended"].max() == pytest.approx(HIT - 0.03)
    assert min(caught["end"].to_list()) > HIT
    assert set(caught["outcome"]) == {"ok", "truncated", "error"}


def test_caught_are_open_requests_only(tmp_path: Path) -> None:
    run = runs.healthy()
    shed, hung, early = run.between(HIT - 1, HIT)[:3]
    shed |= {"outcome": "shed", "sent": None, "end": None}
    hung |= {"outcome": "hung", "end": None}
    early |= {"end": HIT - 0.01}
    caught = run.evidence(tmp_path).cohort("caught")["arrival"].to_list()
    assert hung["arrival"] in caught
    assert shed["arrival"] not in caught
    assert early["arrival"] not in caught


def test_an_unknown_cohort_is_our_bug(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no cohort"):
        runs.healthy().evidence(tmp_path).cohort("all")


def test_instants(tmp_path: Path) -> None:
    ev = runs.healthy().evidence(tmp_path)
    assert (ev.t_inject, ev.t_off, ev.held) == (HIT, HIT, False)
    assert ev.phase(Phase.FAULT) == evidence.Span(FAULT, RECOVERY, ev.of("phase")[2].n)
    assert ev.ended == END
    assert list(ev.victims) == [VICTIM]
    assert ev.victims[VICTIM]["uid"] == "u1"


def test_a_held_fault_is_off_when_that_is_proven(tmp_path: Path) -> None:
    run = runs.healthy()
    run.drop("proof.off")
    run.tell(RECOVERY, "proof.off", receipt="r1", held=True, ok=False)
    assert run.evidence(tmp_path).t_off is None
    run.tell(RECOVERY + 2, "proof.off", receipt="r1", held=True, ok=True)
    assert run.evidence(tmp_path).t_off == RECOVERY + 2


def test_what_was_in_flight_on_the_victim_is_the_ledgers_word(tmp_path: Path) -> None:
    run = runs.healthy()
    before = run.evidence(tmp_path).in_flight_on_victims
    assert len(before) == 5
    mine = next(a for a in run.ledger if a["id"] == f"{runs.RUN}-{min(before)}-0")
    foreign = dict(mine, id="somebody-else", end=None)
    never_ended = dict(mine, id=f"{runs.RUN}-7-0", end=None, close="open")
    later = dict(mine, id=f"{runs.RUN}-9-0", start=HIT + 0.01, end=None)
    elsewhere = dict(mine, id=f"{runs.RUN}-11-0", replica="replica-0")
    run.ledger += [foreign, never_ended, later, elsewhere]
    assert run.evidence(tmp_path).in_flight_on_victims == before | {7}


def test_what_reaches_the_victim_while_a_held_fault_comes_on_is_caught_by_it(tmp_path: Path) -> None:
    run = runs.healthy()
    begun = HIT + 0.05
    run.ledger.append(runs.attempt(9, begun, runs.VICTIM))
    assert 9 not in run.evidence(tmp_path / "one-shot").in_flight_on_victims
    for proof in run.of("proof.on"):
        proof["held"] = True
    assert 9 in run.evidence(tmp_path / "held").in_flight_on_victims
    run.ledger[-1]["start"] = HIT + 0.2  # the deed is done at HIT + 0.1
    assert 9 not in run.evidence(tmp_path / "later").in_flight_on_victims


def test_latencies_count_from_the_intended_start_and_failures_are_infinite(tmp_path: Path) -> None:
    run = runs.healthy()
    late, failed, mute, single = run.requests[300:304]
    late |= {"intended": late["intended"] - 3.0}
    run.fail([failed])
    mute |= {"chunks": [], "first_token": None}  # "ok" without a token is no evidence of speed
    single |= {"chunks": [12.0], "tokens": 1}
    frame = run.evidence(tmp_path).measured
    rows = {row["arrival"]: row for row in frame.iter_rows(named=True)}
    assert rows[late["arrival"]]["ttft"] == pytest.approx(3.1)
    assert rows[late["arrival"]]["violation"]
    assert rows[failed["arrival"]]["ttft"] == rows[failed["arrival"]]["e2e"] == math.inf
    assert rows[failed["arrival"]]["tpot"] == math.inf
    assert rows[mute["arrival"]]["ttft"] == rows[mute["arrival"]]["max_gap"] == math.inf
    assert rows[single["arrival"]]["max_gap"] == 0.0
    assert rows[single["arrival"]]["tpot"] is None
    assert rows[0]["max_gap"] == pytest.approx(0.1)
    assert rows[0]["tpot"] == pytest.approx(0.7 / 31)


def test_what_the_run_cut_off_itself_at_its_end_is_not_held_against_the_service(tmp_path: Path) -> None:
    run = runs.healthy()
    old, young = run.between(END - 20, END - 19)[0], run.between(END - 1, END)[0]
    for r in (old, young):
        r |= {"outcome": "cancelled"}
    watched = run.evidence(tmp_path).watched["arrival"].to_list()
    assert old["arrival"] in watched
    assert young["arrival"] not in watched


def test_a_run_cut_short_while_the_fault_was_on_does_not_count_what_its_own_end_cancelled(tmp_path: Path) -> None:
    run, stopped = runs.healthy(), runs.FAULT + 20
    run.drop("phase", lambda e: e["phase"] == "recovery")
    run.events = [e for e in run.events if e["mono"] < stopped]
    run.tell(stopped, "load.stopping")
    run.requests = [r for r in run.requests if r["intended"] < stopped]
    open_then, hung_before = run.between(stopped - 1, stopped), run.between(stopped - 15, stopped - 14)[0]
    for r in (*open_then, hung_before):
        r |= {"outcome": "cancelled"}
    ev = run.evidence(tmp_path)
    fault = ev.cohort("fault")["arrival"].to_list()
    assert open_then
    assert not {r["arrival"] for r in open_then} & set(fault)
    assert hung_before["arrival"] in fault


@pytest.mark.parametrize("count", [1, 2, 3, 6, 8, 9, 12, 15])
def test_any_prefix_of_a_journal_can_be_read(tmp_path: Path, count: int) -> None:
    run = runs.healthy()
    run.events = sorted(run.events, key=lambda e: e["mono"])[:count]
    ev = run.evidence(tmp_path)
    assert (ev.t_inject is None) == (not run.of("inject.hit"))
    assert ev.cohort("baseline").height >= 0
    assert ev.cohort("fault").height >= 0
    assert ev.run == runs.RUN


@pytest.mark.parametrize("name", ["requests.ndjson", "ledger.ndjson", "samples.ndjson"])
def test_a_torn_last_line_costs_that_line(tmp_path: Path, name: str) -> None:
    run = runs.healthy()
    run.evidence(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-20])
    ev = evidence.read(tmp_path)
    assert not ev.problems
    lost = {
        "requests.ndjson": len(run.requests) - ev.requests.height,
        "ledger.ndjson": len(run.ledger) - ev.ledger.height,
        "samples.ndjson": len(run.samples) - len(ev.samples),
    }
    assert lost.pop(name) == 1
    assert set(lost.values()) == {0}


@pytest.mark.parametrize("name", ["requests.ndjson", "ledger.ndjson", "samples.ndjson"])
def test_damage_in_a_file_is_a_problem_with_its_name(tmp_path: Path, name: str) -> None:
    runs.healthy().evidence(tmp_path)
    path = tmp_path / name
    path.write_bytes(b"{not json\n" + path.read_bytes())
    assert [name in problem for problem in evidence.read(tmp_path).problems] == [True]


@pytest.mark.parametrize("name", ["requests.ndjson", "ledger.ndjson", "samples.ndjson"])
@pytest.mark.parametrize("content", [None, b"", b'{"arrival":'])
def test_files_may_be_missing_or_empty(tmp_path: Path, name: str, content: bytes | None) -> None:
    runs.healthy().evidence(tmp_path)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
    ev = evidence.read(tmp_path)
    assert not ev.problems
    assert ev.has_ledger == (name != "ledger.ndjson" or content is not None)


def test_a_line_longer_than_a_block_is_found(tmp_path: Path) -> None:
    run = runs.healthy()
    run.requests[-1]["detail"] = "x" * 3_000_000
    run.evidence(tmp_path)
    path = tmp_path / "requests.ndjson"
    path.write_bytes(path.read_bytes()[:-20])
    assert evidence.read(tmp_path).requests.height == len(run.requests) - 1


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(DrillError, match=r"journal\.jsonl: the journal cannot be read"):
        evidence.read(tmp_path)
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(DrillError, match="there is no plan here"):
        evidence.read(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(DrillError, match=r"plan\.json: cannot be read as JSON"):
        evidence.read(tmp_path)


def test_the_plan_of_the_journal_is_the_one_that_counts(tmp_path: Path) -> None:
    runs.healthy().evidence(tmp_path)
    (tmp_path / "plan.json").unlink()
    assert evidence.read(tmp_path).sla.ttft.value_s == 1.0
    assert evidence.read(tmp_path).requests["intended"].min() == START
