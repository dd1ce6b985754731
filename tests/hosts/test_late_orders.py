"""A link that is cut while a fault is put on and back before the host has noticed: what comes late changes nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from drills.model import Json
from tests.hosts import traces
from tests.hosts.deeds import Deed
from tests.hosts.fleet import Fleet
from tests.hosts.test_thermal_throttle import everywhere, left
from tests.lab.drilling import eventually

pytestmark = pytest.mark.root

#: Longer than the driver waits for an answer, shorter than it takes the host to find out: what lay in a buffer comes.
CUT_S = 17.0
#: The kernel sends again what nobody has confirmed, each time after twice as long.
LATE_S = 30.0
FAULTS: tuple[tuple[str, Json], ...] = (
    ("packet-loss", {"mode": "reject"}),
    ("engine-hang", {}),
    ("thermal-throttle", {"how": "power", "to": 0.4}),
    ("pod-kill", {"how": "kill-process"}),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_an_order_that_comes_after_its_undo(
    fault: tuple[str, Json], fleet: Fleet, tmp_path: Path, before: dict[str, Json]
) -> None:
    host, gpus, ids = fleet.host("h2"), everywhere(fleet), traces.runs(fleet)
    with Deed(fleet, tmp_path, fault, victims=["h2"], wait_at="inject.hit") as deed:
        deed.until("inject.hit")
        host.cut_driver()
        deed.go_on()
        time.sleep(CUT_S)
        host.mend_driver()
        assert deed.back() == "clean"
    time.sleep(LATE_S)
    eventually(lambda: traces.all_of(fleet) == before, 30.0)
    assert (everywhere(fleet), left(host), traces.runs(fleet)) == (gpus, [], ids)
