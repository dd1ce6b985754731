"""What a GPU is capped by for a drill, whether that may be done now, and what the GPU shows of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from drills.access.gpu_clocks import IDLE, LOW, SLACK_MHZ, SLACK_W
from drills.errors import DrillError
from drills.faults import clock_locks
from drills.faults.clock_locks import Lock
from drills.model import Host, Json, Replica

COMMAND_TIMEOUT_S: Final = 30.0
UNDO_TIMEOUT_S: Final = 90
POWER_CAP: Final = 0x4
APPLICATION_CLOCKS: Final = 0x2
#: Clock event reasons that speak of heat or of the board's own protection, by name.
REAL: Final = {0x8: "HW slowdown", 0x20: "SW thermal", 0x40: "HW thermal", 0x80: "HW power brake"}
#: What is noted of a GPU before it is capped.
NOTED: Final = ("sm_clock_mhz", "sm_clock_max_mhz", "event_reasons", "power_limit_w", "power_default_w")


@dataclass(frozen=True)
class Cap:
    """One GPU, what was set there before, and what is set by us: `mhz` or `watts`."""

    replica: str
    host: str
    gpu: str
    note: str  # a file: written before the change, away again after the undo
    mhz: int | None
    watts: float | None
    prior: Json  # what the probe told at the aim: clocks, limits, reasons
    lock: list[int] = field(default_factory=list)  # the site's own: lowest and highest MHz, or nothing

    def to_json(self) -> Json:
        """Return it as a receipt holds it."""
        return asdict(self)

    def command(self, smi: Sequence[str]) -> list[str]:
        """Return the command that sets it."""
        change = ["-lgc", f"{self.mhz},{self.mhz}"] if self.mhz is not None else ["-pl", f"{self.watts:.2f}"]
        return [*smi, *change, "-i", self.gpu]

    def undo(self, python: str, smi: Sequence[str]) -> Json:
        """Return the undo step."""
        argv = [python, "-m", "drills.access.gpu_clocks", "--note", self.note, "--uuid", self.gpu]
        if self.mhz is not None:
            argv += ["--cap-mhz", str(self.mhz)]
            argv += ["--clocks", ",".join(map(str, self.lock))] if self.lock else []
        else:
            argv += ["--cap-w", f"{self.watts:.2f}", "--prior-w", f"{self.prior['power_limit_w']:.2f}"]
            default_w = self.prior["power_default_w"]
            argv += [] if default_w is None else ["--default-w", f"{default_w:.2f}"]
        step: Json = {"do": "run", "argv": [*argv, "--smi", *smi], "timeout_s": UNDO_TIMEOUT_S, "beside": True}
        return step | {"host": self.host}

    def words(self) -> str:
        """Return what is capped at what."""
        if self.mhz is not None:
            return f"clock locked at {self.mhz} of {self.prior['sm_clock_max_mhz']} MHz"
        return f"power limit lowered from {self.prior['power_limit_w']:g} to {self.watts:g} W"


def of_json(data: Json) -> Cap:
    """Return what `to_json` gave."""
    return Cap(**data)


# ---- what it is set to -----------------------------------------------------------------------------------


def clock_mhz(supported: Sequence[int], top_mhz: int, share: float) -> int | None:
    """Return the highest supported clock that is no more than that share of the highest; None where there is none."""
    return max((mhz for mhz in supported if mhz <= share * top_mhz), default=None)


def supported_mhz(host: Host, smi: Sequence[str], gpu: str) -> list[int]:
    """Return the SM clocks to which the card can be locked; none where it cannot be. Raises DrillError."""
    argv = [*smi, "--query-supported-clocks=gr", "--format=csv,noheader,nounits", "-i", gpu]
    done = host.run(argv, timeout_s=COMMAND_TIMEOUT_S)
    if done.timed_out:
        raise DrillError(f"GPU {gpu}: nvidia-smi does not say within {COMMAND_TIMEOUT_S:.0f} s which clocks it has")
    return sorted({int(line) for line in done.out.split() if line.isdigit()}) if done.rc == 0 else []


def watts(gpu: Json, share: float) -> float:
    """Return that share of the default power limit."""
    return round(share * float(gpu["power_default_w"]), 2)


# ---- why it may not be done now --------------------------------------------------------------------------


def of_victims(victims: Sequence[Replica], everybody: Sequence[Replica]) -> Iterator[str]:
    """Say what is wrong with the victims as the target describes them."""
    names = {victim.name for victim in victims}
    others = [replica for replica in everybody if replica.name not in names]
    for victim in victims:
        if not victim.gpus:
            yield f"{victim.name}: holds no GPU whose clocks could be capped"
        for gpu in victim.gpus:
            if gpu.startswith("MIG-"):
                yield f"{victim.name}: holds {gpu}, a MIG instance: its clocks are those of every other instance"
            elif not gpu.startswith("GPU-"):
                yield f"{victim.name}: its GPU is named '{gpu}', not by UUID, and indexes move between boots"
            shared = sorted(r.name for r in others if gpu in r.gpus and r.host == victim.host)
            if shared:
                yield f"{victim.name}: shares GPU {gpu} with {', '.join(shared)}, who would be slowed too"


def of_machine(host: str, now: Json) -> Iterator[str]:
    """Say what is wrong with the host (an answer of `drills.probes.gpu`)."""
    if now["source"] is None:
        yield f"{host}: neither NVML nor nvidia-smi answers: {'; '.join(now['errors'])}"
    elif now["may_reset"] is not True:
        known = "not root" if now["may_reset"] is False else "not known whether root"
        yield (
            f"{host}: to cap clocks or power needs root, and nvidia-smi would run as {known}; "
            "let the target's user use `sudo -n`"
        )


def of_gpu(uuid: str, now: Json, lock: Lock = ()) -> Iterator[str]:
    """Say why neither clocks nor power of the GPU may be capped now; `lock` is the site's own."""
    gpu = now["gpus"].get(uuid)
    if gpu is None:
        yield f"GPU {uuid} is lost, or was never in this machine ({'; '.join(now['errors']) or 'no word of it'})"
        return
    if gpu["mig"] is not False:
        yield f"GPU {uuid}: MIG is {'on' if gpu['mig'] else 'not known to be off'}: all its instances would be slowed"
    if None in (gpu["sm_clock_mhz"], gpu["sm_clock_max_mhz"], gpu["event_reasons"]):
        yield f"GPU {uuid}: does not tell its clock, or why it is where it is, so nothing could be proven"
        return
    if found := reasons(gpu["event_reasons"]):
        yield f"GPU {uuid}: is throttled already ({', '.join(found)}): that is an incident, not a drill"
    elif gpu["event_reasons"] & APPLICATION_CLOCKS:
        yield f"GPU {uuid}: its clock event reasons say that application clocks are set, which hold it down already"
    else:
        yield from clock_locks.of_gpu(uuid, gpu, lock)


