"""The one truth about the lab's GPUs: a JSON file that the nvidia-smi stand-in, the NVML shim and the exporter share.

    folder/state.json   everything below          folder/dev/nvidiaN   device files, held open by engines
    folder/kmsg         kernel-log-like lines     folder/lib/          the NVML shim, where there is a compiler

Changes are made under a lock (`state.json.lock`) and land in one step, so a reader needs no lock. The values of
a GPU are flat and carry their unit in the name; null means that this GPU does not know the value. Whether
a GPU is in use is never stored: it is what `/proc/*/fd` says (`drills.access.holders`).

`script` makes the stand-in refuse or misbehave: `{"reset": {UUID or "*": MODE}, "delay_s": 0}` with a MODE of `MODES`.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drills.access import holders

Json = dict[str, Any]

MODES = (
    "in_use",  # refused with no holder to be seen: a kernel module
    "in_use_old",  # the same in the words of an old driver
    "unsupported_a",
    "unsupported_b",
    "blocked",  # the hypervisor answers "Unknown Error"
    "lost",
    "no_permission",
    "garbled",  # a status and a text nobody has documented
    "hang",  # ignores SIGTERM
    "no_effect",  # says success, does nothing
    "needs_recovery",  # comes back asking for another reset
    "vanishes",  # says success, and one GPU fewer is there
    "terse",  # success without the last line
)
ACTIONS = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
IDLE = 0x1  # a clock event reason
CLOCK_MIN_MHZ, CLOCK_STEP_MHZ = 210, 15
ENGINE_SHARE = 0.9  # of the memory: what vLLM takes at start-up


def create(folder: Path, count: int = 4, seed: int = 0) -> list[Json]:
    """Make `count` healthy GPUs in `folder`, anew; returns [{uuid, index, pci, device}]."""
    (folder / "dev").mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    gpus = [_gpu(folder, index, rng) for index in range(count)]
    for gpu in gpus:
        Path(gpu["device"]).touch(mode=0o600)
    (folder / "kmsg").write_text("")
    state: Json = {
        "root": True,  # whether the lab plays root
        "driver_version": "595.45.04",
        "nvml_version": "13.595.45.04",
        "cuda_version": 13020,
        "boot_id": boot_id(),
        "persistence_socket": True,  # whether nvidia-smi reaches the persistence daemon
        "conf_compute": False,
        "reset_duration_s": 2,
        "exporter_paused": False,
        "kmsg": str(folder / "kmsg"),
        "xid_count": 0,
        "script": {"reset": {}, "delay_s": 0},
        "gpus": gpus,
    }
    _write(folder / "state.json", state)
    return [{k: gpu[k] for k in ("uuid", "index", "pci", "device")} for gpu in gpus]


def _gpu(folder: Path, index: int, rng: random.Random) -> Json:
    now = time.monotonic()
    return {
        "index": index,
        "uuid": f"GPU-{uuid.UUID(int=rng.getrandbits(128), version=4)}",
        "serial": f"13200{rng.randrange(10**8):08d}",
        "pci": f"00000000:{0x1A + 0x21 * index:02X}:00.0",
        "minor": index,
        "name": "Lab GPU (stand-in)",
        "device": str(folder / "dev" / f"nvidia{index}"),
        "boot_id": boot_id(),
        "uptime_start_mono": now - 86400.0 - 977.0 * index,
        "temperature_c": 41 + index,
        "memory_temperature_c": 44 + index,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "sm_clock_max_mhz": 1980,
        "memory_clock_max_mhz": 2619,
        "locked_clocks_mhz": None,
        "app_clock_mhz": 1980,
        "app_clock_default_mhz": 1980,
        "clock_control": True,  # whether this card lets its clocks be locked
        "event_reasons": 1,  # idle; whoever holds it makes it work
        "power_w": 96.5,
        "power_limit_w": 700.0,
        "power_default_w": 700.0,
        "power_min_w": 200.0,
        "power_max_w": 700.0,
        "memory_total_mib": 81559,
        "memory_reserved_mib": 551,
        "memory_idle_mib": 4,
        "utilisation": 0,  # percent; nobody models it unless an engine writes it
        "memory_utilisation": 0,
        "architecture": "Hopper",
        "virtualization": "None",  # or Pass-Through, VGPU, Host VGPU, ...
        "persistence": True,
        "mig": False,
        "compute_mode": 0,  # of NVML's: 0 default, 2 prohibited, 3 exclusive
        "ecc_mode": True,
        "display_active": False,
        "mps_clients": [],
        "fabric": "completed",  # not_supported | not_started | in_progress | completed
        "recovery_action": 0,  # index of ACTIONS; null: a driver that does not know
        "ecc_volatile_corrected": 0,
        "ecc_volatile_uncorrected": 0,
        "ecc_aggregate_corrected": 0,
        "ecc_aggregate_uncorrected": 0,
        "remapped_correctable": 0,
        "remapped_uncorrectable": 0,
        "remapped_pending": False,
        "remapped_failure": False,
        "lost": False,
        "resetting": None,  # [pid, start] of the nvidia-smi that is at it
        "seen": [],  # holders seen since the last reset: [pid, start, name]
        "xids": [],  # {"n", "xid", "mono", "text"}
    }


# ---- reading and changing --------------------------------------------------------------------------------


def read(state_file: Path) -> Json:
    """Return the state as it is now."""
    state: Json = json.loads(state_file.read_text())
    return state


@contextmanager
def changed(state_file: Path) -> Iterator[Json]:
    """Give the state to change, under the lock; it lands in one step unless the block raises."""
    with Path(f"{state_file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = read(state_file)
        yield state
        _write(state_file, state)


def change_gpu(state_file: Path, uuid: str, **values: object) -> None:
    """Set values of one GPU; a name it does not have is a KeyError."""
    with changed(state_file) as state:
        gpu = by_uuid(state, uuid)
        if unknown := values.keys() - gpu.keys():
            raise KeyError(f"no such value of a GPU: {', '.join(sorted(unknown))}")
        gpu.update(values)


def script_reset(state_file: Path, mode: str | None, uuid: str = "*", delay_s: float = 0) -> None:
    """Make resets of that GPU (all of them: "*") misbehave in one of `MODES`; None makes them honest again."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"no such way to misbehave: {mode}")
    with changed(state_file) as state:
        state["script"]["delay_s"] = delay_s
        if mode is None:
            state["script"]["reset"].pop(uuid, None)
        else:
            state["script"]["reset"][uuid] = mode


