"""A GPU of a host is reset, as a crash and planned; whatever cuts it short, units, gate and settings are as before."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from drills.clock import rng
from drills.lab.gpu import state as gpu_state
from drills.model import Json
from tests.hosts import layout, traces
from tests.hosts.deeds import RUN, Deed
from tests.hosts.driving import declare, drilled
from tests.hosts.fleet import Fleet, Host
from tests.lab.drilling import eventually
from tests.sampling import SEED

pytestmark = pytest.mark.root

LIMIT_W = 500.0  # not the default: a reset drops it
PLANNED: tuple[str, Json] = ("gpu-reset", {"how": "planned"})
CRASH: tuple[str, Json] = ("gpu-reset", {"how": "crash"})
RECOVER_TIMEOUT_S = 240.0
UP_TIMEOUT_S = 90.0
LINES = "lines"  # what carries bytes for a driver ends a while after it


@pytest.fixture
def host(fleet: Fleet) -> Iterator[Host]:
    """The host that is drilled, with a power limit of its own."""
    drilled = fleet.host("h1")
    set_gpu(drilled, power_limit_w=LIMIT_W)
    yield drilled
    set_gpu(drilled, power_limit_w=700.0, persistence=True)
    drilled.wait_ready()


def gpu_file(host: Host) -> Path:
    return host.root / layout.GPU_STATE.relative_to("/")


def gpu(host: Host) -> Json:
    return dict(gpu_state.by_uuid(gpu_state.read(gpu_file(host)), host.gpus[0]))


def set_gpu(host: Host, **values: object) -> None:
    gpu_state.change_gpu(gpu_file(host), host.gpus[0], **values)


def set_machine(host: Host, **values: object) -> None:
    with gpu_state.changed(gpu_file(host)) as found:
        found.update(values)


def unit(host: Host, name: str = layout.UNIT) -> Json:
    """Return what systemd says of a unit."""
    shown = host.run(["systemctl", "show", "--property=ActiveState,InvocationID,NRestarts,MainPID", name]).stdout
    return dict(line.partition("=")[::2] for line in shown.splitlines())


def kept(host: Host) -> Json:
    """Return what must be as before once all is put back."""
    folder = host.root / "var/lib/drill"
    files = sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).parts[0] != "lib"
    )
    listed = host.run(["systemctl", "list-units", "--all", "--no-legend", "--plain", "drill*"]).stdout
    enabled = host.run(["systemctl", "is-enabled", layout.UNIT, layout.TELEMETRY], check=False).stdout
    return {
        "states": {name: unit(host, name)["ActiveState"] for name in (layout.UNIT, layout.TELEMETRY)},
        "gpu": {key: gpu(host)[key] for key in ("persistence", "power_limit_w", "recovery_action")},
        "files": [name for name in files if not name.startswith(("lock/", LINES))],
        "units": [line.split()[0] for line in listed.splitlines() if LINES not in line],
        "enabled": enabled.split(),
        "rules": traces.rules(host),
    }


def others(fleet: Fleet) -> Json:
    """Return what tells each other host's units from any later run of them."""
    return {
        h.name: [unit(h, name)["InvocationID"] for name in (layout.UNIT, layout.TELEMETRY)]
        for h in fleet.hosts
        if h.name != "h1"
    }


