"""What the GPUs of this machine say of themselves, as one JSON object on stdout.

    python gpu.py [--nvml-lib PATH] [--smi COMMAND...]

Asks NVML through nvidia-ml-py where both are there, else `nvidia-smi --query-gpu` (COMMAND is the prefix that runs it,
and comes last). NVML is a client of every GPU while it is open, so this is a program of its own that ends at once:
never import it into a driver. What is not known is null, never zero. Standard library only, so that it also runs
on hosts (3.9 and later): `python3 - --smi nvidia-smi < gpu.py`.

    {"source": "nvml"|"smi"|null, "lab": bool, "driver_version", "boot_id", "host_uptime_s", "count", "conf_compute",
     "may_reset", "daemon_socket", "errors": [...],
     "gpus": {UUID: {"index", "name", "pci", "uptime_s", "recovery_action", ...}}}

A GPU that fell off the bus has no UUID any more: it is missing from `gpus`, while `errors` says so. `uptime_s`
comes from NVML (nvidia-smi has no such query), or from the lab's own field `lab.uptime`. `xids` are the driver's
lines in the kernel log, `at_s` on the clock of `host_uptime_s`; null where the log may not be read.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
ACTIONS = (
    "None", "Reset", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX Domain", "Bus Reset", "System Reboot",
)  # fmt: skip
COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
#: The counters of errors, in NVML's order: its number of the kind, then that of the counter.
ECC = tuple((counter, kind) for counter in ("volatile", "aggregate") for kind in ("corrected", "uncorrected"))
FABRIC = ("not_supported", "not_started", "in_progress", "completed")
RECOVERY_ACTION_FIELD = 230
TIMEOUT_S = 20.0
MIB = 1024 * 1024
#: By it nvidia-smi has the persistence daemon let go of a GPU around a reset.
DAEMON_SOCKETS = ("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket")
_XID = re.compile(r"\[ *(?P<at>[0-9.]+)\] NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)[^)]*\): (?P<xid>\d+), ?(?P<text>.*)")


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is known; status 0 even when nothing is, for that is an answer too."""
    parser = argparse.ArgumentParser(description="what the GPUs of this machine say of themselves, as JSON")
    parser.add_argument("--nvml-lib", help="the NVML library to load; default: the system's")
    parser.add_argument("--smi", nargs=argparse.REMAINDER, default=["nvidia-smi"], help="how to run nvidia-smi")
    asked = parser.parse_args(argv)
    print(json.dumps(probe(asked.nvml_lib, asked.smi)))
    return 0


def probe(nvml_lib: str | None, smi: list[str]) -> Json:
    """Return what is known of the machine and its GPUs."""
    unknown = ("source", "driver_version", "host_uptime_s", "count", "conf_compute", "may_reset", "daemon_socket")
    boot_id = _text("/proc/sys/kernel/random/boot_id")
    answer: Json = {**dict.fromkeys(unknown), "lab": False, "boot_id": boot_id, "errors": [], "gpus": {}}
    if not _by_nvml(answer, nvml_lib):
        _by_smi(answer, smi)
    answer["may_reset"] = _may_reset(answer, smi)
    answer["daemon_socket"] = _daemon_socket(answer, smi)
    _xids(answer, smi)
    uptime = _text("/proc/uptime")
    answer["host_uptime_s"] = float(uptime.split()[0]) if uptime else None
    return answer


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _may_reset(answer: Json, smi: list[str]) -> bool | None:
    """Whether that command would be root. The lab plays root or does not, and says which."""
    if answer["lab"]:
        lab = _run([*smi, "--query-gpu=lab.root", "--format=csv,noheader"])
        return {"Yes": True, "No": False}.get(lab.stdout[:3].strip())
    user = _run([*smi[:-1], "id", "-u"])
    return user.stdout.strip() == "0" if user.returncode == 0 else None


def _daemon_socket(answer: Json, smi: list[str]) -> bool:
    """Whether the persistence daemon can be asked to let go; the lab plays that it can, or that it cannot."""
    if answer["lab"]:
        return _run([*smi, "--query-gpu=lab.persistence_socket", "--format=csv,noheader"]).stdout.startswith("Yes")
    return any(Path(path).exists() for path in DAEMON_SOCKETS)


