"""The lab's NVML through nvidia-ml-py, each scenario in a child process: its function pointers are cached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drills.errors import DrillError
from drills.lab.gpu import shim, state
from tests.contract.gpu_bench import Bench, bench, until

pytestmark = [
    pytest.mark.cc,
    pytest.mark.skipif(shim.compiler() is None, reason="no C compiler, so the lab has no NVML"),
]

LOAD = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
from pynvml import *
nvmlInit()
def code(question):
    try:
        question()
    except NVMLError as error:
        return error.value
    return 0
"""


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, nvml=True) as made:
        yield made


def child(on: Bench, code: str) -> subprocess.Popen[str]:
    return on.run_python(f"{LOAD}\n{code}", str(on.nvml_lib))


def answer(on: Bench, code: str) -> Any:
    """Run the code with every NVML call at hand; it assigns `out`."""
    process = child(on, f"{code}\nprint(json.dumps(out))")
    text, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return json.loads(text)


def test_it_names_the_gpus_of_the_state_file(on: Bench) -> None:
    found = answer(
        on,
        "hs = [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]\n"
        "out = [[nvmlDeviceGetUUID(h), nvmlDeviceGetPciInfo(h).busId, nvmlDeviceGetMinorNumber(h)] for h in hs]",
    )
    assert found == [[g["uuid"], g["pci"], g["index"]] for g in on.gpus]


def test_a_gpu_is_found_by_uuid_and_by_pci_id(on: Bench) -> None:
    gpu = on.gpus[1]
    found = answer(
        on,
        f"a, b = nvmlDeviceGetHandleByUUID({gpu['uuid']!r}), nvmlDeviceGetHandleByPciBusId({gpu['pci']!r})\n"
        "out = [nvmlDeviceGetIndex(a), nvmlDeviceGetIndex(b), code(lambda: nvmlDeviceGetHandleByUUID('GPU-no'))]",
    )
    assert found == [1, 1, 6]


def test_it_is_found_on_the_library_path_too(on: Bench) -> None:
    code = "from pynvml import *; nvmlInit(); print(nvmlSystemGetDriverVersion())"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(on.folder / "gpu" / "lib")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "595.45.04"


