"""The independent script agrees with the checks on runs that went in different ways."""

import ast
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from drills.checks import measures
from drills.evidence import Evidence
from drills.stats import nearest_rank
from tests.unit import runs
from tests.unit.runs import HIT, RECOVERY

SCRIPT = Path(__file__).parents[2] / "examples" / "recompute.py"


def recomputed(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=True, timeout=60
    )
    return dict(json.loads(done.stdout))


def ours(ev: Evidence, name: str) -> dict[str, Any]:
    cohort = ev.cohort(name)
    p99 = nearest_rank(cohort["ttft"].sort().to_list(), 0.99)
    attempts = cohort.select(pl.col("attempts").list.len().sum() / pl.len()).item()
    return {"n": cohort.height, "violations": int(cohort["violation"].sum()), "p99_s": p99, "attempts": attempts}


@pytest.mark.parametrize("seed", range(4))
def test_agrees(tmp_path: Path, seed: int) -> None:
    rng, run = random.Random(seed), runs.healthy(rate=10 + seed)
    for record in rng.sample(run.between(HIT, RECOVERY + 30), 40 * seed):
        record["first_token"] += rng.uniform(0, 3)
        record["attempts"] *= rng.randint(1, 3)
    run.fail(rng.sample(run.between(HIT, HIT + 12), 10 * seed))
    run.fail(rng.sample(run.requests, 5 * seed), "shed")
    run.ledger = rng.sample(run.ledger, len(run.ledger) - 30 * seed)
    ev = run.evidence(tmp_path)
    found = recomputed(tmp_path)
    for name in ("baseline", "fault"):
        assert found[name] == pytest.approx(ours(ev, name))
    moved = measures.failover(ev)
    assert moved is not None
    assert found["failover_s"] == pytest.approx(moved.value_s)
    assert seed == 0 or found["failover_s"] > 0


def test_imports_nothing_of_ours() -> None:
    tree = ast.parse(SCRIPT.read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert sorted(names) == ["json", "math", "pathlib", "sys"]
