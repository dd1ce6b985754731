"""A GPU of a host is looked at, capped and let go; whatever cuts that short, clocks and limits are as before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.lab.gpu import state as gpu_state
from drills.model import Json
from tests.hosts.deeds import RUN, Deed
from tests.hosts.driving import declare
from tests.hosts.fleet import Fleet, Host
from tests.hosts.test_gpu_reset import recover
from tests.lab.drilling import eventually

LIMIT_W = 500.0  # a site's own, not the default
SETTINGS = ("locked_clocks_mhz", "power_limit_w", "persistence")
STEPS = {"clocks": "clocks.locked", "power": "power.capped"}
UNDO_TIMEOUT_S = 60.0
LOOK = """
import json, sys
from pathlib import Path
from drills import opening
from drills.options import Options
from drills.probes import gpu_host
from drills.target import load_target
with opening.open_target(load_target(path=Path(sys.argv[1])), Options(), lambda _: None) as target:
    print(json.dumps({name: gpu_host.look(target, name) for name in sys.argv[2:]}))
"""


@pytest.fixture
def host(fleet: Fleet) -> Iterator[Host]:
    """The host that is drilled, with a power limit of its own, and with whatever a failed test left put back."""
    drilled = fleet.host("h2")
    set_gpu(drilled, power_limit_w=LIMIT_W)
    yield drilled
    set_gpu(drilled, power_limit_w=700.0, locked_clocks_mhz=None)


def set_gpu(host: Host, **values: object) -> None:
    gpu_state.change_gpu(host.gpu_state, host.gpus[0], **values)


def settings(host: Host) -> list[Json]:
    return [{key: gpu[key] for key in SETTINGS} for gpu in gpu_state.read(host.gpu_state)["gpus"]]


def everywhere(fleet: Fleet) -> Json:
    return {host.name: settings(host) for host in fleet.hosts}


def left(host: Host) -> list[str]:
    """Return what of a drill lies on the host, but for the modules that are left there."""
    folder = host.root / "var/lib/drill"
    parts = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(str(part) for part in parts if part.parts[0] in ("receipts", "thermal-throttle", "stop"))


def capped(how: str) -> tuple[str, Json]:
    return ("thermal-throttle", {"how": how, "to": 0.4})


@pytest.mark.parametrize("how", STEPS)
def test_it_is_proven_by_the_gpu_and_goes_again(fleet: Fleet, host: Host, tmp_path: Path, how: str) -> None:
    before = everywhere(fleet)
    with Deed(fleet, tmp_path, capped(how), victims=["h2"]) as deed:
        deed.until("on")
        proof = deed.until("proof.on")
        assert (proof["ok"], proof["bystanders_ok"]) == (True, True), proof
        assert deed.until("inject.step")["step"] == STEPS[how]
        mine = gpu_state.by_uuid(gpu_state.read(host.gpu_state), host.gpus[0])
        assert gpu_state.sm_clock_mhz(mine) <= 0.4 * mine["sm_clock_max_mhz"]
        assert {n: s for n, s in everywhere(fleet).items() if n != "h2"} == {
            n: s for n, s in before.items() if n != "h2"
        }
        assert deed.back() == "clean"
        assert deed.until("proof.off")["ok"] is True
    assert (everywhere(fleet), left(host)) == (before, [])


@pytest.mark.parametrize("how", STEPS)
def test_a_driver_that_is_killed_leaves_what_recover_puts_back(
    fleet: Fleet, host: Host, tmp_path: Path, how: str
) -> None:
    before = everywhere(fleet)
    with Deed(fleet, tmp_path, capped(how), victims=["h2"]) as deed:
        deed.until("inject.step")
        deed.kill()
    assert everywhere(fleet) != before
    for _ in range(2):
        done = recover(fleet, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (everywhere(fleet), left(host)) == (before, [])


@pytest.mark.parametrize("how", STEPS)
def test_the_timer_alone_puts_it_back_while_nobody_reaches_the_host(
    fleet: Fleet, host: Host, tmp_path: Path, how: str
) -> None:
    before = everywhere(fleet)
    with Deed(fleet, tmp_path, capped(how), victims=["h2"]) as deed:
        deed.until("inject.step")
        host.cut_driver()
        try:
            deed.kill()
            host.run(["systemctl", "start", f"drill-{RUN}-0-thermal-throttle.service"])  # as its timer does, later
            eventually(lambda: everywhere(fleet) == before, UNDO_TIMEOUT_S)
        finally:
            host.mend_driver()
    assert recover(fleet, tmp_path).returncode == 0
    assert (everywhere(fleet), left(host)) == (before, [])


def test_a_host_that_went_down_and_came_back_is_put_back_too(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    with Deed(fleet, tmp_path, capped("clocks"), victims=["h2"]) as deed:
        deed.until("inject.step")
        host.tear_down()
        deed.kill()
    host.rebuild()
    host.wait_ready()
    assert settings(host)[0]["locked_clocks_mhz"] is None  # a boot drops it
    done = recover(fleet, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left(host) == []


def test_a_lock_that_is_there_already_is_refused(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    set_gpu(host, power_limit_w=700.0)  # a power cap may explain a low clock
    host.run(["nvidia-smi", "-lgc", "600,600", "-i", host.gpus[0]])
    with Deed(fleet, tmp_path, capped("clocks"), victims=["h2"]) as deed:
        [why] = deed.until("refused")["why"]
    assert "a lock seems to be active already" in why
    assert settings(host)[0]["locked_clocks_mhz"] == [600, 600]


def test_a_lock_of_the_sites_own_is_set_again(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    set_gpu(host, power_limit_w=700.0, locked_clocks_mhz=[210, 1410])
    before = everywhere(fleet)
    deed = Deed(fleet, tmp_path, capped("clocks"), victims=["h2"])
    declare(tmp_path, clocks="210-1410MHz")
    with deed:
        deed.until("on")
        assert deed.until("proof.on")["ok"] is True
        assert settings(host)[0]["locked_clocks_mhz"] != [210, 1410]
        assert deed.back() == "clean"
    assert (everywhere(fleet), left(host)) == (before, [])


def test_each_host_tells_of_its_gpus_by_nvml_and_nobody_keeps_a_session(fleet: Fleet, tmp_path: Path) -> None:
    names = [host.name for host in fleet.hosts]
    argv = fleet.control_argv([sys.executable, "-c", LOOK, str(fleet.targets_file(tmp_path)), *names])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for host in fleet.hosts:
        seen = told[host.name]
        assert (seen["source"], seen["may_reset"], list(seen["gpus"])) == ("nvml", True, host.gpus), seen
        gpu = seen["gpus"][host.gpus[0]]
        assert [name for name, value in gpu.items() if value is None] == []
        assert gpu["processes"]
        mapped = host.run(["bash", "-c", "grep -l libnvidia-ml /proc/[0-9]*/maps 2>/dev/null || true"])
        assert mapped.stdout == ""
