"""Replicas on hosts as they are declared: each is one unit, and one machine is reached in one way. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from drills.hosts.machines import key_of
from drills.targetfile import GpuHost
from drills.unitnames import whole

#: All replicas on a machine share one link and one folder.
SHARED: Final = ("user", "key", "jump", "known_hosts", "sudo", "state_dir", "timeouts")


def slips(entries: Sequence[GpuHost]) -> Iterator[tuple[int, str, str]]:
    """Yield what two entries cannot both be: number and key of the later one, and why."""
    for number, entry in enumerate(entries):
        for other in entries[:number]:
            for key, why in _slips(other, entry):
                yield number, key, why
        paused = {whole(unit) for unit in entry.pause}
        for other in entries:
            if key_of(other) == key_of(entry) and (unit := whole(other.unit)) in paused:
                yield number, "pause", f"{unit} is the unit of '{other.name}', and serves"


def _slips(first: GpuHost, second: GpuHost) -> Iterator[tuple[str, str]]:
    if first.name == second.name:
        yield "name", f"two hosts are named '{first.name}'"
    if key_of(first) != key_of(second):
        return
    unit, where = whole(first.unit), f"on {first.address}"
    if unit == whole(second.unit):
        yield "unit", f"{unit} {where} is '{first.name}' already: a unit is one replica, however often it is declared"
    if first.port == second.port:
        yield "port", f"port {first.port} {where} is that of '{first.name}' already: each replica has its own"
    for key in SHARED:
        if getattr(first, key) != getattr(second, key):
            yield key, f"'{first.name}' says something else, and both are {where}: one machine is reached in one way"


def one_unit(uid_of: Mapping[str, str]) -> list[str]:
    """Say which replicas are one unit by two names: runs of different units never have the same InvocationID."""
    found: dict[str, str] = {}
    both = [(first, name) for name, uid in uid_of.items() if uid and (first := found.setdefault(uid, name)) != name]
    return [f"{first} and {name} are one unit by two names: declare it once" for first, name in both]
