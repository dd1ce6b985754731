"""Why a GPU must not be reset now: each reason one sentence, read only. What is not known is a reason too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from drills.faults import clock_locks, gpu_notes
from drills.faults.clock_locks import Lock
from drills.model import Host, Json, Replica
from drills.probes import gpu_host

#: Xids that speak of real trouble, by NVIDIA's catalogue; 79 is "fallen off the bus".
TROUBLE = frozenset({46, 48, 64, 74, 79, 94, 95, 109, 119, 120, 136, 140, 143, 155, 156, 158})


def of_victims(victims: Sequence[Replica], *, gated: bool = True) -> Iterator[str]:
    """Say what is wrong with the victims as the target describes them; `gated`: their restart has to be held back."""
    hosts = sorted({v.host for v in victims})
    if len(hosts) > 1:
        yield f"the victims are on several hosts ({', '.join(hosts)}): one reset drill is for one host"
    for victim in victims:
        if not victim.gpus:
            yield f"{victim.name}: holds no GPU, so there is none to reset"
        for gpu in victim.gpus:
            if gpu.startswith("MIG-"):
                yield f"{victim.name}: holds {gpu}, a MIG instance: a reset would take every instance of that GPU"
            elif not gpu.startswith("GPU-"):
                yield f"{victim.name}: its GPU is named '{gpu}', not by UUID, and indexes move between boots"
        if not (victim.engine_pid and victim.engine_start and victim.pid and victim.pid_start):
            yield f"{victim.name}: its server and engine processes are not known, so they cannot be killed safely"
        if gated and victim.gate is None:
            yield (
                f"{victim.name}: its restart waits for no gate, so its supervisor would start it into the reset; "
                "make it wait with `flock -s` on a lock file before it starts (`drill doctor` shows how)"
            )


def of_gates(host: Host, victims: Sequence[Replica]) -> Iterator[str]:
    """Say which gates somebody else holds."""
    for victim in victims:
        free = None if victim.gate is None else gpu_host.gate_is_free(host, victim.gate)
        if free is False:
            yield f"{victim.name}: its gate {victim.gate} is locked by somebody else, another drill perhaps; let it end"
        elif free is None and victim.gate is not None:
            yield f"{victim.name}: whether its gate {victim.gate} is free cannot be told (is `flock` there?)"


def of_machine(now: Json) -> Iterator[str]:
    """Say what is wrong with the host (an answer of `drills.probes.gpu`)."""
    if now["source"] is None:
        yield f"neither NVML nor nvidia-smi answers: {'; '.join(now['errors'])}"
        return
    if now["may_reset"] is not True:
        known = "not root" if now["may_reset"] is False else "not known whether root"
        yield f"a reset needs root, and nvidia-smi would run as {known}; let the target's user use `sudo -n`"
    if now["conf_compute"] is not False:
        word = "on" if now["conf_compute"] else "not known to be off"
        yield f"confidential computing is {word}: its keys would be lost with the reset"


def of_gpu(uuid: str, now: Json, lock: Lock = ()) -> Iterator[str]:
    """Say what is wrong with the GPU (an answer of `drills.probes.gpu`); `lock` is the site's own of its clocks."""
    gpu = now["gpus"].get(uuid)
    if gpu is None:
        said = "; ".join(now["errors"]) or f"it has {', '.join(now['gpus']) or 'none'}"
        yield f"GPU {uuid} is lost, or was never in this machine ({said}): that is an incident, not a drill"
        return
    if gpu["recovery_action"] is None:
        driver = f"driver {now['driver_version'] or 'of an unknown version'} is too old"
        yield f"GPU {uuid}: {driver}: it does not tell the recovery action, so a sick GPU would look healthy"
    elif gpu["recovery_action"] != "None":
        yield f"GPU {uuid}: asks for a recovery action already ({gpu['recovery_action']}): an incident, not a drill"
    if gpu["mig"] is not False:
        word = "on" if gpu["mig"] else "not known to be off"
        yield f"GPU {uuid}: MIG is {word}: a reset takes every instance with it"
    if gpu["display_active"] is not False:
        yield f"GPU {uuid}: a display is {'active' if gpu['display_active'] else 'not known to be off'} on it"
    if gpu["fabric"] not in ("completed", "not_supported"):
        yield f"GPU {uuid}: its NVLink fabric is {gpu['fabric'] or 'unknown'}: is the fabric manager running?"
    clients = None if gpu["processes"] is None else [p["pid"] for p in gpu["processes"] if p["mps"]]
    if clients is None:
        yield f"GPU {uuid}: its processes cannot be listed, so MPS clients cannot be ruled out"
    elif clients:
        yield f"GPU {uuid}: is shared through MPS (pid {', '.join(map(str, clients))}): all clients would die"
    yield from clock_locks.of_gpu(uuid, gpu, lock)
    yield from clock_locks.of_applications(uuid, gpu)
    yield from _trouble(uuid, gpu, now)


