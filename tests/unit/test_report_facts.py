"""What the postmortem says of budget, tokens, response, surprises, deviations and clocks, each from its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.errors import UsageError
from drills.report import budget, drilled, factors, response, retries, router, waste
from drills.report import run as report
from drills.report.facts import Facts
from drills.report.source import read
from tests.unit import runs
from tests.unit.retries import quiet_service
from tests.unit.runs import BACK, HIT, READY, RECOVERY, VICTIM

WORKER = 'vllm_router_cb_state{worker="http://10.0.0.2:8000"}'


def facts(run: runs.Run, folder: Path) -> Facts:
    run.recount()
    return Facts(read(run.write(folder)))


def breaker(run: runs.Run, states: list[tuple[float, float]]) -> None:
    """Let the router's samples tell a breaker's state from each of those instants on."""
    for sample in run.samples:
        if sample["probe"] == "router":
            sample["values"][WORKER] = next(state for since, state in reversed(states) if sample["mono"] >= since)


# ---- budget --------------------------------------------------------------------------------------------


def test_the_budget_is_of_thirty_days_at_this_load(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.between(HIT + 5, HIT + 10))
    found = {one.promise: one for one in budget.budgets(facts(run, tmp_path))}
    answers = found["answers"]
    cut = sum(1 for r in run.requests if r["outcome"] != "ok")
    assert answers.bad == cut
    assert cut > 100  # those that failed, and those that the fault had caught
    assert answers.rate_per_s == pytest.approx(20.0, rel=0.01)
    assert answers.allowed == pytest.approx(0.01 * 20 * 30 * 86400, rel=0.01)
    assert answers.burnt == pytest.approx(cut / answers.allowed)
    text = budget.lines(facts(run, tmp_path))[0]
    assert text.startswith(f"Error budget of answers: {cut} of 2,0")
    assert "0.02" in text


def test_a_promise_without_errors_has_no_budget(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    run.plan["target"]["sla"] = runs.SLA | {"errors": 0.0}
    text = budget.lines(facts(run, tmp_path))[0]
    assert text.endswith("the SLA allows none, so there is no budget to burn.")


def test_without_an_injection_nothing_is_burnt(tmp_path: Path) -> None:
    assert budget.lines(facts(runs.quiet(5.0), tmp_path)) == [
        "Error budget: no data: no request began after an injection."
    ]


# ---- tokens --------------------------------------------------------------------------------------------


def test_what_was_generated_in_vain_is_counted_by_its_bytes(tmp_path: Path) -> None:
    run = quiet_service()
    extra = run.between(HIT + 20, HIT + 21)
    for record in extra:  # a first attempt broke after half of the answer, another one gave it
        lost = runs.attempt(record["arrival"], record["intended"], "replica-0", bytes=450, close="upstream_reset")
        run.ledger.append(lost | {"end": record["intended"] + 0.4, "last_byte": record["intended"] + 0.3})
    run.ledger.sort(key=lambda line: line["start"])
    seen = facts(run, tmp_path)
    found = waste.waste(seen, retries.attempts_of(seen))
    assert found is not None
    assert found.attempts == len(extra)
    assert found.bytes_per_token == pytest.approx(900 / 32)
    assert found.generated == round(450 * len(extra) / (900 / 32))
    assert found.again == len(extra)
    text = waste.lines(seen, retries.attempts_of(seen))[0]
    assert f"about {found.generated:,} generated in vain" in text


def test_of_several_whole_answers_one_was_used(tmp_path: Path) -> None:
    run = quiet_service()
    record = run.between(HIT + 20, HIT + 21)[0]
    again = runs.attempt(record["arrival"], record["intended"], "replica-0")
    run.ledger.append(again | {"id": f"{runs.RUN}-{record['arrival']}-1", "end": record["end"] - 0.1})
    seen = facts(run, tmp_path)
    found = waste.waste(seen, retries.attempts_of(seen))
    assert found is not None
    assert found.attempts == 1
    assert found.generated == 32


def test_without_a_ledger_nothing_is_said_of_tokens(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    run.has_ledger = False
    seen = facts(run, tmp_path)
    assert waste.lines(seen, retries.attempts_of(seen)) == []


# ---- router, response, surprises -----------------------------------------------------------------------


def test_transitions_of_the_router_are_in_the_timeline(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    breaker(run, [(0.0, 0.0), (HIT + 2, 1.0), (BACK + 8, 2.0), (BACK + 10, 0.0)])
    seen = facts(run, tmp_path)
    assert [(c.was, c.now) for c in router.changes(seen)] == [
        ("closed", "open"), ("open", "half-open"), ("half-open", "closed"),
    ]  # fmt: skip
    text = report.render(tmp_path)["postmortem.md"].decode()
    assert "router: breaker of `http://10.0.0.2:8000` is open, was closed | samples.ndjson, probe router" in text
    late = next(line for line in factors.factors(seen) if "breaker" in line)
    assert late.startswith("The router's breaker of `http://10.0.0.2:8000` closed 10.9 s")
    assert "after the victim answered again" in late


def test_a_breaker_that_stays_open_is_told(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    breaker(run, [(0.0, 0.0), (HIT + 2, 1.0)])
    told = factors.factors(facts(run, tmp_path))
    assert any("was not seen closed again" in line for line in told)


def test_an_unknown_state_of_a_gauge_is_shown_as_it_is(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    breaker(run, [(0.0, 0.0), (HIT + 2, 7.0)])
    assert [(c.was, c.now) for c in router.changes(facts(run, tmp_path))] == [("closed", "7")]


def test_who_did_what(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    seen = facts(run, tmp_path)
    told = [(deed.who, deed.what) for deed in response.deeds(seen)]
    assert (response.AUTOMATIC, f"`{VICTIM}` was started again by the supervisor") in told
    assert (response.DRILL, "`r1` put back by the run itself: restored clean") in told
    assert response.lines(seen)[0] == "First action by hand: none is recorded."


def test_what_people_did_is_by_hand(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    run.tell(HIT + 40, "stop", by="ada", how="drill stop")
    for data in run.of("revert.end"):
        data |= {"by": "recover", "manual": ["systemctl start vllm"], "restored": "dirty"}
    told = response.lines(facts(run, tmp_path))
    assert told[0].startswith("First action by hand: +0.30 s (journal ")
    assert "To be put back by hand: `systemctl start vllm`." in told


def test_surprises_are_facts(tmp_path: Path) -> None:
    assert factors.factors(facts(runs.healthy(), tmp_path / "quiet")) == []
    run = runs.healthy()
    run.tell(HIT + 9, "replica", replica="replica-2", role="primary", change="gone", uid="u-replica-2", source="x")
    run.tell(HIT + 9, "changed_by_others", what="replicas", subject="deployment", was=3, now=4)
    for line in run.ledger:
        if line["replica"] == "replica-0" and HIT + 30 <= line["start"] < HIT + 31:
            line["close"] = "upstream_reset"
    told = " ".join(factors.factors(facts(run, tmp_path / "run")))
    assert "`replica-2` was not aimed at, and was gone at +9.00 s (journal " in told
    assert "broke at `replica-0`, which was no victim (`ledger.ndjson`)" in told
    assert "Others changed the target: deployment: replicas 3 → 4" in told


# ---- the plan ------------------------------------------------------------------------------------------


def test_a_run_as_planned_deviates_in_nothing(tmp_path: Path) -> None:
    assert factors.deviations(facts(runs.healthy(), tmp_path)) == []


def spoilt() -> Iterator[tuple[str, runs.Run]]:
    run = runs.healthy()
    run.plan["phases"]["baseline_s"] = 90.0
    yield "The phase baseline took 60.0 s; 90.0 s were planned.", run
    run = runs.healthy()
    run.requests = run.requests[::2]
    yield "10 requests/s were offered; 20 are planned", run
    run = runs.healthy()
    run.events = [e for e in run.events if e["mono"] < RECOVERY]
    yield "The run was cut short: its journal has no end.", run
    yield "The phase recovery was planned for 100 s and did not begin.", run
    run = runs.healthy()
    run.drop("end")
    run.tell(runs.END + 3, "end", status="stopped", reason="SIGINT")
    yield "The run was stopped.", run


@pytest.mark.parametrize(("line", "run"), [pytest.param(*one, id=one[0][:40]) for one in spoilt()])
def test_where_a_run_leaves_its_plan_it_says_so(tmp_path: Path, line: str, run: runs.Run) -> None:
    told = factors.deviations(facts(run, tmp_path))
    assert any(said.replace("were planned (", "are planned (").startswith(line) for said in told), told


# ---- identity and clocks -------------------------------------------------------------------------------


def test_what_was_drilled(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    run.plan["target"] |= {"endpoint": "http://127.0.0.1:1/v1", "model": "m", "limits": {"environment": "staging"}}
    for data in run.of("header"):
        data |= {"oncall": "ada", "versions": {"vllm": "0.32.0"}, "facts": {"entry": {"use": "edge"}}}
    for sample in run.samples:
        if sample["probe"] == "gpu":
            sample["values"]["driver_version"] = "595.1"
    rows = dict(drilled.rows(facts(run, tmp_path)))
    assert rows["environment"] == "staging"
    assert rows["entry"] == "`http://127.0.0.1:1/v1`, at its edge"
    assert rows["replicas"] == "3 primaries of 3 expected (`replica-0`, `replica-1` and `replica-2`)"
    assert rows["versions"] == "GPU driver `595.1`, vllm `0.32.0`"
    assert rows["on call"] == "ada"


def test_the_readers_zone_stands_beside_utc(tmp_path: Path) -> None:
    folder = runs.healthy(5.0).write(tmp_path / "run")
    made = report.render(folder, tz="Asia/Shanghai")
    text, plain = made["postmortem.md"].decode(), report.render(folder)["postmortem.md"].decode()
    assert "| UTC | Asia/Shanghai | offset | what | source |" in text
    line = next(row for row in text.splitlines() if "the fault hits" in row)
    utc, local = (cell.strip() for cell in line.split("|")[1:3])
    assert (int(local[:2]) - int(utc[:2])) % 24 == 8
    assert local[2:] == utc[2:]
    assert "Shanghai" not in plain
    assert json.loads(made["postmortem.json"])["identity"]["time_zone"] == "Asia/Shanghai"
    assert report.render(folder, tz="Asia/Shanghai") == made


@pytest.mark.parametrize("name", ["Mars/Base", "../../etc/passwd", "x\n# owned", "/etc/localtime"])
def test_a_zone_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    folder = runs.healthy(2.0).write(tmp_path / "run")
    with pytest.raises(UsageError, match="no time zone of that name"):
        report.render(folder, tz=name)


def test_clocks_of_other_machines_are_told(tmp_path: Path) -> None:
    run = runs.healthy(5.0)
    for data in run.of("header"):
        data["clock"] = {"offsets": {"gpu-1": 0.25, "gpu-2": 0.0}}
    for data in run.of("collected"):
        data["clock_error_s"] = 0.012
    text = report.render(run.write(tmp_path))["postmortem.md"].decode()
    assert "The clock of `gpu-1` was 250 ms ahead." in text
    assert "gpu-2" not in text
    assert "Those of `ledger.ndjson` are of other machines and may be wrong by 12 ms." in text
    assert "±12 ms |" in text


def test_back_in_band_is_in_the_timeline_once_it_was_left(tmp_path: Path) -> None:
    run = runs.healthy()
    assert "traffic is back" not in report.render(run.write(tmp_path / "quiet"))["postmortem.md"].decode()
    run.fail(run.between(HIT, READY))
    run.recount()
    text = report.render(run.write(tmp_path / "run"))["postmortem.md"].decode()
    line = next(row for row in text.splitlines() if "traffic is back in its band" in row)
    assert f"+{READY - HIT:.0f}"[:2] in line
