"""The GPUs of hosts, and the units that hold them: what nvidia-smi on each machine says of them.

It is asked once a machine, when somebody first needs to know: nvidia-smi is a client of every GPU while it runs. Who
holds a GPU is read off the kernel, which disturbs nobody.
"""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET
from typing import Final

from drills.access import gpunodes
from drills.errors import DrillError, Refused, Unreachable
from drills.hosts.changes import Changes
from drills.hosts.gpuhost import SystemdHost
from drills.hosts.machines import Machine
from drills.hosts.units import Process, Seen
from drills.model import Host
from drills.probes import gpu_host
from drills.targetfile import GpuHost

QUERY_TIMEOUT_S: Final = 60.0
SMI: Final = "nvidia-smi"
NO_SUCH_COMMAND: Final = 127
TEXT_LIMIT: Final = 200


class MachineGpus:
    """The GPUs of one machine. May be asked from several threads."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._lock = threading.Lock()
        self._devices: dict[str, str] | None = None
        self._held: dict[tuple[Process, Process], tuple[str, ...]] = {}

    def devices(self) -> dict[str, str]:
        """Return the device file of each GPU, by UUID; none where there is no nvidia-smi.

        Raises Unreachable, and DrillError when nvidia-smi is there and does not say: then it is asked again next time.
        """
        with self._lock:
            if self._devices is None:
                self._devices = self._ask()
            return self._devices

    def _ask(self) -> dict[str, str]:
        done = self.host.run([SMI, "-q", "-x"], timeout_s=QUERY_TIMEOUT_S)
        if done.rc == NO_SUCH_COMMAND:
            return {}
        try:
            if done.rc == 0 and not done.timed_out:
                return {uuid: gpu["device"] for uuid, gpu in gpunodes.parse(done.out).items()}
        except ET.ParseError:
            pass
        said = " ".join((done.out + done.err).split())[-TEXT_LIMIT:] or "nothing"
        why = f"no answer within {QUERY_TIMEOUT_S:.0f} s" if done.timed_out else f"status {done.rc}: {said}"
        without = "mend that, or list the GPUs of each entry (`gpus: []` for none)"
        raise DrillError(f"{self.host.name}: which GPUs it has: {SMI} -q -x: {why}; {without}")

    def held_by(self, main: Process, engine: Process) -> tuple[str, ...]:
        """Return the GPUs that a server or a process below it has open, as they were when that was first seen.

        There are none while nobody can tell who holds which: it is asked again next time. Raises as `devices` does.
        """
        devices = self.devices()
        with self._lock:
            if (main, engine) not in self._held and devices:
                try:
                    found = gpu_host.holders_of(self.host, list(devices.values()))
                except Unreachable:
                    raise
                except DrillError:
                    return ()
                open_ = {h["device"] for h in found if gpu_host.is_below(h, {main[0]})}
                self._held[main, engine] = tuple(uuid for uuid, device in devices.items() if device in open_)
            return self._held.get((main, engine), ())


class GpusOfHosts:
    """Implements HasGpus and HasUnits for units on hosts."""

    machines: tuple[Machine, ...]
    name: str
    _changes: Changes

    def machine(self, name: str) -> Machine:
        """Return the machine of that name."""
        raise NotImplementedError

    def entry(self, replica: str) -> GpuHost:
        """Return how the replica of that name is declared."""
        raise NotImplementedError

    def _begin_gpus(self) -> None:
        self._gpus = {machine.name: MachineGpus(machine.host) for machine in self.machines}

    def gpus_of(self, machine: Machine, entry: GpuHost, seen: Seen, *, ready: bool) -> tuple[str, ...]:
        """Return the GPUs of a replica as they are declared; `all` are those that it holds, once it is ready."""
        if entry.gpus != "all":
            return entry.gpus
        if not ready or seen.main is None or seen.engine is None:
            return ()
        return self._gpus[machine.name].held_by(seen.main, seen.engine)

    def nvidia_smi(self, host: str) -> list[str]:
        """Return the command that runs nvidia-smi on that machine."""
        self.machine(host)
        return [SMI]

    def gpu_device(self, uuid: str) -> str:
        """Return the device file of a GPU (Refused when no machine has it)."""
        for machine in self.machines:
            if device := self._gpus[machine.name].devices().get(uuid):
                return device
        raise Refused(f"target {self.name}: no GPU {uuid} on {', '.join(machine.name for machine in self.machines)}")

    def clock_lock(self, replica: str) -> tuple[int, ...] | None:
        """Return the site's own clock lock as it is declared, lowest and highest MHz; None where it is not."""
        return self.entry(replica).clocks

    def unit_host(self, name: str) -> SystemdHost:
        """Return the machine of that name with its units."""
        machine = self.machine(name)
        units = {entry.name: entry.unit for entry in machine.entries}
        pause = [unit for entry in machine.entries for unit in entry.pause]
        return SystemdHost(machine.host, self.nvidia_smi(name), units, pause, expect=self._changes.expect)
