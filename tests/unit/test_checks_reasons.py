"""Every failing row says what was measured and what was allowed."""

from pathlib import Path
from typing import Any

import pytest

from drills import verdict
from drills.model import Verdict
from tests.unit import runs
from tests.unit.runs import HIT

#: Bounds so tight that a good run breaks them, and what was allowed, as the reason says it.
TIGHT: dict[str, tuple[dict[str, Any], str]] = {
    "replica_restart": ({"within": 15.0}, "15 s allowed"),
    "alert": ({"name": "VllmReplicaDown", "within": 5.0}, "5 s allowed"),
    "latency": ({"max": 0.05}, "1 % allowed"),
    "recovery": ({"within": 0.5}, "0.5 s allowed"),
    "failover": ({"within": 0.5}, "0.5 s allowed"),
    "availability": ({"min": 0.99}, "1 % allowed"),
    "rejoin": ({"within": 0.1}, "0.1 s allowed"),
    "streams": ({"max_cut": 0}, "0 may be"),
    "retried": ({}, "5 % may be"),
    "retry_storm": ({"budget": 0.0}, "1.00 allowed"),
    "degraded": ({}, "90 % are needed"),
    "sessions": ({}, "99 % are needed"),
    "goodput": ({}, "4 % may"),
}


@pytest.mark.parametrize("name", TIGHT)
def test_a_failing_row_says_its_value_and_its_bound(tmp_path: Path, name: str) -> None:
    params, allowed = TIGHT[name]
    run = runs.healthy()
    run.plan["experiment"]["checks"] = [{"check": name, "params": params}]
    if name not in ("replica_restart", "alert", "streams", "rejoin"):
        run.fail(run.between(HIT, HIT + 30)[1::3])
        run.recount()
    if name == "rejoin":
        for attempt in run.ledger:
            if attempt["replica"] == runs.VICTIM and runs.READY < attempt["start"] < runs.READY + 20:
                attempt["replica"] = "replica-0"
    row = verdict.judge(run.write(tmp_path)).checks[0]
    assert row.verdict is Verdict.FAIL, row.reason
    assert allowed in row.reason
    assert any(char.isdigit() for char in row.reason.replace(allowed, ""))
