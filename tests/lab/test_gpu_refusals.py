"""A whole `drill run` that is refused for its GPU: exit code 3, one sentence, and the lab as it was.

Each reason by itself is in `tests/contract/test_gpu_refusals.py`; here are those that a whole run meets on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.lab.client import Control, Lab
from drills.lab.gpu import state as gpu_state
from drills.model import Json
from drills.probes.prometheus import Prometheus
from tests.lab import labs, traces
from tests.lab.drilling import Driller

pytestmark = pytest.mark.lab
#: The shortest experiments need an e2e SLA of 1 s: the baseline has to be longer than it.
TARGETS = "targets:\n  quick: {kind: lab, sla: {e2e: {p99: 1s}}}\n"
HEALTHY: Json = {"mig": False, "fabric": "completed", "recovery_action": 0, "locked_clocks_mhz": None}


@pytest.fixture
def drill(lab: Lab, control: Control, tmp_path: Path) -> Iterator[Driller]:
    """`drill` on the shared lab, whose GPUs are well before and after."""
    prometheus = Prometheus(lab.data["prometheus"])
    labs.eventually(lambda: labs.all_ready(control) and not prometheus.alerts(), 60)
    yield Driller(lab.dir, tmp_path / "reports", lab.data["port_base"])
    all_gpus(lab, **HEALTHY)
    root(lab, is_root=True)
    labs.eventually(lambda: not prometheus.alerts(), 60)


def all_gpus(lab: Lab, **values: object) -> None:
    for gpu in traces.gpus(lab):
        gpu_state.change_gpu(lab.dir / "gpu" / "state.json", gpu["uuid"], **values)


def root(lab: Lab, *, is_root: bool) -> None:
    with gpu_state.changed(lab.dir / "gpu" / "state.json") as found:
        found["root"] = is_root


def refused(drill: Driller, lab: Lab, experiment: str) -> str:
    """Return why a run was refused; nothing of the lab has changed by it."""
    before = traces.identities(lab), traces.settings(lab), traces.resets(lab)
    targets = drill.reports.parent / "targets.yaml"
    targets.write_text(TARGETS)
    ran = drill.run(experiment, "--targets", str(targets), "--target", "quick", "--seed", "7")
    assert ran.code == 3, ran.out + ran.err
    assert ran.verdict["exit_code"] == 3
    assert (traces.identities(lab), traces.settings(lab), traces.resets(lab)) == before
    assert traces.left_behind(lab) == []
    [line] = [line for line in (ran.out + ran.err).splitlines() if line.startswith("refused: ")]
    assert ran.events("receipt") == []
    assert ran.events("load.started") == []
    return line


@pytest.mark.parametrize(
    ("experiment", "gpu", "words"),
    [
        ("cut-gpu-reset", {"mig": True}, "MIG is on"),
        ("cut-gpu-reset", {"fabric": "not_started"}, "is the fabric manager running?"),
        ("cut-thermal-throttle", {"locked_clocks_mhz": [600, 600]}, "a lock seems to be active already"),
    ],
)
def test_a_gpu_that_is_not_for_a_drill(drill: Driller, lab: Lab, experiment: str, gpu: Json, words: str) -> None:
    all_gpus(lab, **gpu)
    assert words in refused(drill, lab, experiment)


@pytest.mark.parametrize("experiment", ["cut-gpu-reset", "cut-thermal-throttle"])
def test_not_root(drill: Driller, lab: Lab, experiment: str) -> None:
    root(lab, is_root=False)
    assert "would run as not root" in refused(drill, lab, experiment)


def test_an_alert_that_fires_already(drill: Driller, lab: Lab) -> None:
    """A recovery action of one GPU pages, and then no drill begins, on whatever GPU."""
    gpu_state.change_gpu(lab.dir / "gpu" / "state.json", traces.gpus(lab)[0]["uuid"], recovery_action=1)
    prometheus = Prometheus(lab.data["prometheus"])
    labs.eventually(lambda: any(alert["state"] == "firing" for alert in prometheus.alerts()), 60)
    assert "GpuLostOrRecoveryNeeded fires already" in refused(drill, lab, "cut-noop")
