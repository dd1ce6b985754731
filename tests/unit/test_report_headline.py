"""The first lines of a postmortem: a broken gate is no check's fault, a planted defect is named, users come first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drills import verdict
from drills.report import run as report
from tests.unit import runs
from tests.unit.retries import degrade, held, in_fault, late, quiet_service
from tests.unit.runs import HIT, START, Json, Run


def postmortem(run: Run, folder: Path) -> str:
    """Judge a run and return its postmortem."""
    run.recount()
    verdict.write(run.write(folder))
    return report.render(folder)[report.POSTMORTEM].decode()


def outcome(text: str) -> str:
    """Return the sentence on the verdict."""
    [line] = [line for line in text.splitlines() if line.startswith("Verdict: ")]
    return line


def saw(text: str) -> str:
    """Return the sentence on what users saw."""
    [line] = [line for line in text.splitlines() if line.startswith("Of ")]
    return line


def section(text: str, title: str) -> str:
    """Return a section."""
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


BUSY = "the generator used 95% of a core, less than 80% may be"


def busy_generator(run: Run) -> Run:
    """Keep the generator busy, which makes the measurement invalid."""
    for sample in run.samples:
        if sample["probe"] == "load":
            sample["values"]["cpu"] = 0.95
    return run


def on_route(run: Run, checks: list[Json]) -> Run:
    """Aim the fault at the whole route, and judge these checks."""
    run.plan["experiment"]["faults"] = [{"fault": "pod-kill", "params": {}, "route": True}]
    run.plan["experiment"]["checks"] = checks
    return run


DEGRADED: Json = {"check": "degraded", "params": {}}
LATENCY: Json = {"check": "latency", "params": {"metric": "ttft", "quantile": 0.99, "cohort": "fault", "max": "sla"}}


def test_a_broken_gate_is_no_checks_reason(tmp_path: Path) -> None:
    run = busy_generator(runs.healthy())
    run.plan["experiment"]["checks"] = [LATENCY, {"check": "accounted", "params": {}}]
    told = outcome(postmortem(run, tmp_path))
    assert told.startswith("Verdict: inconclusive: the measurement was not valid (")
    assert BUSY in told
    assert "latency" not in told
    assert "apart from that" not in told


def test_what_is_inconclusive_by_itself_is_named_apart(tmp_path: Path) -> None:
    run = busy_generator(runs.healthy())
    run.plan["experiment"]["checks"] = [{"check": "health_honest", "params": {}}, LATENCY, DEGRADED]
    run.samples = [s for s in run.samples if s["probe"] != "health"]
    told = outcome(postmortem(run, tmp_path))
    valid, _, apart = told.partition("; apart from that ")
    assert BUSY in valid
    assert "`health_honest` is inconclusive and `degraded` failed" in apart


def test_a_run_that_ended_early_names_that_alone(tmp_path: Path) -> None:
    run = runs.quiet()
    run.tell(START + 70, "end", status="stopped", reason="drill stop")
    told = outcome(postmortem(run, tmp_path))
    assert told.startswith("Verdict: inconclusive: the measurement was not valid (the run did not complete: stopped:")
    assert "apart from that" not in told


def test_a_planted_defect_is_said_in_the_head(tmp_path: Path) -> None:
    run = runs.healthy()
    run.plan["defect"] = "planted-here"
    text = postmortem(run, tmp_path / "planted")
    assert "> **A defect was planted on purpose**: `planted-here`" in text.split("Hypothesis:")[0]
    assert "planted" not in postmortem(runs.healthy(), tmp_path / "plain")


def test_each_check_has_its_reason_whole(tmp_path: Path) -> None:
    run = runs.healthy()
    folder = run.write(tmp_path)
    verdict.write(folder)
    path = folder / "verdict.json"
    stored = json.loads(path.read_text())
    reason = "word " * 30 + "end"
    for check in stored["checks"][:3]:
        check |= {"verdict": "fail", "reason": reason}
    path.write_text(json.dumps(stored | {"verdict": "fail", "reason": "; ".join([reason] * 3)}))
    told = outcome(report.render(folder)[report.POSTMORTEM].decode())
    assert told.count(reason) == 3
    assert "…" not in told


def test_consequences_stand_behind_their_cause(tmp_path: Path) -> None:
    run = on_route(held(quiet_service()), [LATENCY, DEGRADED, {"check": "goodput", "params": {}}])
    late(in_fault(run)[:1100])
    folder = run.write(tmp_path)
    verdict.write(folder)
    path = folder / "verdict.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"verdict": "fail"}))
    told = outcome(report.render(folder)[report.POSTMORTEM].decode())
    assert told.startswith("Verdict: fail, by `degraded` (")
    assert "), from which `latency (ttft, p99, fault)` and `goodput` follow; no alert was expected" in told


def test_users_of_a_route_that_did_not_degrade(tmp_path: Path) -> None:
    run = on_route(held(quiet_service()), [DEGRADED])
    late(in_fault(run)[:1100])
    told = saw(postmortem(run, tmp_path))
    assert "nobody was left to fail over to, 0 of 1,199 answers were degraded: 1,100 full answers too late (" in told
    assert told.endswith("(first token p50 5.10 s) and 99 full answers in time.")


def test_users_of_a_route_that_degraded(tmp_path: Path) -> None:
    run = on_route(held(quiet_service()), [DEGRADED])
    degrade(in_fault(run)[5:1100])
    degrade(in_fault(run)[1100:1110], ttft_s=1.5)
    run.fail(in_fault(run)[1110:1111], "hung", None)
    text = postmortem(run, tmp_path)
    told = saw(text)
    assert "1,105 of 1,199 answers were degraded (10 of them too late): the others were 93 full answers in time" in told
    assert "1 time nothing (hung)" in told
    assert "| degradation open: first request that got a degraded answer in time, 250 ms after the first" in text
    moment = f"{in_fault(run)[5]['intended'] - HIT:+.2f} s"
    assert f"| degradation open | first request that got a degraded answer in time | {moment} |" in text


def test_a_degradation_that_stayed_shut_has_no_moment(tmp_path: Path) -> None:
    run = on_route(held(quiet_service()), [DEGRADED])
    late(in_fault(run))
    text = postmortem(run, tmp_path)
    assert "| degradation open | first request that got a degraded answer in time | no data |" in text
    assert "degradation open" not in section(text, "Timeline")
    assert "degradation open" not in postmortem(runs.healthy(), tmp_path / "not asked for")


@pytest.mark.parametrize("severity", ["page", "ticket", None])
def test_only_pages_are_told_where_none_was_expected(tmp_path: Path, severity: str | None) -> None:
    run = runs.healthy()
    run.plan["experiment"]["checks"] = [LATENCY]
    for data in [*run.of("alert"), *run.of("notified")]:
        data["labels"] = {"severity": severity} if severity else {}
    text = postmortem(run, tmp_path)
    told = outcome(text)
    assert "; no alert was expected" in told
    assert ("`VllmReplicaDown` fired after 7.00 s." in told) is (severity != "ticket")
    assert ("unexpected alert firing +7.0 s" in text) is (severity != "ticket")
    assert ("unexpected alert resolved" in text) is (severity != "ticket")


def test_a_page_beside_the_expected_one(tmp_path: Path) -> None:
    run = runs.healthy()
    run.tell(HIT + 3, "alert", alert="Other", labels={"severity": "page"}, source="prometheus", state="firing")
    told = outcome(postmortem(run, tmp_path))
    assert "the alert `VllmReplicaDown` fired after 7.00 s, notified after 7.60 s" in told
    assert told.endswith("; not expected: `Other` fired after 3.00 s.")


def test_streams_that_came_while_the_fault_came_on_are_explained(tmp_path: Path) -> None:
    run = held(runs.healthy())
    for event in run.events:
        if event["event"] == "inject.end":
            event["mono"] = HIT + 0.5
    text = section(postmortem(run, tmp_path / "held"), "Impact")
    [line] = [line for line in text.splitlines() if line.startswith("- Streams:")]
    assert "of them were begun later and are no *caught* request" in line
    plain = section(postmortem(runs.healthy(), tmp_path / "at once"), "Impact")
    assert "*caught* request" not in plain


def test_of_many_failing_checks_the_summary_gives_three_reasons(tmp_path: Path) -> None:
    run = runs.healthy()
    run.fail(run.between(runs.HIT, runs.HIT + 25))
    run.recount()
    verdict.write(run.write(tmp_path))
    text = report.render(tmp_path)[report.POSTMORTEM].decode()
    line = next(line for line in text.splitlines() if line.startswith("Verdict: fail"))
    assert "`availability` (500 of 1199 arrivals were not answered; 1 % allowed)" in line
    assert "8 of 8 hit requests were lost" not in line  # its row in the verdict says so
    assert "`retried`, `sessions` and `goodput`; the alert" in line
    assert "To repeat the drill: " in text
    assert "To be done: [7 action items](#action-items)." in text