def test_it_tells_what_nvidia_smi_tells(on: Bench) -> None:
    on.nvidia("-pl", "350", "-i", "0")
    on.hold(0)
    found = answer(
        on,
        "h = nvmlDeviceGetHandleByIndex(0)\n"
        "out = [nvmlDeviceGetPowerManagementLimit(h), nvmlDeviceGetClockInfo(h, NVML_CLOCK_SM),\n"
        "  nvmlDeviceGetCurrentClocksEventReasons(h), nvmlDeviceGetMemoryInfo(h, nvmlMemory_v2).used >> 20,\n"
        "  nvmlDeviceGetTemperature(h, 0), nvmlDeviceGetTemperatureV(h, 0), nvmlDeviceGetMigMode(h),\n"
        "  nvmlDeviceGetPersistenceMode(h), list(nvmlDeviceGetRemappedRows(h)), nvmlDeviceGetTotalEccErrors(h, 1, 0),\n"
        "  nvmlSystemGetConfComputeState().ccFeature, nvmlDeviceGetPowerManagementLimitConstraints(h)]",
    )
    fields = "clocks.sm,memory.used,temperature.gpu"
    told = on.nvidia(f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0").stdout.split(",")
    clock, memory, temperature = (int(cell) for cell in told)
    limits = [200000, 700000]
    assert found == [350000, clock, 4, memory, temperature, temperature, [0, 0], 1, [0, 0, 0, 0], 0, 0, limits]


def test_processes_are_those_that_hold_the_device_file(on: Bench) -> None:
    code = "out = [p.pid for p in nvmlDeviceGetComputeRunningProcesses(nvmlDeviceGetHandleByIndex(0))]"
    assert answer(on, code) == []
    holders = [on.hold(0), on.hold(0)]
    assert sorted(answer(on, code)) == sorted(h.pid for h in holders)
    on.set(0, mps_clients=[holders[0].pid])
    assert answer(on, code) == [holders[1].pid]
    assert answer(on, code.replace("Compute", "MPSCompute")) == [holders[0].pid]


def test_uptime_restarts_with_a_reset(on: Bench) -> None:
    code = (
        "h, s = nvmlDeviceGetHandleByIndex(0), ctypes.c_uint()\n"
        "import pynvml\n"
        "out = [pynvml.nvmlLib.nvmlDeviceGetGpuUptime_v1(h, ctypes.byref(s)), s.value]"
    )
    rc, before = answer(on, code)
    assert rc == 0
    assert before > 80000
    assert on.nvidia("--gpu-reset", "-i", on.gpus[0]["uuid"]).returncode == 0
    assert answer(on, code)[1] < 30


def test_an_old_driver_has_no_uptime(on: Bench) -> None:
    library = shim.build_shim(on.folder / "old", on.state_file, old_driver=True)
    on.nvml_lib = library
    assert answer(on, "import pynvml\nout = hasattr(pynvml.nvmlLib, 'nvmlDeviceGetGpuUptime_v1')") is False


def test_a_field_the_driver_lacks_looks_healthy_but_for_its_own_return(on: Bench) -> None:
    code = "v = nvmlDeviceGetFieldValues(nvmlDeviceGetHandleByIndex(0), [230])[0]\nout = [v.nvmlReturn, v.value.uiVal]"
    assert answer(on, code) == [0, 0]
    on.set(0, recovery_action=1)
    assert answer(on, code) == [0, 1]
    on.set(0, recovery_action=None)
    assert answer(on, code) == [3, 0]


def test_a_lost_gpu_says_so_by_every_way(on: Bench) -> None:
    process = child(
        on,
        "h = nvmlDeviceGetHandleByIndex(0)\n"
        "print('ready', flush=True)\n"
        "sys.stdin = open(0)\n"
        "import time, pathlib\n"
        f"go = pathlib.Path({str(on.folder / 'go')!r})\n"
        "for _ in range(3000):\n"
        "    if go.exists(): break\n"
        "    time.sleep(0.01)\n"
        "print(code(lambda: nvmlDeviceGetTemperature(h, 0)), code(lambda: nvmlDeviceGetHandleByIndex(0)))",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    on.set(0, lost=True)  # while the handle is open
    (on.folder / "go").touch()
    assert process.communicate(timeout=40)[0] == "15 15\n"


def test_settings_land_in_the_state_file_and_need_root(on: Bench) -> None:
    code = (
        "h = nvmlDeviceGetHandleByIndex(1)\n"
        "out = [code(lambda: nvmlDeviceSetPowerManagementLimit(h, 400000)),\n"
        "  code(lambda: nvmlDeviceSetPersistenceMode(h, 0)), code(lambda: nvmlDeviceSetGpuLockedClocks(h, 300, 900)),\n"
        "  code(lambda: nvmlDeviceSetPowerManagementLimit(h, 1))]"
    )
    assert answer(on, code) == [0, 0, 0, 2]
    gpu = on.gpu(1)
    assert (gpu["power_limit_w"], gpu["persistence"], gpu["locked_clocks_mhz"]) == (400.0, False, [300, 900])
    assert on.gpu(0)["power_limit_w"] == 700.0
    on.set_machine(root=False)
    assert answer(on, code) == [4, 4, 4, 2]


def test_an_xid_is_an_event_delivered_once(on: Bench) -> None:
    process = child(
        on,
        "h, s = nvmlDeviceGetHandleByIndex(0), nvmlEventSetCreate()\n"
        "nvmlDeviceRegisterEvents(h, nvmlEventTypeXidCriticalError | 0x8000, s)\n"
        "print('waiting', flush=True)\n"
        "first = nvmlEventSetWait_v2(s, 20000)\n"
        "print(first.eventType, first.eventData, flush=True)\n"
        "import time; began = time.monotonic()\n"
        "print(code(lambda: nvmlEventSetWait_v2(s, 300)), time.monotonic() - began >= 0.3)",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    assert process.poll() is None  # it blocks
    state.inject_xid(on.state_file, on.gpus[0]["uuid"], 79)
    assert process.stdout.readline() == "8 79\n"
    assert process.communicate(timeout=30)[0] == "10 True\n"


def test_a_changed_recovery_action_is_an_event_of_its_own(on: Bench) -> None:
    process = child(
        on,
        "h, s = nvmlDeviceGetHandleByIndex(0), nvmlEventSetCreate()\n"
        "nvmlDeviceRegisterEvents(h, 0x8000, s)\n"
        "print('waiting', flush=True)\n"
        "print(nvmlEventSetWait_v2(s, 20000).eventType)",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    with state.changed(on.state_file) as found:
        state.set_recovery_action(found, found["gpus"][0], 1)
    assert process.communicate(timeout=30)[0] == "32768\n"


def test_python_and_c_change_the_same_file_without_losing_each_other(on: Bench) -> None:
    code = (
        "h = nvmlDeviceGetHandleByIndex(0)\nfor w in range(60): nvmlDeviceSetPowerManagementLimit(h, 300000 + w * 1000)"
    )
    process = child(on, f"{code}\nprint('done')")
    for n in range(60):
        on.set(1, temperature_c=n)
        assert len(state.read(on.state_file)["gpus"]) == 3
    until(lambda: process.poll() is not None, "the C side ends")
    assert (on.gpu(0)["power_limit_w"], on.gpu(1)["temperature_c"]) == (359.0, 59)


def test_a_compiler_that_fails_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "shim.c"
    broken.write_text("int x = ;\n")
    monkeypatch.setattr(shim, "SOURCE", broken)
    with pytest.raises(DrillError, match=r"shim\.c: .* failed: .*error") as caught:
        shim.build_shim(tmp_path / "lib", tmp_path / "state.json")
    assert "\n" not in str(caught.value)


def test_without_a_compiler_there_is_no_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "compiler", lambda: None)
    assert shim.build_shim(tmp_path / "lib") is None
