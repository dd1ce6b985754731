"""The four drills against two real replicas: each fault bites, is undone and is judged; the figures are printed.

Two cores carry the replicas, the load and whatever else runs here, so no bound of ours decides: latencies are
judged against the run's own baseline, and what the verdict is does not matter as long as there is one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drills.lab.client import Lab
from drills.model import Outcome
from tests.lab import labs
from tests.lab.drilling import Driller, Ran, records

EXPERIMENTS = Path(__file__).parent / "experiments"
START_S = 300.0
DRILLS = ["pod-kill", "gpu-reset", pytest.param("packet-loss", marks=pytest.mark.root), "upstream-delay"]
#: What must be so whatever the machine: nothing is lost, and what was killed came back.
MUST_PASS = {
    "pod-kill": {"accounted", "untouched", "replica_restart"},
    "gpu-reset": {"accounted", "untouched", "replica_restart"},
    "packet-loss": {"accounted", "untouched"},
    "upstream-delay": {"accounted", "untouched"},
}


@pytest.mark.parametrize("name", DRILLS)
def test_a_fault_bites_is_undone_and_is_judged(name: str, lab: Lab, drill: Driller) -> None:
    labs.eventually(lambda: labs.all_ready(lab.control()), START_S)
    ran = drill.run(str(EXPERIMENTS / f"vllm-{name}.yaml"), "--engine", "vllm", "--seed", "1")
    print(ran.out)
    assert ran.code in (0, 1, 2), ran.out + ran.err
    assert {event["data"]["ok"] for event in ran.events("proof.on")} == {True}
    assert {event["data"]["ok"] for event in ran.events("proof.off")} <= {True, None}
    assert ran.verdict["restored"] == "clean"
    assert ran.verdict["left"] == "healthy"
    rows = {row["check"]: row for row in ran.verdict["checks"]}
    assert {check for check in MUST_PASS[name] if rows[check]["verdict"] != "pass"} == set(), rows
    classified(ran)
    report(name, ran)


def classified(ran: Ran) -> None:
    """Every arrival has a record with one outcome, and whoever had a bad one has a reason."""
    assert ran.folder is not None
    found = records(ran.folder)
    [stopped] = ran.events("load.stopped")
    assert len(found) == stopped["data"]["drawn"]
    assert {r["outcome"] for r in found} <= {str(outcome) for outcome in Outcome}
    assert all(r["error"] for r in found if r["outcome"] == Outcome.ERROR)


def report(name: str, ran: Ran) -> None:
    """Print the p99s and the judged rows: they are reported, not required."""
    for row in ran.verdict["checks"]:
        figures: dict[str, Any] = {k: row[k] for k in ("check", "verdict", "value", "bound", "unit", "n")}
        print(name, json.dumps(figures))
    latency = [row for row in ran.verdict["checks"] if row["check"] == "latency"]
    assert [row["params"]["metric"] for row in latency] == ["ttft", "e2e"]
    assert all(row["n"] for row in latency)