def _xids(answer: Json, smi: list[str]) -> None:
    """Add the Xids that the kernel log holds of each GPU."""
    if answer["lab"]:  # the lab's GPUs write a log of their own
        lab = _run([*smi, "--query-gpu=lab.kmsg", "--format=csv,noheader"])
        log = _text(lab.stdout.splitlines()[0]) if lab.stdout else None
    else:
        done = _run([*smi[:-1], "dmesg"])
        log = done.stdout if done.returncode == 0 else None
    found = None if log is None else [m for line in log.splitlines() if (m := _XID.match(line))]
    for gpu in answer["gpus"].values():
        gpu["xids"] = None
        if found is not None and gpu["pci"]:
            own = [m for m in found if _slot(m["bus"]) == _slot(gpu["pci"])]
            gpu["xids"] = [{"at_s": float(m["at"]), "xid": int(m["xid"]), "text": m["text"][:200]} for m in own]


def _slot(pci: str) -> tuple[int, ...]:
    """Return domain, bus and device, however many digits they are written with."""
    return tuple(int(part, 16) for part in pci.split(".")[0].split(":"))


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"{argv[0]}: no answer within {TIMEOUT_S:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", f"{argv[0]}: {error.strerror}")


# ---- NVML ------------------------------------------------------------------------------------------------


def _by_nvml(answer: Json, path: str | None) -> bool:
    """Fill the answer from NVML; False when it cannot be had."""
    try:
        if path is not None:  # the soname makes pynvml's own load find this one
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError) as error:
        answer["errors"].append(f"NVML: {error}")
        return False
    except pynvml.NVMLError as error:
        answer["errors"].append(f"NVML: {error}")
        return False
    try:
        _nvml_machine(answer, pynvml)
    finally:
        pynvml.nvmlShutdown()
    return True


def _nvml_machine(answer: Json, nvml: Any) -> None:
    answer["source"] = "nvml"
    answer["lab"] = hasattr(nvml.nvmlLib, "drillLabShim")
    answer["driver_version"] = _ask(nvml, nvml.nvmlSystemGetDriverVersion)
    answer["count"] = _ask(nvml, nvml.nvmlDeviceGetCount)
    answer["conf_compute"] = _ask(nvml, lambda: bool(nvml.nvmlSystemGetConfComputeState().ccFeature), unsupported=False)
    for index in range(answer["count"] or 0):
        try:
            gpu = _nvml_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
            uuid = gpu.pop("uuid")
            answer["gpus"][uuid] = {"index": index, **gpu}
        except nvml.NVMLError as error:
            answer["errors"].append(f"GPU {index}: {error}")


def _ask(nvml: Any, question: Callable[[], Any], *, unsupported: Any = None) -> Any:
    """Return NVML's answer, None when it has none, `unsupported` when the GPU or driver lacks the feature."""
    try:
        return question()
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return unsupported
    except (nvml.NVMLError, AttributeError):
        return None