def reset_mode(state: Json, gpu: Json) -> str | None:
    """Return how a reset of that GPU shall misbehave."""
    ways: Json = state["script"]["reset"]
    return ways.get(gpu["uuid"], ways.get("*"))


def by_uuid(state: Json, uuid: str) -> Json:
    """Return that GPU; KeyError when there is none."""
    for gpu in state["gpus"]:
        if gpu["uuid"] == uuid:
            found: Json = gpu
            return found
    raise KeyError(uuid)


def _write(path: Path, state: Json) -> None:
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".state-")
    with os.fdopen(fd, "w") as out:
        json.dump(state, out, indent=1)
    Path(temporary).replace(path)


# ---- what follows from it --------------------------------------------------------------------------------


def boot_id() -> str:
    """Return the id of this machine's boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def uptime_s(gpu: Json) -> int:
    """Return whole seconds since the GPU was initialised, as NVML counts them."""
    return int(time.monotonic() - gpu["uptime_start_mono"])


def holding(gpus: list[Json]) -> dict[str, list[Json]]:
    """Return by UUID the processes that have a GPU's device file open."""
    device_of = {gpu["device"]: gpu["uuid"] for gpu in gpus}
    found, _blind = holders.find(device_of)
    return {gpu["uuid"]: [h for h in found if device_of[h["device"]] == gpu["uuid"]] for gpu in gpus}


def sm_clock_mhz(gpu: Json) -> int:
    """Return the SM clock under a clock lock and a power cap."""
    locked = gpu["locked_clocks_mhz"] or [0, gpu["sm_clock_max_mhz"]]
    return int(min(_by_power_mhz(gpu), locked[1]))