def of_clocks(uuid: str, gpu: Json, supported: Sequence[int], share: float, lock: Lock = ()) -> Iterator[str]:
    """Say why its clocks cannot be locked so low."""
    if not supported:
        yield f"GPU {uuid}: this card, or its driver, does not support locked clocks; try `how: power`"
        return
    cap_mhz, clock = clock_mhz(supported, gpu["sm_clock_max_mhz"], share), gpu["sm_clock_mhz"]
    if cap_mhz is None:
        yield f"GPU {uuid}: {share:.0%} of its highest clock is below the lowest it has, {min(supported)} MHz"
    elif lock and max(lock) <= cap_mhz + SLACK_MHZ:
        yield f"GPU {uuid}: its own lock is at {max(lock)} MHz, so that one at {cap_mhz} MHz would change nothing"
    elif clock <= cap_mhz + SLACK_MHZ and not gpu["event_reasons"] & IDLE:
        yield f"GPU {uuid}: its clock is at {clock} MHz already, so that a lock at {cap_mhz} MHz would change nothing"


def of_power(uuid: str, gpu: Json, share: float) -> Iterator[str]:
    """Say why its power cannot be capped so low."""
    limit_w, default_w, min_w = gpu["power_limit_w"], gpu["power_default_w"], gpu["power_min_w"]
    if limit_w is None or default_w is None or min_w is None:
        yield f"GPU {uuid}: this card, or its driver, does not support power limits; try `how: clocks`"
        return
    cap_w = watts(gpu, share)
    if cap_w < min_w:
        yield f"GPU {uuid}: {share:.0%} of its power is {cap_w:g} W, below the lowest limit it takes, {min_w:g} W"
    elif cap_w >= limit_w:
        yield f"GPU {uuid}: its limit is {limit_w:g} W already, so that one of {cap_w:g} W would change nothing"


# ---- what it shows ---------------------------------------------------------------------------------------


def reasons(bits: int) -> list[str]:
    """Return the clock event reasons among them that speak of heat or protection."""
    return [name for bit, name in REAL.items() if bits & bit]


def seen(cap: Cap, gpu: Json | None, *, noted: bool) -> Json:
    """Return what the GPU shows: {"capped": bool or None, "meaning", figures}. `noted`: our note is there."""
    what = f"GPU {cap.gpu} of {cap.replica}"
    if gpu is None or None in (gpu["sm_clock_mhz"], gpu["event_reasons"]):
        return {"what": what, "meaning": "it tells neither clock nor reasons", "capped": None}
    capped = _clock_capped(cap, gpu, noted) if cap.mhz is not None else _power_capped(cap, gpu)
    clock = f"SM clock {gpu['sm_clock_mhz']} MHz"
    limit = "" if gpu["power_limit_w"] is None else f", power limit {gpu['power_limit_w']:g} W"
    heat = ", ".join(reasons(gpu["event_reasons"])) or "none of heat"
    state = {True: cap.words(), False: "not capped by us", None: "whether it is capped does not show"}[capped]
    return {
        "what": what,
        "meaning": f"{state}; {clock}{limit}; clock event reasons 0x{gpu['event_reasons']:x}, {heat}",
        "capped": capped,
        "gpu": cap.gpu,
        "sm_clock_mhz": gpu["sm_clock_mhz"],
        "power_limit_w": gpu["power_limit_w"],
        "event_reasons": gpu["event_reasons"],
        "temperature_c": gpu["temperature_c"],
    }


def _clock_capped(cap: Cap, gpu: Json, noted: bool) -> bool | None:
    """Whether the clock is where we locked it. An idle GPU is low by itself, and one that is throttled may be, too."""
    assert cap.mhz is not None
    if gpu["sm_clock_mhz"] > cap.mhz + SLACK_MHZ:
        return False
    if not noted:
        return False if gpu["event_reasons"] & LOW else None
    at_it = gpu["sm_clock_mhz"] >= cap.mhz - SLACK_MHZ
    return True if at_it and not gpu["event_reasons"] & IDLE else None


def _power_capped(cap: Cap, gpu: Json) -> bool | None:
    """Whether the limit is ours, and is what holds the card down: a limit that is never met slows nobody."""
    if gpu["power_limit_w"] is None or cap.watts is None:
        return None
    if abs(gpu["power_limit_w"] - cap.watts) > SLACK_W:
        return False
    return True if gpu["event_reasons"] & POWER_CAP else None
