"""A reset that nobody can explain: the run ends as not restored, and stays so until a person has looked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.lab.client import Control, Lab
from drills.lab.gpu import state as gpu_state
from drills.probes.prometheus import Prometheus
from tests.lab import labs, traces
from tests.lab.drilling import Driller

pytestmark = pytest.mark.lab
TARGETS = "targets:\n  quick: {kind: lab, sla: {e2e: {p99: 1s}}}\n"


@pytest.fixture
def drill(lab: Lab, control: Control, tmp_path: Path) -> Iterator[Driller]:
    """`drill` on the shared lab, whose next reset ends in a way that is not documented."""
    prometheus = Prometheus(lab.data["prometheus"])
    labs.eventually(lambda: labs.all_ready(control) and not prometheus.alerts(), 60)
    state = lab.dir / "gpu" / "state.json"
    gpu_state.script_reset(state, "garbled")
    driller = Driller(lab.dir, tmp_path / "reports", lab.data["port_base"])
    yield driller
    gpu_state.script_reset(state, None)
    for note in (traces.state_dir(lab) / "gpu-reset").glob("*.human"):
        note.unlink()
    driller("recover", "--reports", str(driller.reports))
    assert traces.left_behind(lab) == []


def test_nothing_goes_on_until_a_person_has_looked(drill: Driller, lab: Lab, control: Control, tmp_path: Path) -> None:
    targets = tmp_path / "targets.yaml"
    targets.write_text(TARGETS)
    quick = ("--targets", str(targets), "--target", "quick")
    ran = drill.run("cut-gpu-reset", *quick, "--seed", "5")
    assert ran.code == 5, ran.out + ran.err
    assert "NOT RESTORED, run by hand: " in ran.out
    assert "restored: dirty" in ran.out
    assert (ran.verdict["restored"], ran.verdict["exit_code"]) == ("dirty", 5)
    [victim] = ran.events("receipt")[0]["data"]["receipt"]["victims"]
    assert victim["gpus"][0] in ran.out

    said = drill("status", "--reports", str(drill.reports)).out
    assert f"to be put back: gpu-reset on {victim['name']}" in said
    refused = drill.run("cut-noop", *quick)
    assert refused.code == 3
    assert "not put back yet" in refused.err

    still = drill("recover", "--reports", str(drill.reports))
    assert still.code == 5, still.out
    assert "NOT put back" in still.out
    note = re.search(r"rm (\S+\.human)", ran.out)
    assert note is not None, ran.out
    Path(note[1]).unlink()
    looked_at = drill("recover", "--reports", str(drill.reports))
    assert looked_at.code == 0, looked_at.out + looked_at.err
    assert traces.left_behind(lab) == []
    labs.eventually(lambda: labs.all_ready(control), 30)
