"""What a drill on production has to say, and what must be true there."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills import gate, production
from drills.errors import EXIT_REFUSED, Refused
from drills.headroom import Live
from drills.model import Json, Target
from drills.options import Options
from drills.target import lab_target
from drills.targetfile import Limits

ALWAYS = ("Mon-Sun 00:00-24:00 UTC",)
PRODUCTION = Limits(environment="production", windows=ALWAYS, stop_if=("vector(0)",))
SPEC = replace(lab_target(), name="prod", limits=PRODUCTION)
GPU_RESET = {"fault": "gpu-reset", "params": {"victims": 1}}
POD_KILL = {"fault": "pod-kill", "params": {"victims": 1}}


def plan(rate: float | None, fault: Json = POD_KILL, **limits: Any) -> Json:
    arrivals: Json = {"kind": "users", "users": 3} if rate is None else {"kind": "poisson", "rate": rate}
    return {
        "target": {"limits": PRODUCTION.model_dump(mode="json") | limits},
        "experiment": {"load": {"arrivals": arrivals}, "faults": [fault], "checks": []},
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(), "add --confirm prod and --oncall NAME"),
        (Options(confirm="prod"), "add --oncall NAME"),
        (Options(confirm="prod", oncall="  "), "add --oncall NAME"),
        (Options(oncall="ada"), "add --confirm prod"),
        (Options(confirm="staging", oncall="ada"), "(--confirm staging is another target)"),
    ],
)
def test_the_target_and_somebody_on_call_are_named(options: Options, says: str) -> None:
    with pytest.raises(Refused) as caught:
        production.require_flags(SPEC, options)
    assert says in str(caught.value)
    assert caught.value.exit_code == EXIT_REFUSED


def test_named_it_may_go_on_and_elsewhere_nobody_is_asked() -> None:
    production.require_flags(SPEC, Options(confirm="prod", oncall="ada"))
    production.require_flags(lab_target(), Options())


def test_a_tenth_of_what_users_send_may_be_added() -> None:
    assert production.refusals(plan(2.0), Live(20.0, "by x")) == []
    [found] = production.refusals(plan(2.1), Live(20.0, "by x"))
    assert "2.1/s would be added to 20/s of users (by x), 10% of it may be: load.arrivals.rate at most 2/s" in found


@pytest.mark.parametrize(("rate", "users"), [(0.1, Live(0.0, "idle")), (0.1, Live(None, "no answer"))])
def test_without_users_nothing_may_be_added(rate: float, users: Live) -> None:
    assert len(production.refusals(plan(rate), users)) == 1


def test_a_closed_loop_has_no_rate_to_compare() -> None:
    [found] = production.refusals(plan(None), Live(100.0, ""))
    assert "closed loop" in found


def test_a_reset_needs_that_a_power_cycle_is_accepted() -> None:
    users = Live(100.0, "")
    [found] = production.refusals(plan(1.0, GPU_RESET), users)
    assert "limits.accept_power_cycle: true" in found
    assert production.refusals(plan(1.0, GPU_RESET, accept_power_cycle=True), users) == []


def test_the_gate_asks_for_all_of_it() -> None:
    """An embedded target has no users, a day without an hour is outside its window, and nobody answers on port 9."""
    target: Any = SimpleNamespace(
        name="lab", kind="lab", capacity_per_replica=None, prometheus="http://127.0.0.1:9", alertmanager=None,
        keep_alive=lambda: None, load_core=lambda: None,
    )  # fmt: skip
    today = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[(datetime.now(UTC).weekday() + 3) % 7]
    found = gate.refusals(
        plan(1.0, windows=[f"{today} 10:00-11:00 UTC"], stop_if=["up"]), cast("Target", target), [], []
    )
    assert [any(word in line for line in found) for word in ("outside every window", "of users", "stop_if: up")] == [
        True
    ] * 3
