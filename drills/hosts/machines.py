"""The machines of a target of GPU hosts. Several replicas may be on one: there is one lock for it, and one link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from drills.errors import DrillError
from drills.model import Host
from drills.targetfile import GpuHost

Key = tuple[str, ...]
T = TypeVar("T")
#: Lock, receipts and stop files lie here on every machine: two targets that share one meet, whatever they name.
CUSTODY_DIR: Final = "/var/lib/drill"
#: What a machine that runs shares with no other one: the boot of its kernel, and of containers on that one their pids.
_IDENTITY: Final = ("sh", "-c", "cat /proc/sys/kernel/random/boot_id && readlink /proc/self/ns/pid")


@dataclass(frozen=True)
class Machine:
    """One machine; its name is that of the first replica which is declared on it."""

    name: str
    key: Key  # the same whatever a target calls it, so that two targets that share it meet
    entries: tuple[GpuHost, ...]
    host: Host
    custody_dir: str = CUSTODY_DIR

    @property
    def state_dir(self) -> str:
        """Return where drills of this target keep their programs and notes on it."""
        return self.entries[0].state_dir

    @property
    def reached(self) -> str:
        """Return how it is reached, in words."""
        entry = self.entries[0]
        return entry.address + (f" by {entry.jump.address}" if entry.jump else "")

    def identity(self) -> str:
        """Connect, and return what no other machine answers, empty where it does not say."""
        self.host.list("/")
        done = self.host.run(_IDENTITY, timeout_s=self.entries[0].timeouts.command)
        return done.out.strip() if done.rc == 0 else ""


def key_of(entry: GpuHost) -> Key:
    """Return what tells machines apart: their address, and through which other one it is reached."""
    jump = (entry.jump.address, str(entry.jump.ssh_port)) if entry.jump else ("", "")
    return (*jump, entry.address, str(entry.ssh_port))


def grouped(entries: Sequence[GpuHost], connect: Callable[[GpuHost], Host]) -> tuple[Machine, ...]:
    """Return the machines of these replicas, sorted by their keys.

    `connect` returns the host behind one entry; it may do so without a word to it.
    """
    by_key: dict[Key, list[GpuHost]] = {}
    for entry in entries:
        by_key.setdefault(key_of(entry), []).append(entry)
    return tuple(Machine(same[0].name, key, tuple(same), connect(same[0])) for key, same in sorted(by_key.items()))


@dataclass(frozen=True)
class Answers(Generic[T]):
    """What machines answered, by name, and what kept others from answering."""

    said: Mapping[str, T]
    failed: Mapping[str, DrillError]

    def all(self) -> Mapping[str, T]:
        """Return the answers of all of them; raises what kept the first one from answering."""
        for error in self.failed.values():
            raise error
        return self.said


def each(machines: Iterable[Machine], act: Callable[[Machine], T]) -> Answers[T]:
    """Ask all of them at once: one that does not answer costs its own deadline only."""
    asked = list(machines)
    said: dict[str, T] = {}
    failed: dict[str, DrillError] = {}
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        for machine, future in [(machine, pool.submit(act, machine)) for machine in asked]:
            try:
                said[machine.name] = future.result()
            except DrillError as error:
                failed[machine.name] = error
    return Answers(said, failed)


def twins(machines: Iterable[Machine], identity_of: Mapping[str, str]) -> list[str]:
    """Say which of them are one machine by two addresses: it would be locked twice, and counted twice."""
    found: dict[str, Machine] = {}
    said = []
    for machine in machines:
        identity = identity_of.get(machine.name, "")
        first = found.setdefault(identity, machine) if identity else machine
        if first is not machine:
            said.append(
                f"hosts {first.name} ({first.reached}) and {machine.name} ({machine.reached}) are one machine: "
                "give them the same address, and the same way to it"
            )
    return said
