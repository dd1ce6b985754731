"""`automation` of a target: what is declared for hot GPUs, where it is written down, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills.errors import FileProblem
from drills.evidence import plan_hash
from drills.experiment import find_experiment
from drills.lab.gpu import heat, state
from drills.plan import make_plan
from drills.target import TargetSpec, lab_target, load_targets


def lab(tmp_path: Path, automation: str) -> TargetSpec:
    (tmp_path / "drill.yaml").write_text(f"targets:\n  mine: {{kind: lab, automation: {automation}}}\n")
    return load_targets(tmp_path / "drill.yaml").pick("mine")


def test_it_is_in_the_plan_as_plain_numbers(tmp_path: Path) -> None:
    spec = lab(tmp_path, "{hot_above: 90C, acts_by: shed}")
    assert spec.to_json()["automation"] == {"hot_above": 90.0, "acts_by": "shed"}


def test_a_target_without_it_has_the_plan_it_always_had() -> None:
    assert "automation" not in lab_target().to_json()
    planned = make_plan(find_experiment("thermal-throttle"), lab_target(), run="x", seed=0).to_json()
    assert plan_hash(planned) == planned["hash"]
    [fault] = planned["experiment"]["faults"]
    assert "the chip is not hot" in fault["emulates"]
    assert any("note: emulated: " in step for step in planned["steps"])


@pytest.mark.parametrize(
    ("automation", "words"),
    [
        ("{hot_above: 90, acts_by: shed}", "has no unit"),
        ("{hot_above: 90F, acts_by: shed}", "unknown unit"),
        ("{hot_above: 900C, acts_by: shed}", "is over 150C"),
        ("{hot_above: 90C}", "acts_by"),
        ("{hot_above: 90C, acts_by: pray}", "acts_by"),
        ("{hot_above: 90C, acts_by: shed, when: now}", "when"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(tmp_path: Path, automation: str, words: str) -> None:
    with pytest.raises(FileProblem, match=words):
        lab(tmp_path, automation)


def test_a_stand_in_can_be_made_hot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpus, path = state.create(tmp_path, count=2), tmp_path / "state.json"
    assert heat.main([str(path), gpus[1]["uuid"], "95"]) == 0
    assert heat.main([str(path), "0", "50"]) == 0
    assert [g["temperature_c"] for g in state.read(path)["gpus"]] == [50, 95]
    assert heat.main([str(path), "9", "95"]) == 1
    assert heat.main([str(tmp_path / "nowhere"), "0", "95"]) == 1
    said = capsys.readouterr().err
    assert [line.count("GPU 9") for line in said.splitlines()] == [1, 0]
