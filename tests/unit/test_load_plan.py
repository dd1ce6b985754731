"""LOAD.json: what is wrong with it is one line with file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drills.errors import FileProblem
from drills.load.plan import LoadPlan
from tests.unit.load_plans import client_json, load_plan, plan_json


def test_the_driver_s_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    path.write_text(json.dumps(plan_json()))
    plan = LoadPlan.read(path)
    assert plan == load_plan()
    assert plan.client.retries.backoff_s == 0.01
    assert plan.cached_header is not None
    assert plan.fallback_models == ("lab-small",)
    assert plan.api_key() is None


def test_null_means_the_default() -> None:
    plan = load_plan(workload={"name": "chat", "think_s": None}, fallback_models=None, cached_header=None, client=None)
    assert plan.workload.think_s == 5.0
    assert plan.fallback_models == ()
    assert plan.cached_header is None
    assert plan.client.timeout_s == 30.0
    with pytest.raises(FileProblem, match="seed: is missing"):
        load_plan(seed=None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sede": 1}, "sede: unknown key; did you mean 'seed'?"),
        ({"client": client_json(timeout=3)}, "client.timeout: unknown key; did you mean 'timeout_s'?"),
        ({"client": client_json({"jitter": "half"})}, "client.retries.jitter: 'half' is not known"),
        ({"client": client_json(idle_timeout_s=0)}, "client.idle_timeout_s: a number above 0 is needed, not 0"),
        ({"arrivals": {"kind": "poison", "rate": 1.0}}, "did you mean 'poisson'?"),
        ({"arrivals": {"kind": "poisson", "rate": -1.0}}, "arrivals.rate: a number above 0"),
        ({"arrivals": {"kind": "poisson", "rate": "20/s"}}, "arrivals.rate: a number above 0 is needed, not '20/s'"),
        ({"arrivals": {"kind": "users"}}, "arrivals.users: a number above 0"),
        ({"arrivals": {"rate": 3}}, "arrivals.kind: is missing"),
        ({"arrivals": 3}, "arrivals: an object is needed, not int"),
        ({"fallback_models": "small"}, "fallback_models: a list of names"),
        ({"headers": {"X-Drill-Run": "a\r\nb: c"}}, "headers.X-Drill-Run: a header may not hold a line break"),
        ({"url": "ftp://x"}, "url: 'ftp://x' must begin with http"),
        ({"workload": {"name": "code"}}, "workload.name: 'code' is not known"),
        ({"cap": 0}, "cap: a number above 0"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FileProblem) as problem:
        load_plan(**changes)
    assert str(problem.value).startswith("load.json: ")
    assert says in str(problem.value)
    assert problem.value.exit_code == 64


def test_a_key_file_that_is_not_there_is_named() -> None:
    with pytest.raises(FileProblem, match="/nowhere/key: cannot be read"):
        load_plan(api_key_file="/nowhere/key").api_key()
