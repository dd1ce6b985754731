"""Faults that are on: whose timers are watched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills.active import ActiveFaults
from drills.clock import Clock
from drills.custody import Found, Outstanding
from drills.model import Context, Fault, Json, Receipt

REMOVE: Json = {"do": "remove", "path": "/x"}


def receipt(name: str, undo: tuple[Json, ...]) -> Receipt:
    return Receipt(name, "r", "noop", "t", "local", (), {}, (), undo, 60.0)


def active(lies: list[Outstanding], on: list[Receipt]) -> ActiveFaults:
    target: Any = SimpleNamespace(custody=SimpleNamespace(found=lambda: Found(lies, [])))

    def tell(event: str, data: Json) -> None:
        raise AssertionError(event)

    context = Context(tell, lambda s: None, lambda: 0.0, lambda: False)
    found = ActiveFaults("r", target, Clock(), tell=tell, note=tell, context=context)
    found.on = [(cast("Fault", SimpleNamespace(name="noop")), one) for one in on]
    found.timed = {one.id for one in on if one.undo}
    return found


@pytest.mark.parametrize(
    ("state", "lost"), [("armed", None), ("released", None), ("dead", "dead"), ("undone", "undone")]
)
def test_a_timer_that_does_not_watch_any_more_is_lost(state: str, lost: str | None) -> None:
    one = receipt("a", (REMOVE,))
    said = active([Outstanding(one, {"state": state})], [one]).lost_timer()
    assert said == (None if lost is None else f"noop: the on-target timer is {lost}")


def test_a_receipt_that_is_gone_has_lost_its_timer() -> None:
    assert active([], [receipt("a", (REMOVE,))]).lost_timer() == "noop: the on-target timer is none"


def test_where_nothing_is_to_be_undone_no_timer_can_be_lost() -> None:
    one = receipt("a", ())
    assert active([Outstanding(one, {})], [one]).lost_timer() is None


def test_a_timer_that_is_being_armed_is_not_lost() -> None:
    one = receipt("a", (REMOVE,))
    found = active([], [one])
    found.timed.clear()
    assert found.lost_timer() is None