def recover(fleet: Fleet, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = fleet.drill_argv(["recover", "--targets", str(fleet.targets_file(folder))])
    return subprocess.run(argv, capture_output=True, text=True, timeout=RECOVER_TIMEOUT_S, check=False, cwd=folder)


def steps(deed: Deed) -> list[str]:
    told = [one["data"]["step"] for one in deed.told if one["event"] == "inject.step"]
    return [step for step in told if step != "unit.stopping"]


def until_step(deed: Deed, step: str) -> Json:
    number = 1
    while True:
        found = deed.until("inject.step", number)
        if found["step"] == step:
            return found
        number += 1


# ---- to the end ------------------------------------------------------------------------------------------


def test_planned_stops_the_unit_and_brings_everything_back(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    before, beside, first, watcher = kept(host), others(fleet), unit(host), unit(host, layout.TELEMETRY)
    with Deed(fleet, tmp_path, PLANNED, victims=["h1"]) as deed:
        deed.until("on")
        assert steps(deed) == [
            "unit.stopped", "units.paused", "holders.gone", "persistence.off", "reset.begin", "reset.end",
            "device.verified", "settings.restored", "units.restored", "unit.started",
        ]  # fmt: skip
        proof = deed.until("proof.on")
        assert (proof["ok"], proof["bystanders_ok"]) == (True, True), proof
        assert deed.back() == "clean"
    assert deed.until("proof.off")["ok"] is True
    assert gpu_state.uptime_s(gpu(host)) < 300
    eventually(host.engine_ready, UP_TIMEOUT_S)
    assert (kept(host), others(fleet)) == (before, beside)
    now, watches = unit(host), unit(host, layout.TELEMETRY)
    assert now["InvocationID"] != first["InvocationID"]
    assert watches["InvocationID"] != watcher["InvocationID"]


def test_a_clock_lock_of_the_sites_own_is_set_again(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    set_gpu(host, locked_clocks_mhz=[210, 1410])
    deed = Deed(fleet, tmp_path, PLANNED, victims=["h1"])
    declare(tmp_path, clocks="210-1410MHz")
    try:
        with deed:
            deed.until("on")
            assert gpu(host)["locked_clocks_mhz"] == [210, 1410]
            assert deed.back() == "clean"
        assert gpu(host)["locked_clocks_mhz"] == [210, 1410]
    finally:
        set_gpu(host, locked_clocks_mhz=None)
    eventually(host.engine_ready, UP_TIMEOUT_S)


def test_all_gpus_are_those_that_the_unit_holds(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    assert len(host.gpus) > 1
    deed = Deed(fleet, tmp_path, PLANNED, victims=["h1"])
    declare(tmp_path, gpus="all")
    with deed:
        deed.until("on")
        assert (steps(deed).count("reset.begin"), until_step(deed, "reset.begin")["gpu"]) == (1, host.gpus[0])
        assert deed.back() == "clean"
    eventually(host.engine_ready, UP_TIMEOUT_S)


def test_a_gpu_that_the_unit_does_not_hold_is_refused(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    before = kept(host)
    deed = Deed(fleet, tmp_path, PLANNED, victims=["h1"])
    declare(tmp_path, gpus=[host.gpus[1]])
    with deed:
        assert any("none of its processes holds GPU" in why for why in deed.until("refused")["why"])
    assert kept(host) == before


def test_a_crash_waits_at_the_gate_until_the_gpu_is_reset(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    before, beside, first = kept(host), others(fleet), unit(host)
    with Deed(fleet, tmp_path, CRASH, victims=["h1"]) as deed:
        until_step(deed, "reset.begin")
        assert unit(host)["ActiveState"] in ("deactivating", "activating")
        deed.until("on")
        assert steps(deed) == [
            "gate.held", "engine.killed", "units.paused", "holders.gone", "reset.begin", "reset.end", "device.verified",
            "settings.restored", "units.restored", "gate.opened",
        ]  # fmt: skip
        assert deed.until("proof.on")["ok"] is True
        assert deed.back() == "clean"
    assert gpu_state.uptime_s(gpu(host)) < 300
    eventually(host.engine_ready, UP_TIMEOUT_S)
    assert int(unit(host)["NRestarts"]) == int(first["NRestarts"]) + 1
    assert (kept(host), others(fleet)) == (before, beside)


@pytest.mark.parametrize(("how", "restart"), [("crash", "by: supervisor"), ("planned", "")])
def test_a_whole_drill_passes(fleet: Fleet, tmp_path: Path, how: str, restart: str) -> None:
    fleet.wait_settled()
    before = {host.name: kept(host) for host in fleet.hosts}
    checks = ["failover: {within: 10s}", "accounted", "untouched"]
    checks += [f"replica_restart: {{within: 90s, {restart}}}"] if restart else []
    ran = drilled(
        fleet, tmp_path, f"gpu-reset: {{victims: 1, how: {how}}}", "\n".join(f"  - {c}" for c in checks), fault_s=40
    )
    assert ran.code == 0, ran.out + ran.err
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    assert [e["data"]["ok"] for e in ran.events("proof.on")] == [True]
    started = [e["data"]["by"] for e in ran.events("replica") if e["data"]["change"] == "started"]
    assert started == ["supervisor" if how == "crash" else "drill"]
    assert ran.folder is not None
    told = (ran.folder / "postmortem.md").read_text()
    assert ("the engine was killed" if how == "crash" else "the replica's unit was stopped") in told
    assert {host.name: kept(host) for host in fleet.hosts} == before


# ---- why not ---------------------------------------------------------------------------------------------


def refused(fleet: Fleet, folder: Path, how: str) -> str:
    with Deed(fleet, folder, ("gpu-reset", {"how": how}), victims=["h1"]) as deed:
        return "; ".join(deed.until("refused")["why"])


@pytest.mark.parametrize("how", ["crash", "planned"])
def test_a_gpu_whose_peers_must_be_reset_with_it_is_refused(fleet: Fleet, host: Host, tmp_path: Path, how: str) -> None:
    before = unit(host)
    set_gpu(host, architecture="Volta")
    try:
        assert "NVLink peers must be reset together" in refused(fleet, tmp_path, how)
    finally:
        set_gpu(host, architecture="Hopper")
    assert unit(host) == before


@pytest.mark.parametrize("how", ["crash", "planned"])
def test_who_holds_the_gpu_and_may_not_be_paused_is_named(fleet: Fleet, host: Host, tmp_path: Path, how: str) -> None:
    before = unit(host)
    hold = "exec 9</dev/nvidia0; exec -a notebook sleep 300"
    host.run(["systemd-run", "--unit=foreign", "--service-type=exec", "bash", "-c", hold])
    try:
        eventually(lambda: "(notebook 300) has /dev/nvidia0 open" in refused(fleet, tmp_path, how), 30.0)
    finally:
        host.run(["systemctl", "stop", "foreign"])
    assert unit(host) == before


# ---- cut short -------------------------------------------------------------------------------------------

#: Where the driver is killed, and what follows. By default at one point of each line, drawn; FULL=1 tries all.
BEFORE = ("unit.stopping", "unit.stopped", "units.paused", "holders.gone", "persistence.off")
AFTER = ("reset.begin", "reset.end", "device.verified", "settings.restored", "units.restored", "unit.started")
CRASHED = ("gate.held", "engine.killed", "units.paused", "holders.gone", "reset.begin", "reset.end", "units.restored")
#: Where the machine's power fails.
DARK = (
    ("planned", "unit.stopped"),
    ("planned", "reset.begin"),
    ("planned", "units.restored"),
    ("crash", "reset.begin"),
)


def drawn(*lines: Sequence[Any]) -> list[Any]:
    """Return the points to try."""
    chance = rng(SEED, "gpu-reset on hosts")
    return [point for line in lines for point in (line if os.environ.get("FULL") else [chance.choice(line)])]


def back(fleet: Fleet, host: Host, folder: Path, before: Json, beside: Json) -> None:
    """Recover, twice, and look whether all is as before."""
    for _ in range(2):
        done = recover(fleet, folder)
        assert done.returncode == 0, done.stdout + done.stderr
    eventually(host.engine_ready, UP_TIMEOUT_S)
    assert (kept(host), others(fleet)) == (before, beside)


@pytest.mark.parametrize("step", drawn(BEFORE, AFTER))
def test_a_driver_that_is_killed_leaves_what_recover_puts_back(
    fleet: Fleet, host: Host, tmp_path: Path, step: str
) -> None:
    before, beside = kept(host), others(fleet)
    with Deed(fleet, tmp_path, PLANNED, victims=["h1"]) as deed:
        until_step(deed, step)
        deed.kill()
    back(fleet, host, tmp_path, before, beside)


@pytest.mark.parametrize("step", drawn(CRASHED))
def test_so_it_is_with_a_crash(fleet: Fleet, host: Host, tmp_path: Path, step: str) -> None:
    before, beside = kept(host), others(fleet)
    with Deed(fleet, tmp_path, CRASH, victims=["h1"]) as deed:
        until_step(deed, step)
        deed.kill()
    back(fleet, host, tmp_path, before, beside)


def test_a_unit_that_stops_slowly_is_put_back_as_soon_as_its_start_waits(
    fleet: Fleet, host: Host, tmp_path: Path
) -> None:
    """Whoever waits for its start would wait longer than an undo may take."""
    before, beside, ran = kept(host), others(fleet), unit(host)["InvocationID"]
    folder = f"/run/systemd/system/{layout.UNIT}.d"
    host.run(["mkdir", "-p", folder])
    host.run(["tee", f"{folder}/60-slow.conf"], stdin="[Service]\nTimeoutStopSec=150\nExecStop=/bin/sleep 100\n")
    host.run(["systemctl", "daemon-reload"])
    try:
        with Deed(fleet, tmp_path, PLANNED, victims=["h1"]) as deed:
            until_step(deed, "unit.stopping")
            eventually(lambda: unit(host)["ActiveState"] == "deactivating", UP_TIMEOUT_S)
            deed.kill()
        done = recover(fleet, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert unit(host)["ActiveState"] == "deactivating"
        eventually(lambda: unit(host)["InvocationID"] != ran and unit(host)["ActiveState"] == "active", 200.0)
    finally:
        host.run(["rm", "-f", f"{folder}/60-slow.conf"])
        host.run(["systemctl", "daemon-reload"])
    back(fleet, host, tmp_path, before, beside)


def test_the_timer_alone_brings_units_and_settings_back(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    before, beside = kept(host), others(fleet)
    with Deed(fleet, tmp_path, PLANNED, victims=["h1"]) as deed:
        until_step(deed, "reset.end")
        deed.kill()
    assert unit(host)["ActiveState"] == "inactive"
    host.cut_driver()
    try:
        host.run(["systemctl", "start", f"drill-{RUN}-0-gpu-reset.service"])  # as its timer does at the deadline
        eventually(lambda: unit(host)["ActiveState"] == "active", UP_TIMEOUT_S)
        assert {key: kept(host)[key] for key in ("states", "gpu")} == {key: before[key] for key in ("states", "gpu")}
    finally:
        host.mend_driver()
    back(fleet, host, tmp_path, before, beside)


def test_the_timer_alone_opens_the_gate_at_its_deadline(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    before, beside = kept(host), others(fleet)
    with Deed(fleet, tmp_path, CRASH, victims=["h1"], fault_s=5.0) as deed:
        until_step(deed, "reset.end")
        host.cut_driver()
        deed.kill()
    try:
        assert unit(host)["ActiveState"] in ("deactivating", "activating")
        eventually(lambda: unit(host)["ActiveState"] == "active", UP_TIMEOUT_S)
        assert gpu(host)["power_limit_w"] == LIMIT_W
    finally:
        host.mend_driver()
    back(fleet, host, tmp_path, before, beside)


def test_a_reset_goes_on_without_the_link_and_is_looked_up_afterwards(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    before, beside = kept(host), others(fleet)
    set_machine(host, reset_duration_s=15)
    try:
        with Deed(fleet, tmp_path, PLANNED, victims=["h1"]) as deed:
            until_step(deed, "reset.begin")
            host.cut_driver()
            time.sleep(5.0)  # longer than a call is patient: the link is known to be down
            host.mend_driver()
            deed.until("on")
            assert (steps(deed).count("reset.begin"), until_step(deed, "reset.end")["outcome"]) == (1, "ok")
            assert deed.until("proof.on")["ok"] is True
            assert deed.back() == "clean"
    finally:
        set_machine(host, reset_duration_s=2)
    back(fleet, host, tmp_path, before, beside)


@pytest.mark.parametrize(("how", "step"), drawn(DARK))
def test_a_machine_that_loses_its_power_comes_back_as_it_was(
    fleet: Fleet, host: Host, tmp_path: Path, how: str, step: str
) -> None:
    before, beside = kept(host), others(fleet)
    set_machine(host, reset_duration_s=10)
    with Deed(fleet, tmp_path, ("gpu-reset", {"how": how}), victims=["h1"]) as deed:
        until_step(deed, step)
        host.tear_down()
        deed.kill()
    host.rebuild()
    back(fleet, host, tmp_path, before, beside)
