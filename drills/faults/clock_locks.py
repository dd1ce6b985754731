"""A clock lock that the site itself has set: `nvidia-smi -lgc`, once at boot as a rule.

A reset drops it, and `-rgc` takes off whatever lock there is; but what was set nobody can read back. So drill.yaml says
it (`clocks` of a host), what a GPU shows may only agree with that, and who takes a lock off sets this one again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from drills.access.gpu_clocks import LOW, SLACK_MHZ
from drills.model import HasGpus, Json, Replica, Target

Lock = tuple[int, ...]  # lowest and highest MHz, or nothing
#: A busy GPU whose clock is below this share of what it may have, for no reason that it tells, seems to be locked.
UNLOCKED: Final = 0.9


def declared(target: Target, victims: Sequence[Replica]) -> dict[str, Lock]:
    """Return the lock of each GPU by UUID, as far as it is said."""
    found = [(victim.gpus, cast("HasGpus", target).clock_lock(victim.name)) for victim in victims]
    return {gpu: lock for gpus, lock in found if lock is not None for gpu in gpus}


def of_victims(victims: Sequence[Replica], locks: Mapping[str, Lock]) -> Iterator[str]:
    """Say of which victims nobody has said whether a lock is there to be put back."""
    for victim in victims:
        if any(gpu not in locks for gpu in victim.gpus):
            yield (
                f"{victim.name}: a clock lock of its GPUs would be lost, and whether there is one nobody can read: "
                "write `clocks: none` beside it under `hosts` in drill.yaml, or the lock that is set, `clocks: 1410MHz`"
            )


def of_applications(uuid: str, gpu: Json) -> Iterator[str]:
    """Say whether application clocks are set, which can be read, and which a reset drops; few cards still have them."""
    now_mhz, default_mhz = gpu.get("app_clock_mhz"), gpu.get("app_clock_default_mhz")
    if None not in (now_mhz, default_mhz) and now_mhz != default_mhz:
        yield (
            f"GPU {uuid}: its application clocks are set to {now_mhz} MHz ({default_mhz} by default), which a reset "
            f"would drop: take them off first, nvidia-smi -rac -i {uuid}"
        )


def of_gpu(uuid: str, gpu: Json, lock: Lock = ()) -> Iterator[str]:
    """Say what the GPU shows that is at odds with that lock; an idle one shows nothing."""
    figures: list[Any] = [gpu.get(key) for key in ("sm_clock_mhz", "sm_clock_max_mhz", "event_reasons")]
    if None in figures:
        return
    clock, top, reasons = figures
    high = min([*lock[1:], top])
    if clock > high + SLACK_MHZ:
        yield f"GPU {uuid}: its clock is {clock} MHz, above its lock at {high} MHz: correct `clocks` in drill.yaml"
    elif clock < UNLOCKED * high and not reasons & LOW:
        why = f"its clock is {clock} of {high} MHz, and no clock event reason says why"
        said = f"one at {high} MHz is declared" if lock else "none is declared"
        yield f"GPU {uuid}: {why}: a lock seems to be active already, and {said}"
