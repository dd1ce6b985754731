"""What the nvidia-smi stand-in tells: `-L`, `-q -x`, `--query-gpu`, `--query-compute-apps`.

`lab.…` are the lab's own fields, and `lab_device` in the XML its own element; no nvidia-smi has them (the real one
tells no uptime at all, only NVML does). They let a drill prove a reset where no compiler could build the NVML shim.
"""

from __future__ import annotations

import argparse
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

from drills.lab.gpu import state
from drills.lab.gpu.state import Json

LOST = 15
BAD_ARGUMENT = 2
NOT_KNOWN = "[N/A]"
COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")

Getter = Callable[[Json, Json], Any]  # (state, gpu with "held_by") -> value, None: not known


def _of(name: str) -> Getter:
    return lambda _, gpu: gpu[name]


def _switch(name: str) -> Getter:
    return lambda _, gpu: _word(gpu[name])


def _word(on: bool | None) -> str | None:
    return None if on is None else "Enabled" if on else "Disabled"


def _action(_: Json, gpu: Json) -> str | None:
    return None if gpu["recovery_action"] is None else state.ACTIONS[gpu["recovery_action"]]


def _event_reasons(_: Json, gpu: Json) -> str | None:
    bits = state.event_reasons(gpu, held=bool(gpu["held_by"]))
    return None if bits is None else f"0x{bits:016x}"


def _used_mib(_: Json, gpu: Json) -> int:
    return state.memory_used_mib(gpu, gpu["held_by"])


def _free_mib(_: Json, gpu: Json) -> int:
    return int(gpu["memory_total_mib"] - gpu["memory_reserved_mib"] - _used_mib(_, gpu))


#: field -> (how to get it, unit)
FIELDS: dict[str, tuple[Getter, str]] = {
    "index": (_of("index"), ""),
    "uuid": (_of("uuid"), ""),
    "gpu_uuid": (_of("uuid"), ""),
    "serial": (_of("serial"), ""),
    "name": (_of("name"), ""),
    "pci.bus_id": (_of("pci"), ""),
    "driver_version": (lambda found, _: found["driver_version"], ""),
    "count": (lambda found, _: len(found["gpus"]), ""),
    "persistence_mode": (_switch("persistence"), ""),
    "display_active": (_switch("display_active"), ""),
    "mig.mode.current": (_switch("mig"), ""),
    "gpu_recovery_action": (_action, ""),
    "fabric.state": (
        lambda _, gpu: {"not_supported": None}.get(gpu["fabric"], gpu["fabric"].replace("_", " ").title()),
        "",
    ),
    "compute_mode": (lambda _, gpu: dict(enumerate(COMPUTE_MODES)).get(gpu["compute_mode"]), ""),
    "ecc.mode.current": (_switch("ecc_mode"), ""),
    "clocks.applications.graphics": (_of("app_clock_mhz"), "MHz"),
    "clocks.default_applications.graphics": (_of("app_clock_default_mhz"), "MHz"),
    "temperature.gpu": (_of("temperature_c"), ""),
    "temperature.memory": (_of("memory_temperature_c"), ""),
    "clocks.sm": (lambda _, gpu: state.sm_clock_mhz(gpu), "MHz"),
    "clocks.mem": (_of("memory_clock_mhz"), "MHz"),
    "clocks.max.sm": (_of("sm_clock_max_mhz"), "MHz"),
    "clocks.max.mem": (_of("memory_clock_max_mhz"), "MHz"),
    "clocks_event_reasons.active": (_event_reasons, ""),
    "power.draw": (_of("power_w"), "W"),
    "power.limit": (_of("power_limit_w"), "W"),
    "power.default_limit": (_of("power_default_w"), "W"),
    "power.min_limit": (_of("power_min_w"), "W"),
    "power.max_limit": (_of("power_max_w"), "W"),
    "utilization.gpu": (_of("utilisation"), "%"),
    "utilization.memory": (_of("memory_utilisation"), "%"),
    "memory.total": (_of("memory_total_mib"), "MiB"),
    "memory.reserved": (_of("memory_reserved_mib"), "MiB"),
    "memory.used": (_used_mib, "MiB"),
    "memory.free": (_free_mib, "MiB"),
    "ecc.errors.corrected.volatile.total": (_of("ecc_volatile_corrected"), ""),
    "ecc.errors.uncorrected.volatile.total": (_of("ecc_volatile_uncorrected"), ""),
    "ecc.errors.corrected.aggregate.total": (_of("ecc_aggregate_corrected"), ""),
    "ecc.errors.uncorrected.aggregate.total": (_of("ecc_aggregate_uncorrected"), ""),
    "remapped_rows.correctable": (_of("remapped_correctable"), ""),
    "remapped_rows.uncorrectable": (_of("remapped_uncorrectable"), ""),
    "remapped_rows.pending": (lambda _, gpu: "Yes" if gpu["remapped_pending"] else "No", ""),
    "remapped_rows.failure": (lambda _, gpu: "Yes" if gpu["remapped_failure"] else "No", ""),
    "lab.architecture": (_of("architecture"), ""),
    "lab.virtualization": (_of("virtualization"), ""),
    "lab.device": (_of("device"), ""),
    "lab.uptime": (lambda _, gpu: state.uptime_s(gpu), "s"),
    "lab.kmsg": (lambda found, _: found["kmsg"], ""),
    "lab.root": (lambda found, _: "Yes" if found["root"] else "No", ""),
    "lab.persistence_socket": (lambda found, _: "Yes" if found["persistence_socket"] else "No", ""),
}

