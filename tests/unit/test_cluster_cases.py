"""The table of drills that all rules are tried with on a cluster: it knows every fault, and each is planned there."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills.experiment import load_experiment
from drills.faults import FAULTS
from drills.plan import make_plan
from drills.target import load_target
from tests.cluster.cases import CASES, experiment

#: The reset needs a node with GPUs, so it has a service and a matrix of its own: tests/cluster/test_gpu_reset.py.
#: Clocks are not capped on Kubernetes.
APART = {"gpu-reset", "thermal-throttle"}
TARGETS = """\
targets:
  prod:
    endpoint: {url: http://127.0.0.1:1/v1, model: m}
    sla: {ttft: {p99: 3s}, e2e: {p99: 3s}, max_gap: {p99: 2s}, errors: 1%}
    kubernetes: {namespace: llm, selector: "app=vllm", helper: {image: "drills:0.1.0"}}
    limits: {allow_route_faults: true}
"""


def test_every_fault_is_in_the_table() -> None:
    assert {name.split()[0] for name in CASES} | APART == set(FAULTS)


@pytest.mark.parametrize("name", CASES)
def test_each_of_them_can_be_planned(name: str, tmp_path: Path) -> None:
    (tmp_path / "drill.yaml").write_text(TARGETS)
    (tmp_path / "experiment.yaml").write_text(experiment(name))
    made = make_plan(
        load_experiment(tmp_path / "experiment.yaml"),
        load_target("prod", tmp_path / "drill.yaml"),
        run="plan",
        seed=0,
    )
    assert [planned.fault.name for planned in made.faults] == [name.split()[0]]
