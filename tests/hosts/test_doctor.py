"""`drill doctor` at GPU hosts: what works, what is missing, and the command that mends it; it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hosts import layout, traces
from tests.hosts.deeds import Deed
from tests.hosts.driving import drill
from tests.hosts.fleet import Fleet, Host
from tests.lab.drilling import Ran

pytestmark = pytest.mark.root


def doctor(fleet: Fleet, folder: Path) -> Ran:
    return drill(fleet, folder, "doctor", "--experiments", "pod-kill")


@contextmanager
def restarting(host: Host, policy: str) -> Iterator[None]:
    """The unit of a host has another restart policy as long as the block lasts; it is not restarted for that."""
    folder = f"/run/systemd/system/{layout.UNIT}.d"
    host.run(["mkdir", "-p", folder])
    host.run(["tee", f"{folder}/50-test.conf"], stdin=f"[Service]\nRestart={policy}\n")
    host.run(["systemctl", "daemon-reload"])
    try:
        yield
    finally:
        host.run(["rm", "-f", f"{folder}/50-test.conf"])
        host.run(["systemctl", "daemon-reload"])


def test_where_all_is_well_it_says_so_and_changes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    before = traces.all_of(fleet)
    said = doctor(fleet, tmp_path)
    for name in fleet.names:
        assert f"{name} timer: a transient unit of systemd" in said.out, said.out + said.err
        assert f"{name} {layout.UNIT}: runs, and systemd starts it again (Restart=always)" in said.out
    assert "nobody drills it, and nothing is to be put back" in said.out
    assert "pod-kill: would be carried out now" in said.out
    assert said.code in (0, 2), said.out  # 2: without Prometheus the alert stays undecided
    assert traces.all_of(fleet) == before


def test_a_unit_that_would_stay_down_is_named_with_what_mends_it(fleet: Fleet, tmp_path: Path) -> None:
    with restarting(fleet.host("h2"), "on-failure"):
        said = doctor(fleet, tmp_path)
    assert said.code == 2, said.out + said.err
    assert f"h2 {layout.UNIT}: has Restart=on-failure: a server whose engine dies ends with status 0" in said.out
    assert f"on h2: systemctl edit {layout.UNIT}" in said.out


def test_a_unit_that_stays_down_when_it_is_killed_is_in_the_way(fleet: Fleet, tmp_path: Path) -> None:
    with restarting(fleet.host("h2"), "on-success"):
        said = doctor(fleet, tmp_path)
    assert said.code == 3, said.out + said.err
    assert f"h2 {layout.UNIT}: has Restart=on-success: a server that is killed ends by a signal" in said.out


def test_a_unit_whose_engine_is_not_below_it_is_not_killed(fleet: Fleet, tmp_path: Path) -> None:
    """As where a unit runs the client of a container: another unit's engine answers on the port."""
    host, wrapper = fleet.host("h1"), "wrapper.2"
    host.run(["systemd-run", f"--unit={wrapper}.service", "--property=Restart=always", "sleep", "infinity"])
    try:
        instead = (f"unit: {layout.UNIT}", f"unit: {wrapper}")
        said = drill(fleet, tmp_path, "doctor", "--experiments", "pod-kill", instead=instead)
    finally:
        host.run(["systemctl", "stop", f"{wrapper}.service"])
    assert said.code == 3, said.out + said.err
    assert f"h1 {wrapper}.service: runs, and no process VLLM::EngineCore is below its main process" in said.out


def test_one_machine_by_two_addresses_is_named(fleet: Fleet, tmp_path: Path) -> None:
    first, second, router = fleet.host("h1"), fleet.host("h2"), fleet.host(layout.ROUTER)
    other = f"address: {first.machine.service}\n      jump: {{address: {router.address}}}"
    said = drill(fleet, tmp_path, "doctor", "--experiments", "noop", instead=(f"address: {second.address}", other))
    assert said.code == 3, said.out + said.err
    assert "are one machine: give them the same address" in said.out
    assert f"({first.address})" in said.out
    assert f"({first.machine.service} by {router.address})" in said.out


def test_a_unit_that_is_not_there_is_named(fleet: Fleet, tmp_path: Path) -> None:
    said = drill(fleet, tmp_path, "doctor", "--experiments", "noop", instead=(f"unit: {layout.UNIT}", "unit: nobody"))
    assert said.code == 3, said.out + said.err
    assert "nobody.service: is not-found" in said.out


def test_what_an_earlier_run_left_and_who_is_silent(fleet: Fleet, tmp_path: Path) -> None:
    with Deed(fleet, tmp_path, ("noop", {}), victims=["h1"], fault_s=300.0) as deed:
        deed.until("proof.on")
        deed.kill()
    said = doctor(fleet, tmp_path)
    assert said.code == 3
    assert "an earlier run was cut short and is not put back" in said.out
    assert drill(fleet, tmp_path, "recover").code == 0
    fleet.host("h3").cut_driver()
    try:
        silent = doctor(fleet, tmp_path)
    finally:
        fleet.host("h3").mend_driver()
    assert silent.code == 3
    assert "missing  host" in silent.out
    assert "h3: " in silent.out
