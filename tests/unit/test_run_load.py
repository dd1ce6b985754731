"""The load is written down as it goes, whatever the driver is busy with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from drills.clock import Clock
from drills.model import Target
from drills.run import Drill, Setting
from drills.signals import StopFlag

PHASES = {f"{phase}_s": 10.0 for phase in ("warmup", "baseline", "fault", "recovery")}


def test_a_heartbeat_is_written_down_when_it_comes(tmp_path: Path) -> None:
    """A target may keep the driver waiting for as long as a deed or a revert takes."""
    setting = Setting(
        plan={"run": "0badf00d", "phases": PHASES, "experiment": {"guards": []}},
        faults=[],
        target=cast("Target", SimpleNamespace(name="lab", custody=None)),
        folder=tmp_path,
        view=cast("Any", None),
        stop=StopFlag(),
        clock=Clock(),
        load_plan={},
    )
    drill = Drill(setting)
    for n in (1, 2):
        drill.load._take({"type": "beat", "n": n, "cpu": 3.5})
    drill.sampler.close()
    drill.journal.close()
    lines = [json.loads(line) for line in (tmp_path / "samples.ndjson").read_text().splitlines()]
    assert [(line["probe"], line["subject"], line["values"]["n"]) for line in lines] == [
        ("load", "generator", 1),
        ("load", "generator", 2),
    ]
