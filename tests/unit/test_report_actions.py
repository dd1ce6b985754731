"""Action items: a gate that does not hold is one, a consequence stands beneath its cause, and only a real one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from drills.checks import validity
from drills.model import Verdict
from drills.report import run as report
from drills.report.actions import ADVICE, GATE_ADVICE
from drills.report.follows import FOLLOWS, cause_of
from drills.report.lessons import failed
from tests.unit import runs
from tests.unit.retries import held, in_fault, late, quiet_service
from tests.unit.runs import READY, START, VICTIM, Json, Run
from tests.unit.test_report_headline import DEGRADED, LATENCY, busy_generator, on_route, postmortem, section


def items(text: str) -> list[list[str]]:
    """Return the cells of the action items."""
    rows = [line for line in section(text, "Action items").splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def row(check: str, value: Any = None, bound: Any = None, **more: Any) -> Json:
    """Return a failing check."""
    base: Json = {"check": check, "verdict": "fail", "value": value, "bound": bound, "unit": "s", "reason": "r"}
    return base | {"params": {}, "detail": {}} | more


AWAY = row("replica_restart", bound=45.0)
SHUT = row("degraded", 0.0, 0.9, unit="ratio")


# ---- gates ---------------------------------------------------------------------------------------------


def test_a_broken_gate_is_an_item_of_its_own(tmp_path: Path) -> None:
    run = busy_generator(runs.healthy())
    run.plan["experiment"]["checks"] = [LATENCY]
    text = postmortem(run, tmp_path)
    [cells] = [cells for cells in items(text) if "generator CPU" in cells[2]]
    assert re.fullmatch(r"`generator_CPU-[0-9a-f]{6}`", cells[0])
    assert cells[2].startswith("Make the measurement valid: generator CPU: the generator used 95% of a core")
    assert "Give the load generator a core of its own" in cells[2]
    assert cells[3] == "`generator CPU` holds in `drill run pod-kill`"
    assert "none: nothing failed" not in text


def test_every_gate_has_its_advice() -> None:
    assert set(GATE_ADVICE) == set(validity._GATES)


def test_of_a_run_that_ended_early_the_rest_follows(tmp_path: Path) -> None:
    run = runs.quiet()
    run.tell(START + 70, "end", status="stopped", reason="drill stop")
    first, *rest = items(postmortem(run, tmp_path))
    assert first[2].startswith("Make the measurement valid: run completed: the run did not complete: stopped:")
    assert rest
    assert all(cells[2].startswith("Follows from `run completed`; look again when that holds") for cells in rest[:-1])


def test_nothing_to_do_is_said_only_of_a_verdict(tmp_path: Path) -> None:
    folder = runs.healthy().write(tmp_path)
    text = report.render(folder)[report.POSTMORTEM].decode()
    assert "nothing failed" not in text
    assert section(text, "What went badly").strip() == "- no data: nothing was judged"


def test_what_could_not_be_judged_went_well_by_luck_at_best(tmp_path: Path) -> None:
    run = runs.healthy()
    run.samples = [s for s in run.samples if s["probe"] != "health"]
    run.plan["experiment"]["checks"] = [{"check": "health_honest", "params": {}}]
    text = postmortem(run, tmp_path)
    lucky = section(text, "Where we were lucky")
    assert "nobody knows whether what could not be judged would have held: `health_honest`" in lucky
    assert any(cells[2].startswith("Make `health_honest` judgeable") for cells in items(text))


# ---- causes and consequences ---------------------------------------------------------------------------


def gone_for_good() -> Run:
    """Return a run in which the victim never comes back."""
    run = runs.healthy()
    run.drop("replica", lambda d: d["change"] != "gone")
    run.drop("completion")
    run.drop("alert", lambda d: d["state"] == "inactive")
    run.drop("notified", lambda d: d["status"] == "resolved")
    run.ledger = [line for line in run.ledger if line["replica"] != VICTIM or line["start"] < READY]
    return run


def test_what_follows_from_a_replica_that_stays_away_stands_beneath_it(tmp_path: Path) -> None:
    text = postmortem(gone_for_good(), tmp_path)
    names = [cells[0].split("-")[0].strip("`") for cells in items(text)]
    at = names.index("replica_restart")
    assert sorted(names[at + 1 : at + 4]) == ["alert", "cache_recovery", "rejoin"]
    for cells in items(text)[at + 1 : at + 4]:
        assert cells[2].startswith("Follows from `replica_restart`; look again when that passes. Seen: ")
    [alert] = [cells[2] for cells in items(text) if cells[0].startswith("`alert")]
    assert alert.endswith("Seen: fired in time; resolved: not seen; 40 s allowed")


def test_what_follows_from_a_degradation_that_stays_shut(tmp_path: Path) -> None:
    run = on_route(held(quiet_service()), [LATENCY, DEGRADED, {"check": "goodput", "params": {}}])
    late(in_fault(run)[:1100])
    text = postmortem(run, tmp_path)
    told = [cells[2] for cells in items(text) if cells[0].startswith(("`degraded", "`latency", "`goodput"))]
    assert told[0].startswith("Make the degradation path open in time. Seen: ")
    assert [line.split(";")[0] for line in told[1:]] == ["Follows from `degraded`"] * 2


@pytest.mark.parametrize(
    ("cause", "check", "follows"),
    [
        (AWAY, row("rejoin", detail={VICTIM: {}}), True),
        (AWAY, row("rejoin", 40.0, 30.0, detail={VICTIM: {"rejoined_s": 40.0}}), False),
        (AWAY, row("rejoin", detail={VICTIM: {}, "replica-2": {"rejoined_s": None}}), False),
        (AWAY, row("cache_recovery", detail={VICTIM: {"hit_rate_needed": 0.6}, "metrics": {}}), True),
        (AWAY, row("cache_recovery", detail={VICTIM: {"hit_rate_needed": 0.6, "hit_rate": 0.1}}), False),
        (AWAY, row("cache_recovery", detail={VICTIM: {"baseline_hit_rate": 0.1}}), False),
        (AWAY, row("alert", 6.5, 20.0, params={"resolves_within": 60.0}), True),
        (AWAY, row("alert", 26.5, 20.0, params={"resolves_within": 60.0}), False),
        (AWAY, row("alert", None, 20.0, params={"resolves_within": 60.0}), False),
        (AWAY, row("alert", 6.5, 20.0), False),
        (AWAY, row("alert", 6.5, 20.0, params={"resolves_within": 60.0, "notified_within": 30.0}), False),
        (row("replica_restart", 50.0, 45.0), row("alert", 6.5, 20.0, params={"resolves_within": 60.0}), False),
        (row("replica_restart", 70.0, 45.0), row("alert", 6.5, 20.0, params={"resolves_within": 60.0}), True),
        (AWAY, row("untouched"), False),
        (AWAY, row("latency"), False),
        (SHUT, row("latency", params={"cohort": "fault", "metric": "ttft"}), True),
        (SHUT, row("latency", params={"cohort": "fault", "metric": "max_gap"}), False),
        (SHUT, row("latency", params={"cohort": "baseline", "metric": "ttft"}), False),
        (SHUT, row("goodput"), True),
        (SHUT | {"verdict": "pass"}, row("goodput"), False),
        (AWAY | {"verdict": "inconclusive"}, row("rejoin", detail={VICTIM: {}}), False),
        (SHUT, row("latency") | {"verdict": "inconclusive"}, False),
    ],
)
def test_the_table_is_conservative(cause: Json, check: Json, follows: bool) -> None:
    assert (cause_of(check, [check, cause]) is cause) is follows


def test_no_consequence_is_a_cause_and_both_are_checks() -> None:
    followers = {name for row in FOLLOWS.values() for name in row}
    assert not followers & set(FOLLOWS)
    assert followers | set(FOLLOWS) <= set(ADVICE)


def test_what_failed_is_quoted_and_no_number_within_its_bound() -> None:
    assert failed(row("alert", 6.5, 20.0, reason="fired in time; resolved: not seen")) == (
        "fired in time; resolved: not seen"
    )
    assert failed(row("failover", 9.0, 5.0, reason="late")) == "9.00 s (bound 5.00 s); late"
    assert failed(row("rejoin", None, 30.0, reason="never")) == "never"
    assert failed(row("x", 9.0, 5.0, reason="")) == "9.00 s (bound 5.00 s)"


def test_every_failing_check_has_exactly_one_item(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    text = postmortem(gone_for_good(), folder)
    judged = json.loads((folder / "verdict.json").read_text())["checks"]
    failing = sorted(check["check"] for check in judged if check["verdict"] == Verdict.FAIL)
    found = sorted(cells[0].split("-")[0].strip("`") for cells in items(text))
    assert failing
    assert [name for name in found if name in failing] == failing
