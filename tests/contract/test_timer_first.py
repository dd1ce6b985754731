"""A driver that stood still while its fault's timer ran out: the timer took the fault off, and that is told."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drills import active, receipts
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.active import ActiveFaults
from drills.clock import Clock
from drills.model import Context, Event, Json, Observation, Receipt, Restored
from drills.report.timeline import sentence

RUN = "0badf00d"


def fault(marker: Path) -> Any:
    """A fault that is held, whose only change is a marker file."""

    def aim(*_: Any, run: str, receipt: str, deadline_s: float) -> Receipt:
        step: Json = {"do": "remove", "path": str(marker)}
        return Receipt(receipt, run, "noop", "t", "local", ({"name": "r"},), {}, (), (step,), deadline_s)

    return SimpleNamespace(
        name="noop",
        held=True,
        effect=False,
        aim=aim,
        inject=lambda *_: marker.touch(),
        observe=lambda *_: Observation(marker.exists(), ()),
        revert=receipts.revert,
    )


def reverts(tmp_path: Path, *, late: bool) -> tuple[list[Event], Restored]:
    """Put the fault on and take it off again, `late`: after its timer has; returns what was told of the way back."""
    told: list[Event] = []

    def tell(event: str, data: Json) -> None:
        told.append(Event(len(told) + 1, "", 0.0, event, data))

    clock = Clock()
    custody = FileCustody(LocalHost(), str(tmp_path / "state"), "t")
    context = Context(tell, clock.sleep, clock.mono, lambda: False)
    target: Any = SimpleNamespace(custody=custody)
    faults = ActiveFaults(RUN, target, clock, tell=tell, note=tell, context=context)
    faults.put_on(0, fault(tmp_path / "marker"), [], fault_s=0.5 if late else 60.0)
    until = time.monotonic() + 20
    while late and [o.timer_state for o in custody.outstanding()] != ["undone"] and time.monotonic() < until:
        time.sleep(0.02)
    faults.revert_all()
    assert custody.outstanding() == []
    return [event for event in told if event.event.startswith("revert.")], faults.restored


def test_that_the_timer_was_quicker_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "DEADLINE_SLACK_S", 0.0)
    before = time.time()
    (begin, end), restored = reverts(tmp_path, late=True)
    assert (restored, end.data["restored"], end.data["by"]) == (Restored.CLEAN, "clean", "timer")
    assert begin.data["timer"]["state"] == "undone"
    assert before < begin.data["timer"]["at"] <= time.time()
    when = time.strftime("%H:%M:%S UTC", time.gmtime(begin.data["timer"]["at"]))
    assert sentence(begin) == f"revert begins, by driver; **its timer on the target had taken it off at {when}**"
    assert sentence(end) == "revert ended, by timer: restored clean"


def test_a_driver_in_time_is_who_took_it_off(tmp_path: Path) -> None:
    (begin, end), _ = reverts(tmp_path, late=False)
    assert (begin.data, end.data["by"]) == ({"receipt": f"{RUN}-0-noop", "by": "driver"}, "driver")
    assert sentence(begin) == "revert begins, by driver"


@pytest.mark.parametrize("timer", [None, "x", [], {"state": "armed"}, {"state": "undone", "at": 1e300}])
def test_a_damaged_timer_in_a_journal_hurts_no_report(timer: object) -> None:
    said = sentence(Event(1, "", 0.0, "revert.begin", {"receipt": "x", "by": "recover", "timer": timer}))
    assert said.startswith("revert begins, by recover")
    assert " at " not in said
