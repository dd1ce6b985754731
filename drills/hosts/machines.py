"""The machines of a target of GPU hosts. Several replicas may be on one: there is one lock for it, and one link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from drills.errors import DrillError, UsageError
from drills.model import Host
from drills.targetfile import GpuHost

Key = tuple[str, ...]
T = TypeVar("T")
#: Lock, receipts and stop files lie here on every machine: two targets that share one meet, whatever they name.
CUSTODY_DIR: Final = "/var/lib/drill"


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


def key_of(entry: GpuHost) -> Key:
    """Return what tells machines apart: their address, and through which other one it is reached."""
    jump = (entry.jump.address, str(entry.jump.ssh_port)) if entry.jump else ("", "")
    return (*jump, entry.address, str(entry.ssh_port))


def grouped(entries: Sequence[GpuHost], connect: Callable[[GpuHost], Host]) -> tuple[Machine, ...]:
    """Return the machines of these replicas, sorted by their keys. Raises UsageError where a declaration is at odds.

    `connect` returns the host behind one entry; it may do so without a word to it.
    """
    by_key: dict[Key, list[GpuHost]] = {}
    for entry in entries:
        by_key.setdefault(key_of(entry), []).append(entry)
    for same in by_key.values():
        if len({entry.state_dir for entry in same}) > 1:
            names = ", ".join(entry.name for entry in same)
            raise UsageError(f"hosts {names}: are one machine ({same[0].address}) and need one state_dir")
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