def event_reasons(gpu: Json, *, held: bool) -> int | None:
    """Return why the clocks are where they are: a power cap that bites is SwPowerCap, a clock lock nothing at all."""
    if gpu["event_reasons"] is None:
        return None
    own = int(gpu["event_reasons"]) & (~IDLE if held else ~0)
    by_power = _by_power_mhz(gpu)
    return own | (0x4 if int(by_power) < gpu["sm_clock_mhz"] and sm_clock_mhz(gpu) == int(by_power) else 0)


def _by_power_mhz(gpu: Json) -> float:
    limit_w, default_w = gpu["power_limit_w"], gpu["power_default_w"]
    known = limit_w is not None and default_w is not None
    return float(gpu["sm_clock_mhz"] * (min(1.0, limit_w / default_w) if known else 1.0))


def supported_clocks_mhz(gpu: Json) -> list[int]:
    """Return the SM clocks to which the card can be locked, highest first; none where it cannot be."""
    return list(range(gpu["sm_clock_max_mhz"], CLOCK_MIN_MHZ - 1, -CLOCK_STEP_MHZ)) if gpu["clock_control"] else []


def memory_used_mib(gpu: Json, held_by: list[Json]) -> int:
    """Return what is taken: little when idle, an engine's share per holder."""
    free_for_engines = gpu["memory_total_mib"] - gpu["memory_reserved_mib"] - gpu["memory_idle_mib"]
    return int(gpu["memory_idle_mib"] + (free_for_engines * ENGINE_SHARE if held_by else 0))


def remember(state_file: Path, state: Json, held_by: dict[str, list[Json]]) -> None:
    """Note holders seen for the first time; the kernel would know whom it killed, the lab has to have looked."""

    def news(gpu: Json) -> list[list[Any]]:
        now = [[h["pid"], h["start"], h["title"].split()[0].split("/")[-1][:15]] for h in held_by.get(gpu["uuid"], ())]
        return [h for h in now if h not in gpu["seen"]]

    if any(news(gpu) for gpu in state["gpus"]):
        with changed(state_file) as fresh:
            for gpu in fresh["gpus"]:
                gpu["seen"] += news(gpu)


def log_xid(state: Json, gpu: Json, xid: int, message: str) -> None:
    """Record an Xid on the GPU and in the kernel-log-like file."""
    now = time.monotonic()
    state["xid_count"] += 1
    text = f"NVRM: Xid (PCI:{gpu['pci'].lower()[4:-2]}): {xid}, {message}"
    gpu["xids"] = [*gpu["xids"][-63:], {"n": state["xid_count"], "xid": xid, "mono": now, "text": text}]
    with Path(state["kmsg"]).open("a") as log:
        log.write(f"[{now:12.6f}] {text}\n")


def inject_xid(state_file: Path, uuid: str, xid: int, message: str = "pid='<unknown>', name=<unknown>") -> None:
    """Record an Xid on a GPU, as the driver would."""
    with changed(state_file) as state:
        log_xid(state, by_uuid(state, uuid), xid, message)


def set_recovery_action(state: Json, gpu: Json, action: int) -> None:
    """Change the recovery action; the driver logs Xid 154 on the way there and on the way back."""
    before = gpu["recovery_action"]
    if before is not None and before != action:
        gpu["recovery_action"] = action
        words = "recovery action changed from"
        log_xid(state, gpu, 154, f"GPU {words} 0x{before:x} ({_long(before)}) to 0x{action:x} ({_long(action)})")


def _long(action: int) -> str:
    return ("None", "GPU Reset Required", "Node Reboot Required", "Drain P2P", "Drain and Reset")[action]


def apply_reset(state: Json, gpu: Json, held_by: Callable[[int, int], bool]) -> None:
    """Do to the GPU what a reset does. `held_by` says whether a process of pid and start still runs."""
    for pid, start, name in gpu["seen"]:
        if not held_by(pid, start):
            log_xid(state, gpu, 45, f"pid={pid}, name={name}, Ch 00000008")
    gpu.update(
        seen=[],
        uptime_start_mono=time.monotonic(),
        power_limit_w=gpu["power_default_w"],
        locked_clocks_mhz=None,
        app_clock_mhz=gpu["app_clock_default_mhz"],
        ecc_volatile_corrected=0,
        ecc_volatile_uncorrected=0,
        event_reasons=1,
    )
    set_recovery_action(state, gpu, 0)
