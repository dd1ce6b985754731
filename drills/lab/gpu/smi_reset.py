"""`nvidia-smi --gpu-reset` of the stand-in: the reasons to refuse, the ways to misbehave, the deed.

Texts and statuses come from reports about the real program, but for these guesses: the words of a reset without
root, the status of a partial reset, and `garbled`, which is meant to be unknown.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from drills.access import procs
from drills.lab.gpu import state
from drills.lab.gpu.smi_query import LOST, lost
from drills.lab.gpu.state import Json

OTHER = 255
NO_PERMISSION = 4
HANG_MAX_S = 600.0  # nothing may outlive a forgotten test

IN_USE = "In use by another client"
IN_USE_ADVICE = (
    "{devices} currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics "
    "application such as an X server, or a monitoring application such as another instance of nvidia-smi). Please "
    "first kill all processes using {these} and all compute applications running in the system."
)


def reset(state_file: Path, uuids: list[str]) -> int:
    """Reset the GPUs, each on its own; returns the exit status."""
    found = state.read(state_file)
    state.remember(state_file, found, state.holding(found["gpus"]))
    time.sleep(found["script"]["delay_s"])
    for gpu in (state.by_uuid(found, uuid) for uuid in uuids):
        early = _refused_outright(found, gpu)
        if early is not None:
            return early
    refused: list[tuple[str, str]] = []
    for uuid in uuids:
        reason = _reset_one(state_file, uuid)
        if reason is not None:
            refused.append((state.by_uuid(found, uuid)["pci"], reason))
    if refused:
        _print_refused(refused)
        return OTHER
    if not any(state.reset_mode(found, state.by_uuid(found, uuid)) == "terse" for uuid in uuids):
        print("All done.")
    return 0


def _refused_outright(found: Json, gpu: Json) -> int | None:
    """Print and return the status of a refusal that concerns the whole command."""
    mode, pci = state.reset_mode(found, gpu), gpu["pci"]
    if gpu["lost"] or mode == "lost":
        print(lost(gpu))
        return LOST
    if not found["root"] or mode == "no_permission":
        print(f"Unable to reset GPU {pci}: Insufficient Permissions")
        return NO_PERMISSION
    texts = {
        "unsupported_a": f"Resetting GPU {pci} is not supported.",
        "blocked": f"Unable to reset GPU {pci}: Unknown Error",
        "in_use_old": f"GPU {pci} is currently in use by another process.",
        "garbled": "free(): invalid pointer",
    }
    if mode in texts:
        print(texts[mode])
        return OTHER
    if mode == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(HANG_MAX_S)
    return None


def _reset_one(state_file: Path, uuid: str) -> str | None:
    """Reset one GPU; returns why not."""
    with state.changed(state_file) as found:
        gpu = state.by_uuid(found, uuid)
        mode = state.reset_mode(found, gpu)
        if mode == "unsupported_b":
            return "Not Supported"
        if mode == "in_use" or _in_use(found, gpu):
            return IN_USE
        gpu["resetting"] = [os.getpid(), procs.start(os.getpid())]
    time.sleep(found["reset_duration_s"])
    with state.changed(state_file) as found:
        gpu = state.by_uuid(found, uuid)
        gpu["resetting"] = None
        _deed(found, gpu, mode)
        print(f"GPU {gpu['pci']} was successfully reset.", flush=True)
    return None


def _in_use(found: Json, gpu: Json) -> bool:
    """Whether anything holds the GPU: a process, another reset, a persistence mode that cannot be suspended."""
    busy = gpu["resetting"] is not None and procs.alive(*gpu["resetting"])
    stuck = gpu["persistence"] and not found["persistence_socket"]
    return bool(busy or stuck or state.holding([gpu])[gpu["uuid"]])


def _deed(found: Json, gpu: Json, mode: str | None) -> None:
    if mode == "no_effect":
        return
    state.apply_reset(found, gpu, procs.alive)
    if mode == "needs_recovery":
        state.set_recovery_action(found, gpu, 1)
    if mode == "vanishes":
        found["gpus"].remove(gpu)


def _print_refused(refused: list[tuple[str, str]]) -> None:
    print("The following GPUs could not be reset:")
    for pci, reason in refused:
        print(f"  GPU {pci}: {reason}")
    count = sum(reason == IN_USE for _, reason in refused)
    if count:
        devices = "1 device is" if count == 1 else f"{count} devices are"
        these = "this device" if count == 1 else "these devices"
        print("\n" + IN_USE_ADVICE.format(devices=devices, these=these))
