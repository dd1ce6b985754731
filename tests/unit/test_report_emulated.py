"""What a fault stands for without being it is said in its postmortem, under what the run cannot show."""

from __future__ import annotations

from pathlib import Path

from drills.faults.thermal_throttle import ThermalThrottle
from drills.report import run as postmortem
from tests.unit import runs


def written(folder: Path, **fault: str) -> str:
    run = runs.healthy(rate=2.0)
    run.plan["experiment"]["faults"] = [{"fault": "thermal-throttle", "params": {"how": "clocks"}, **fault}]
    run.recount()
    return postmortem.write(run.write(folder)).read_text(encoding="utf-8")


def test_a_postmortem_says_that_clocks_were_capped_and_nothing_was_hot(tmp_path: Path) -> None:
    text = " ".join(written(tmp_path, emulates=ThermalThrottle.emulates).split())
    assert "Emulated: the clocks or the power of a GPU are capped by a setting; the chip is not hot" in text


def test_a_fault_that_is_what_it_is_says_nothing(tmp_path: Path) -> None:
    assert "Emulated" not in written(tmp_path)