CLOCK_FIELDS = ("graphics", "gr", "memory", "mem")
APP_FIELDS = ("gpu_uuid", "gpu_bus_id", "pid", "process_name", "used_gpu_memory", "used_memory")


def answer(asked: argparse.Namespace, found: Json, gpus: list[Json]) -> int:
    """Print what was asked about the GPUs; returns the exit status."""
    held_by = state.holding(gpus)
    state.remember(asked.state, found, held_by)
    present = [{**gpu, "held_by": held_by[gpu["uuid"]]} for gpu in gpus if not gpu["lost"]]
    if asked.query_gpu:
        status = _csv_gpus(asked, found, present)
    elif asked.query_supported_clocks:
        status = _csv_clocks(asked, present)
    elif asked.query_compute_apps:
        status = _csv_apps(asked, present)
    elif asked.query and asked.xml_format:
        status = _xml(found, present)
    elif asked.list_gpus:
        for gpu in present:
            print(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")
        status = 0
    else:
        print("nvidia-smi stand-in of the lab: ask for -L, -q -x, --query-gpu or --query-compute-apps", file=sys.stderr)
        return BAD_ARGUMENT
    for gpu in gpus:
        if gpu["lost"]:
            print(lost(gpu))
            status = status or LOST
    return status


def lost(gpu: Json) -> str:
    """Return what nvidia-smi says of a GPU that fell off the bus."""
    bus = gpu["pci"][4:]
    return f"Unable to determine the device handle for GPU {bus}: GPU is lost.  Reboot the system to recover this GPU"


def _csv_gpus(asked: argparse.Namespace, found: Json, gpus: list[Json]) -> int:
    for name in asked.query_gpu:
        if name not in FIELDS:
            print(f'Field "{name}" is not a valid field to query.')
            return BAD_ARGUMENT
    rows = [[(FIELDS[name][0](found, gpu), FIELDS[name][1]) for name in asked.query_gpu] for gpu in gpus]
    return _csv(asked, [(name, FIELDS[name][1]) for name in asked.query_gpu], rows)


def _csv_apps(asked: argparse.Namespace, gpus: list[Json]) -> int:
    for name in asked.query_compute_apps:
        if name not in APP_FIELDS:
            print(f'Field "{name}" is not a valid field to query.')
            return BAD_ARGUMENT
    rows = []
    for gpu in gpus:
        for app in _apps(gpu):
            value = {"gpu_uuid": gpu["uuid"], "gpu_bus_id": gpu["pci"], "pid": app["pid"], "process_name": app["title"]}
            memory = (app["memory_mib"], "MiB")
            rows.append([(value[name], "") if name in value else memory for name in asked.query_compute_apps])
    units = [(name, "MiB" if name.startswith("used") else "") for name in asked.query_compute_apps]
    return _csv(asked, units, rows)


def _csv_clocks(asked: argparse.Namespace, gpus: list[Json]) -> int:
    for name in asked.query_supported_clocks:
        if name not in CLOCK_FIELDS:
            print(f'Field "{name}" is not a valid field to query.')
            return BAD_ARGUMENT
    rows = []
    for gpu in gpus:
        clocks: list[int | None] = [*state.supported_clocks_mhz(gpu)]
        for mhz in clocks or [None]:
            of = {"memory": gpu["memory_clock_mhz"], "mem": gpu["memory_clock_mhz"]}
            rows.append([(mhz and of.get(name, mhz), "MHz") for name in asked.query_supported_clocks])
    return _csv(asked, [(name, "MHz") for name in asked.query_supported_clocks], rows)


def _apps(gpu: Json) -> list[Json]:
    """Return the holders as compute applications, the memory shared out among them."""
    held_by: list[Json] = gpu["held_by"]
    used = state.memory_used_mib(gpu, held_by) - gpu["memory_idle_mib"]
    return [{**h, "memory_mib": used // len(held_by)} for h in held_by]


def _csv(asked: argparse.Namespace, columns: list[tuple[str, str]], rows: list[list[tuple[Any, str]]]) -> int:
    if "csv" not in asked.format:
        print('"--format=" switch is missing. "csv" format is required.')
        return BAD_ARGUMENT
    units = "nounits" not in asked.format
    if "noheader" not in asked.format:
        print(", ".join(f"{name} [{unit}]" if units and unit else name for name, unit in columns))
    for row in rows:
        print(", ".join(_cell(value, unit if units else "") for value, unit in row))
    return 0


def _cell(value: Any, unit: str) -> str:
    if value is None:
        return NOT_KNOWN
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{text} {unit}" if unit else text


# ---- XML (the shape of nvsmi_device_v13, the parts a drill reads) ----------------------------------------


def _xml(found: Json, gpus: list[Json]) -> int:
    root = ET.Element("nvidia_smi_log")
    ET.SubElement(root, "timestamp").text = time.strftime("%a %b %e %H:%M:%S %Y")
    ET.SubElement(root, "driver_version").text = found["driver_version"]
    ET.SubElement(root, "cuda_version").text = f"{found['cuda_version'] // 1000}.{found['cuda_version'] % 1000 // 10}"
    ET.SubElement(root, "attached_gpus").text = str(len(gpus))
    for gpu in gpus:
        _xml_gpu(root, found, gpu)
    ET.indent(root, "\t")
    print('<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">')
    print(ET.tostring(root, encoding="unicode"))
    return 0


#: element (with its group) -> field of `--query-gpu`
XML_FIELDS = {
    "product_name": "name",
    "product_architecture": "lab.architecture",
    "gpu_virtualization_mode/virtualization_mode": "lab.virtualization",
    "lab_device": "lab.device",
    "uuid": "uuid",
    "serial": "serial",
    "persistence_mode": "persistence_mode",
    "display_active": "display_active",
    "mig_mode/current_mig": "mig.mode.current",
    "gpu_recovery_action": "gpu_recovery_action",
    "fabric/state": "fabric.state",
    "fb_memory_usage/total": "memory.total",
    "fb_memory_usage/reserved": "memory.reserved",
    "fb_memory_usage/used": "memory.used",
    "fb_memory_usage/free": "memory.free",
    "utilization/gpu_util": "utilization.gpu",
    "utilization/memory_util": "utilization.memory",
    "remapped_rows/remapped_row_corr": "remapped_rows.correctable",
    "remapped_rows/remapped_row_unc": "remapped_rows.uncorrectable",
    "remapped_rows/remapped_row_pending": "remapped_rows.pending",
    "remapped_rows/remapped_row_failure": "remapped_rows.failure",
    "temperature/gpu_temp": "temperature.gpu",
    "temperature/memory_temp": "temperature.memory",
    "gpu_power_readings/instant_power_draw": "power.draw",
    "gpu_power_readings/current_power_limit": "power.limit",
    "gpu_power_readings/default_power_limit": "power.default_limit",
    "gpu_power_readings/min_power_limit": "power.min_limit",
    "gpu_power_readings/max_power_limit": "power.max_limit",
    "clocks/sm_clock": "clocks.sm",
    "clocks/mem_clock": "clocks.mem",
    "max_clocks/sm_clock": "clocks.max.sm",
    "pci/pci_bus_id": "pci.bus_id",
}


def _xml_gpu(root: ET.Element, found: Json, gpu: Json) -> None:
    node = ET.SubElement(root, "gpu", id=gpu["pci"])
    ET.SubElement(node, "minor_number").text = str(gpu["minor"])
    for path, name in XML_FIELDS.items():
        getter, unit = FIELDS[name]
        unit = "C" if name.startswith("temperature") else unit
        *groups, leaf = path.split("/")
        parent = node
        for group in groups:
            inner = parent.find(group)
            parent = ET.SubElement(parent, group) if inner is None else inner
        ET.SubElement(parent, leaf).text = _cell(getter(found, gpu), unit).strip("[]")
    processes = ET.SubElement(node, "processes")
    for app in _apps(gpu):
        process = ET.SubElement(processes, "process_info")
        ET.SubElement(process, "pid").text = str(app["pid"])
        ET.SubElement(process, "type").text = "M+C" if app["pid"] in gpu["mps_clients"] else "C"
        ET.SubElement(process, "process_name").text = app["title"]
        ET.SubElement(process, "used_memory").text = f"{app['memory_mib']} MiB"
