"""The load is written down as it goes, whatever the driver is busy with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills.clock import Clock
from drills.errors import DrillError, Stopped
from drills.model import Target
from drills.run import Drill
from drills.setting import Setting
from drills.signals import StopFlag

PHASES = {f"{phase}_s": 10.0 for phase in ("warmup", "baseline", "fault", "recovery")}


CUSTODY = SimpleNamespace(asked_to_stop=lambda run: None)


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    setting = Setting(
        plan={"run": "0badf00d", "phases": PHASES, "experiment": {"guards": []}},
        faults=[],
        target=cast("Target", SimpleNamespace(name="lab", expected_replicas=3, custody=CUSTODY)),
        folder=tmp_path,
        view=cast("Any", SimpleNamespace(say=lambda text: None)),
        stop=StopFlag(),
        clock=Clock(),
        load_plan={},
    )
    made = Drill(setting)
    yield made
    made.sampler.close()
    made.journal.close()


def test_a_heartbeat_is_written_down_when_it_comes(drill: Drill, tmp_path: Path) -> None:
    """A target may keep the driver waiting for as long as a deed or a revert takes."""
    for n in (1, 2):
        drill.load._take({"type": "beat", "n": n, "cpu": 3.5})
    drill.sampler.close()
    lines = [json.loads(line) for line in (tmp_path / "samples.ndjson").read_text().splitlines()]
    assert [(line["probe"], line["subject"], line["values"]["n"]) for line in lines] == [
        ("load", "generator", 1),
        ("load", "generator", 2),
    ]


def test_a_load_that_is_not_heard_ends_the_run(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill.load, "alive", lambda: True)
    monkeypatch.setattr(drill.load, "silent_s", lambda: 0.5)
    drill._look_out()
    monkeypatch.setattr(drill.load, "silent_s", lambda: 15.5)
    with pytest.raises(DrillError, match="has not been heard for 16 s"):
        drill._look_out()


def test_a_fault_that_waits_hears_all_that_ends_a_run(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill.load, "silent_s", lambda: 0.0)
    monkeypatch.setattr(drill.load, "alive", lambda: True)
    assert not drill.active.context.stopping()
    monkeypatch.setattr(drill.target.custody, "asked_to_stop", lambda run: "ada@laptop")
    drill.next_ask_mono = 0.0
    assert drill.active.context.stopping()
    monkeypatch.setattr(drill.target.custody, "asked_to_stop", lambda run: None)
    assert drill.active.context.stopping()  # and it stays so
    assert drill._stopped_by(drill.ending or AssertionError()) == ("stopped", "drill stop, by ada@laptop")
    with pytest.raises(Stopped, match="ada@laptop"):
        drill._look_out()