def _nvml_gpu(nvml: Any, gpu: Any) -> Json:
    def ask(name: str, *args: Any, unsupported: Any = None) -> Any:
        return _ask(nvml, lambda: getattr(nvml, f"nvmlDeviceGet{name}")(gpu, *args), unsupported=unsupported)

    def scaled(value: float | None, factor: float) -> float | None:
        return None if value is None else value * factor

    use, limits = ask("UtilizationRates"), ask("PowerManagementLimitConstraints")
    memory = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2)) or ask("MemoryInfo")
    reasons, mode, ecc = ask("CurrentClocksEventReasons"), ask("ComputeMode"), ask("EccMode")
    mig, display, persistence = ask("MigMode", unsupported=[0]), ask("DisplayActive"), ask("PersistenceMode")
    return {
        "uuid": nvml.nvmlDeviceGetUUID(gpu),
        "name": ask("Name"),
        "pci": _ask(nvml, lambda: nvml.nvmlDeviceGetPciInfo(gpu).busId),
        "uptime_s": _nvml_uptime(nvml, gpu),
        "recovery_action": _nvml_recovery_action(nvml, gpu),
        "temperature_c": ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        "sm_clock_mhz": ask("ClockInfo", nvml.NVML_CLOCK_SM),
        "sm_clock_max_mhz": ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": ask("ClockInfo", nvml.NVML_CLOCK_MEM),
        "event_reasons": ask("CurrentClocksThrottleReasons") if reasons is None else reasons,  # as it was called
        "power_w": scaled(ask("PowerUsage"), 1e-3),
        "power_limit_w": scaled(ask("PowerManagementLimit"), 1e-3),
        "power_default_w": scaled(ask("PowerManagementDefaultLimit"), 1e-3),
        "power_min_w": scaled(limits and limits[0], 1e-3),
        "power_max_w": scaled(limits and limits[1], 1e-3),
        "utilisation": use and use.gpu,
        "memory_utilisation": use and use.memory,
        "memory_total_mib": memory and memory.total // MIB,
        "memory_used_mib": memory and memory.used // MIB,
        "persistence": None if persistence is None else bool(persistence),
        "mig": None if mig is None else bool(mig[0]),
        "display_active": None if display is None else bool(display),
        "fabric": _ask(nvml, lambda: _nvml_fabric(nvml, gpu), unsupported="not_supported"),
        "compute_mode": None if mode not in range(len(COMPUTE_MODES)) else COMPUTE_MODES[mode],
        "ecc_mode": ecc and bool(ecc[0]),
        "app_clock_mhz": ask("ApplicationsClock", nvml.NVML_CLOCK_GRAPHICS),
        "app_clock_default_mhz": ask("DefaultApplicationsClock", nvml.NVML_CLOCK_GRAPHICS),
        "ecc": {f"{counter}_{kind}": ask("TotalEccErrors", n % 2, n // 2) for n, (counter, kind) in enumerate(ECC)},
        "remapped": _remapped(ask("RemappedRows")),
        "processes": _nvml_processes(nvml, gpu),
    }


def _remapped(rows: Sequence[int] | None) -> Json:
    corrected, uncorrected, pending, failure = rows or (None,) * 4
    known = {"pending": pending, "failure": failure}
    switches = {name: None if value is None else bool(value) for name, value in known.items()}
    return {"correctable": corrected, "uncorrectable": uncorrected, **switches}


def _nvml_uptime(nvml: Any, gpu: Any) -> int | None:
    """Return the uptime through the loaded library: nvidia-ml-py has no such call, old drivers no such function."""
    seconds = ctypes.c_uint()
    try:
        rc = nvml.nvmlLib.nvmlDeviceGetGpuUptime_v1(gpu, ctypes.byref(seconds))
    except AttributeError:
        return None
    return seconds.value if rc == nvml.NVML_SUCCESS else None


def _nvml_recovery_action(nvml: Any, gpu: Any) -> str | None:
    """Return the recovery action's word. A driver without the field answers 0, "healthy", beside its own error code."""
    try:
        entry = nvml.nvmlDeviceGetFieldValues(gpu, [RECOVERY_ACTION_FIELD])[0]
    except nvml.NVMLError:
        return None
    if entry.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    number = int(entry.value.uiVal)
    return ACTIONS[number] if number < len(ACTIONS) else f"unknown ({number})"


def _nvml_fabric(nvml: Any, gpu: Any) -> str:
    info = nvml.c_nvmlGpuFabricInfo_v3_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
    return FABRIC[info.state] if info.state < len(FABRIC) else f"unknown ({info.state})"


def _nvml_processes(nvml: Any, gpu: Any) -> list[Json] | None:
    found: dict[int, Json] = {}
    for kind, mps in (("Compute", False), ("Graphics", False), ("MPSCompute", True)):
        list_them = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses")
        running = _ask(nvml, functools.partial(list_them, gpu), unsupported=[])
        if running is None:
            return None
        for one in running:
            used = None if one.usedGpuMemory is None else one.usedGpuMemory // MIB
            found.setdefault(one.pid, {"pid": one.pid, "memory_mib": used, "mps": mps})
    return [found[pid] for pid in sorted(found)]


# ---- nvidia-smi ------------------------------------------------------------------------------------------


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False, "Yes": True, "No": False}.get(text)


def _reasons(text: str) -> int | None:
    return int(text, 16) if text.startswith("0x") else None


def _words(text: str) -> str | None:
    return None if _is_blank(text) else text


#: field of --query-gpu -> (where it goes in the answer, how its text is read)
SMI_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "uuid": ("uuid", str),
    "index": ("index", _whole),
    "name": ("name", _words),
    "pci.bus_id": ("pci", _words),
    "driver_version": ("driver_version", _words),
    "lab.uptime": ("uptime_s", _whole),
    "gpu_recovery_action": ("recovery_action", _words),
    "temperature.gpu": ("temperature_c", _whole),
    "clocks.sm": ("sm_clock_mhz", _whole),
    "clocks.max.sm": ("sm_clock_max_mhz", _whole),
    "clocks.mem": ("memory_clock_mhz", _whole),
    "clocks_event_reasons.active": ("event_reasons", _reasons),
    "power.draw": ("power_w", _number),
    "power.limit": ("power_limit_w", _number),
    "power.default_limit": ("power_default_w", _number),
    "power.min_limit": ("power_min_w", _number),
    "power.max_limit": ("power_max_w", _number),
    "utilization.gpu": ("utilisation", _whole),
    "utilization.memory": ("memory_utilisation", _whole),
    "memory.total": ("memory_total_mib", _whole),
    "memory.used": ("memory_used_mib", _whole),
    "persistence_mode": ("persistence", _switch),
    "mig.mode.current": ("mig", lambda text: False if _is_blank(text) else _switch(text)),
    "display_active": ("display_active", _switch),
    "fabric.state": ("fabric", lambda text: "not_supported" if _is_blank(text) else text.lower().replace(" ", "_")),
    "compute_mode": ("compute_mode", _words),
    "ecc.mode.current": ("ecc_mode", _switch),
    "clocks.applications.graphics": ("app_clock_mhz", _whole),
    "clocks.default_applications.graphics": ("app_clock_default_mhz", _whole),
    **{f"ecc.errors.{kind}.{counter}.total": (f"ecc.{counter}_{kind}", _whole) for counter, kind in ECC},
    **{f"remapped_rows.{name}": (f"remapped.{name}", _whole) for name in ("correctable", "uncorrectable")},
    **{f"remapped_rows.{name}": (f"remapped.{name}", _switch) for name in ("pending", "failure")},
}
#: What older ones call a field.
OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}