def _trouble(uuid: str, gpu: Json, now: Json) -> Iterator[str]:
    """Say which Xids of real trouble were logged since the GPU was last initialised."""
    since_s = (now["host_uptime_s"] or 0) - (gpu["uptime_s"] or float("inf"))
    recent = sorted({x["xid"] for x in gpu["xids"] or () if x["xid"] in TROUBLE and x["at_s"] >= since_s})
    if recent:
        yield f"GPU {uuid}: the kernel log holds Xid {', '.join(map(str, recent))}: real trouble, not a drill"


def of_modules(host: Host, now: Json) -> Iterator[str]:
    """Say whether a display module keeps the GPUs busy with no process to be seen (the lab's have none)."""
    for line in (host.read("/proc/modules") or "").splitlines() if not now["lab"] else ():
        name, _, uses = line.split()[:3]
        if name == "nvidia_drm" and uses != "0":
            yield f"the kernel module nvidia_drm is in use ({uses}): a reset would be refused with no process to name"


def of_daemon(found: Sequence[Json], now: Json) -> Iterator[str]:
    """Say whether the persistence daemon is in the way: nvidia-smi has it let go, but only where it reaches it."""
    for holder in found if now.get("daemon_socket") is False else ():
        if gpu_host.is_daemon(holder):
            yield (
                f"{gpu_host.describe(holder)} and cannot be asked to let go: it is the persistence daemon, and its "
                "socket /run/nvidia-persistenced/socket is not there; start it anew, or stop it"
            )


def of_before(host: Host, folder: str, uuids: Sequence[str], now: Json) -> Iterator[str]:
    """Say which of the GPUs could not be reset when it was tried, on this driver and since this boot."""
    for uuid in uuids:
        note = gpu_notes.unsupported(host, folder, uuid)
        if note is not None and all(note[key] == now[key] for key in ("driver_version", "boot_id")):
            again = f"rm {gpu_notes.unsupported_note(folder, uuid)}"
            yield (
                f"GPU {uuid}: a reset is not supported here, as was seen when it was tried: nvidia-smi said "
                f"'{note['text']}'; drill another machine, or try again after: {again}"
            )


def of_holders(found: Sequence[Json], victims: Sequence[Replica]) -> Iterator[str]:
    """Say who holds the GPUs and is not part of the victims."""
    for holder in found:
        if not any(is_of(holder, victim) for victim in victims):
            yield f"{gpu_host.describe(holder)} and is not the victim's: stop it first, or drill another replica"
        elif holder["state"] == "D":
            yield f"{gpu_host.describe(holder)}: it cannot be killed"


def is_of(holder: Json, victim: Replica) -> bool:
    """Whether a holder is the victim's server or engine, or was started by the server."""
    own = ((victim.pid, victim.pid_start), (victim.engine_pid, victim.engine_start))
    return (holder["pid"], holder["start"]) in own or victim.pid in holder["parents"]


def of_unheld(
    found: Sequence[Json], victims: Sequence[Replica], owns: Callable[[Json, Replica], bool] = is_of
) -> Iterator[str]:
    """Say which GPUs their victims do not hold: what is done to such a one happens to somebody else, or to nobody."""
    for victim in victims:
        for gpu in victim.gpus:
            here = [holder for holder in found if holder["gpu"] == gpu]
            if not any(owns(holder, victim) for holder in here):
                who = "; ".join(gpu_host.describe(holder) for holder in here) or "nobody has it open"
                yield f"{victim.name}: none of its processes holds GPU {gpu} ({who}): which GPUs are its own?"
