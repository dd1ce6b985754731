"""The GPU probe and the scan for holders, as programs: with NVML, with nvidia-smi alone, with neither."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from drills.access import holders, procs
from drills.lab.gpu import shim, state
from drills.model import Json
from drills.probes import gpu as program
from tests.contract.gpu_bench import Bench, bench

needs_cc = pytest.mark.skipif(shim.compiler() is None, reason="no C compiler, so the lab has no NVML")


@pytest.fixture(params=["smi", pytest.param("nvml", marks=[pytest.mark.cc, needs_cc])])
def on(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(tmp_path, nvml=request.param == "nvml") as made:
        yield made


def look(on: Bench, *argv: str) -> Json:
    nvml = ["--nvml-lib", str(on.nvml_lib)] if on.nvml_lib else []
    return run([*(argv or nvml), "--smi", str(on.smi)])


def run(argv: list[str], python: str = sys.executable, env: dict[str, str] | None = None) -> Json:
    """Run the probe the way it runs on a host: its text by stdin."""
    done = subprocess.run(
        [python, "-", *argv],
        env={**os.environ, **(env or {})},
        input=Path(str(program.__file__)).read_text(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answer: Json = json.loads(done.stdout)
    return answer


def one(on: Bench, index: int = 0) -> Any:
    return look(on)["gpus"][on.gpus[index]["uuid"]]


def test_it_tells_everything_by_uuid(on: Bench) -> None:
    found = look(on)
    assert found["source"] == ("nvml" if on.nvml_lib else "smi")
    assert (found["lab"], found["count"], found["may_reset"], found["conf_compute"]) == (True, 3, True, False)
    assert found["daemon_socket"] is True
    assert found["boot_id"] == state.boot_id()
    assert list(found["gpus"]) == [g["uuid"] for g in on.gpus]
    gpu = found["gpus"][on.gpus[1]["uuid"]]
    assert gpu["uptime_s"] > 80000
    assert [name for name, value in gpu.items() if value is None] == []
    expected = {
        "index": 1,
        "pci": on.gpus[1]["pci"],
        "recovery_action": "None",
        "temperature_c": 42,
        "sm_clock_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "memory_clock_mhz": 2619,
        "event_reasons": 1,
        "power_w": 96.5,
        "power_limit_w": 700.0,
        "power_default_w": 700.0,
        "power_min_w": 200.0,
        "power_max_w": 700.0,
        "utilisation": 0,
        "memory_utilisation": 0,
        "memory_total_mib": 81559,
        "memory_used_mib": 4,
        "persistence": True,
        "mig": False,
        "display_active": False,
        "fabric": "completed",
        "compute_mode": "Default",
        "ecc_mode": True,
        "app_clock_mhz": 1980,
        "app_clock_default_mhz": 1980,
        "processes": [],
        "xids": [],
        "remapped": {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False},
    }
    assert {name: gpu[name] for name in expected} == expected
    assert gpu["ecc"]["volatile_uncorrected"] == 0


def test_what_the_driver_does_not_know_is_null(on: Bench) -> None:
    on.set(0, recovery_action=None, temperature_c=None, utilisation=None, display_active=None, power_limit_w=350.0)
    gpu = one(on)
    assert (gpu["recovery_action"], gpu["temperature_c"], gpu["utilisation"]) == (None, None, None)
    assert (gpu["display_active"], gpu["power_limit_w"]) == (None, 350.0)


def test_a_gpu_that_is_held_is_not_idle(on: Bench) -> None:
    on.hold(0)
    assert (one(on)["event_reasons"], one(on, 1)["event_reasons"]) == (0, 1)


def test_what_somebody_set_is_told(on: Bench) -> None:
    assert on.nvidia("-lgc", "300,900", "-i", on.gpus[0]["uuid"]).returncode == 0
    assert on.nvidia("-pl", "350", "-i", on.gpus[1]["uuid"]).returncode == 0
    locked, capped = one(on), one(on, 1)
    assert (locked["sm_clock_mhz"], locked["power_limit_w"]) == (900, 700.0)
    assert (capped["sm_clock_mhz"], capped["power_limit_w"]) == (990, 350.0)
    assert (locked["event_reasons"] & 0x4, capped["event_reasons"] & 0x4) == (0, 0x4)
    assert on.nvidia("-lgc", "300,900", "-i", on.gpus[1]["uuid"]).returncode == 0
    both = one(on, 1)  # the lock is lower, so the power limit is never met
    assert (both["sm_clock_mhz"], both["event_reasons"] & 0x4) == (900, 0)


def test_a_pending_recovery_action_has_its_word(on: Bench) -> None:
    on.set(0, recovery_action=1)
    assert one(on)["recovery_action"] == "Reset"


def test_switches(on: Bench) -> None:
    on.set(0, mig=True, display_active=True, fabric="not_started", persistence=False)
    on.set_machine(conf_compute=True)
    gpu = one(on)
    assert (gpu["mig"], gpu["display_active"], gpu["fabric"], gpu["persistence"]) == (True, True, "not_started", False)
    assert look(on)["conf_compute"] is True


def test_modes_and_application_clocks(on: Bench) -> None:
    on.set(0, compute_mode=3, ecc_mode=False, app_clock_mhz=1410)
    gpu = one(on)
    assert (gpu["compute_mode"], gpu["ecc_mode"]) == ("Exclusive_Process", False)
    assert (gpu["app_clock_mhz"], gpu["app_clock_default_mhz"]) == (1410, 1980)
    on.set(0, compute_mode=None, ecc_mode=None, app_clock_mhz=None, app_clock_default_mhz=None)
    gpu = one(on)
    assert {gpu[key] for key in ("compute_mode", "ecc_mode", "app_clock_mhz", "app_clock_default_mhz")} == {None}


def test_a_lost_gpu_is_counted_missing_and_told(on: Bench) -> None:
    on.set(1, lost=True)
    found = look(on)
    assert on.gpus[1]["uuid"] not in found["gpus"]
    assert (found["count"], len(found["gpus"])) == (3, 2)
    assert any("lost" in error for error in found["errors"])


def test_processes_are_listed_and_mps_clients_known(on: Bench) -> None:
    holder = on.hold(0, "nvidia-cuda-mps-server")
    on.set(0, mps_clients=[holder.pid])
    (process,) = one(on)["processes"]
    assert (process["pid"], process["mps"]) == (holder.pid, True)
    assert process["memory_mib"] > 70000


def test_xids_of_this_gpu_only(on: Bench) -> None:
    state.inject_xid(on.state_file, on.gpus[0]["uuid"], 79, "GPU has fallen off the bus.")
    found = look(on)
    (xid,) = found["gpus"][on.gpus[0]["uuid"]]["xids"]
    assert (xid["xid"], xid["text"]) == (79, "GPU has fallen off the bus.")
    assert abs(xid["at_s"] - found["host_uptime_s"]) < 120
    assert found["gpus"][on.gpus[1]["uuid"]]["xids"] == []


def test_not_root_is_told(on: Bench) -> None:
    on.set_machine(root=False)
    assert look(on)["may_reset"] is False


@pytest.mark.cc
@needs_cc
def test_an_old_driver_has_no_uptime_and_it_is_null(tmp_path: Path) -> None:
    with bench(tmp_path) as on:
        on.nvml_lib = shim.build_shim(on.folder / "old", on.state_file, old_driver=True)
        assert one(on)["uptime_s"] is None
        assert one(on)["temperature_c"] == 41


def test_fields_an_old_nvidia_smi_does_not_know_are_null(tmp_path: Path) -> None:
    """A real nvidia-smi knows no `lab.` fields, an old one no recovery action: the others must still be told."""
    with bench(tmp_path) as on:
        old = tmp_path / "old-smi"
        old.write_text(
            "#!/bin/sh\n"
            'for f in gpu_recovery_action lab.uptime lab.root lab.kmsg; do case "$*" in *$f*)\n'
            '  echo "Field \\"$f\\" is not a valid field to query."; exit 2;; esac; done\n'
            f'exec {on.smi} "$@"\n'
        )
        old.chmod(0o755)
        found = run(["--smi", str(old)])
        gpu = found["gpus"][on.gpus[0]["uuid"]]
        assert (found["source"], found["lab"]) == ("smi", False)
        assert (gpu["recovery_action"], gpu["uptime_s"], gpu["temperature_c"]) == (None, None, 41)


def test_an_old_nvidia_smi_calls_the_clock_event_reasons_throttle_reasons(tmp_path: Path) -> None:
    with bench(tmp_path) as on:
        old = tmp_path / "old-smi"
        old.write_text(
            "#!/bin/sh\n"
            'case "$*" in *clocks_event_reasons.active*)\n'
            '  echo "Field \\"clocks_event_reasons.active\\" is not a valid field to query."; exit 2;; esac\n'
            f'exec {on.smi} "$(echo "$1" | sed s/clocks_throttle_/clocks_event_/)" "$2"\n'
        )
        old.chmod(0o755)
        on.set(0, event_reasons=0x20)
        assert run(["--smi", str(old)])["gpus"][on.gpus[0]["uuid"]]["event_reasons"] == 0x20


def python39() -> str | None:
    """Return a Python 3.9 of this machine that starts, None when there is none."""
    for found in (shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9.*/bin/python")):
        asked = found and subprocess.run([str(found), "-V"], capture_output=True, text=True, timeout=20, check=False)
        if asked and asked.stdout.startswith("Python 3.9."):
            return str(found)
    return None


@pytest.mark.parametrize("source", [program.__file__, holders.__file__])
def test_what_goes_to_hosts_is_written_for_python_3_9(source: str) -> None:
    ast.parse(Path(source).read_text(), feature_version=(3, 9))


def test_python_3_9_carries_it_out_where_there_is_one_and_else_the_present_one(on: Bench, tmp_path: Path) -> None:
    python = python39() or sys.executable
    alone = tmp_path / "shipped"
    alone.mkdir()
    shutil.copy(pynvml.__file__, alone)  # which is one file too, and all that is needed beside the probe
    argv = [*(["--nvml-lib", str(on.nvml_lib)] if on.nvml_lib else []), "--smi", str(on.smi)]
    found = run(argv, python, {"PYTHONPATH": str(alone)})
    assert found["source"] == ("nvml" if on.nvml_lib else "smi")
    here = look(on)
    assert abs(found.pop("host_uptime_s") - here.pop("host_uptime_s")) <= 10
    for uuid, gpu in found["gpus"].items():
        assert abs(gpu.pop("uptime_s") - here["gpus"][uuid].pop("uptime_s")) <= 10
    assert found == (here if on.nvml_lib else {**here, "errors": found["errors"]})


def test_without_nvml_and_nvidia_smi_nothing_is_known_and_it_says_why() -> None:
    found = run(["--nvml-lib", "/nowhere/libnvidia-ml.so.1", "--smi", "/nowhere/nvidia-smi"])
    assert (found["source"], found["count"], found["gpus"]) == (None, None, {})
    assert len(found["errors"]) == 2
    assert found["boot_id"]


# ---- holders ---------------------------------------------------------------------------------------------


def scan(*devices: str) -> list[Json]:
    done = subprocess.run(
        [sys.executable, "-", *devices],
        input=Path(str(holders.__file__)).read_text(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: list[Json] = json.loads(done.stdout)
    return found


def test_holders_are_found_by_what_they_have_open(tmp_path: Path) -> None:
    with bench(tmp_path) as on:
        replica = on.start_replica("replica-0", 0, 1)
        stranger = on.hold(1)
        found = scan(*(g["device"] for g in on.gpus))
        assert [(h["device"], h["pid"]) for h in found] == [
            (on.gpus[0]["device"], replica.engine_pid),
            *((on.gpus[1]["device"], pid) for pid in sorted((replica.engine_pid or 0, stranger.pid))),
        ]
        engine = found[0]
        assert (engine["start"], engine["ppid"]) == (replica.engine_start, replica.pid)
        assert engine["parents"][0] == replica.pid
        assert engine["parents"][-1] in (0, 1)
        assert engine["state"] in "SRD"
        assert "engine" in engine["title"]


def test_another_name_for_the_device_is_the_same_device(tmp_path: Path) -> None:
    with bench(tmp_path) as on:
        holder = on.hold(0)
        link = tmp_path / "link"
        link.symlink_to(on.gpus[0]["device"])
        assert [h["pid"] for h in scan(str(link))] == [holder.pid]
        reader = subprocess.Popen(["sleep", "30"], stdin=subprocess.DEVNULL)
        try:
            assert reader.pid in [h["pid"] for h in scan("/dev/null")]  # a character device, by its number
        finally:
            reader.kill()
            reader.wait()


def test_the_dead_and_the_absent_hold_nothing(tmp_path: Path) -> None:
    with bench(tmp_path) as on:
        holder = on.hold(0)
        holder.kill()
        holder.wait()
        assert procs.start(holder.pid) is None
        assert scan(on.gpus[0]["device"]) == []
        assert scan(str(tmp_path / "nowhere")) == []