def _is_blank(text: str) -> bool:
    return text.strip("[]").lower() in ("n/a", "not supported", "unknown error", "")


def _by_smi(answer: Json, smi: list[str]) -> None:
    """Fill the answer from nvidia-smi; fields this nvidia-smi does not know stay null."""
    fields = list(SMI_FIELDS)
    for _ in range(len(SMI_FIELDS) + len(OLD_NAMES)):
        done = _run([*smi, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        unknown = [f for f in fields if f'"{f}" is not a valid field' in done.stdout + done.stderr]
        if not unknown:
            break
        at = fields.index(unknown[0])
        fields[at : at + 1] = [OLD_NAMES[unknown[0]]] if unknown[0] in OLD_NAMES else []
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(fields) and cells[0].startswith("GPU-"):
            _smi_gpu(answer, dict(zip(fields, cells)))  # noqa: B905 - `strict` is newer than some hosts' Python
        elif line.strip():
            answer["errors"].append(line.strip())
    if not answer["gpus"]:
        answer["errors"].append(f"nvidia-smi: status {done.returncode}: {' '.join(done.stderr.split())[-200:]}")
        return
    answer["source"], answer["lab"] = "smi", "lab.uptime" in fields
    answer["count"] = len(answer["gpus"]) + sum("device handle" in error for error in answer["errors"])
    answer["conf_compute"] = _smi_conf_compute(smi)
    _smi_processes(answer, smi)


def _smi_gpu(answer: Json, cells: dict[str, str]) -> None:
    gpu: Json = {"ecc": {}, "remapped": {}, "processes": None}
    for field, (place, read) in SMI_FIELDS.items():
        group, _, name = place.rpartition(".")
        text = cells.get(field, cells.get(OLD_NAMES.get(field, "")))
        (gpu[group] if group else gpu)[name] = None if text is None else read(text)
    answer["driver_version"] = gpu.pop("driver_version")
    answer["gpus"][gpu.pop("uuid")] = gpu


def _smi_conf_compute(smi: list[str]) -> bool | None:
    """Whether confidential computing is on; an nvidia-smi or GPU without it has it off."""
    done = _run([*smi, "conf-compute", "-f"])
    if done.returncode in (2, 3):
        return False
    words = done.stdout.upper().split()
    return True if "ON" in words else False if "OFF" in words else None


def _smi_processes(answer: Json, smi: list[str]) -> None:
    done = _run([*smi, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits"])
    if done.returncode not in (0, 15):
        return
    for gpu in answer["gpus"].values():
        gpu["processes"] = []
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",", 3)]
        if len(cells) == 4 and cells[0] in answer["gpus"]:
            mps = "nvidia-cuda-mps-server" in cells[3]
            entry = {"pid": _whole(cells[1]), "memory_mib": _whole(cells[2]), "mps": mps}
            answer["gpus"][cells[0]]["processes"].append(entry)


if __name__ == "__main__":
    sys.exit(main())
