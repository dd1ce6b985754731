"""The GPUs of hosts, and the units that hold them: what nvidia-smi on each machine says of them.

It is asked once a machine, when somebody first needs to know: nvidia-smi is a client of every GPU while it runs.
"""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET
from typing import Final

from drills.access import gpunodes
from drills.errors import Refused
from drills.hosts.changes import Changes
from drills.hosts.gpuhost import SystemdHost
from drills.hosts.machines import Machine
from drills.model import Host
from drills.targetfile import GpuHost

QUERY_TIMEOUT_S: Final = 60.0
SMI: Final = "nvidia-smi"


class MachineGpus:
    """The GPUs of one machine. May be asked from several threads."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._lock = threading.Lock()
        self._devices: dict[str, str] | None = None

    def devices(self) -> dict[str, str]:
        """Return the device file of each GPU, by UUID; none where no nvidia-smi answers. Raises Unreachable."""
        with self._lock:
            if self._devices is None:
                done = self.host.run([SMI, "-q", "-x"], timeout_s=QUERY_TIMEOUT_S)
                try:
                    self._devices = {uuid: gpu["device"] for uuid, gpu in gpunodes.parse(done.out).items()}
                except ET.ParseError:
                    self._devices = {}
            return self._devices


class GpusOfHosts:
    """Implements HasGpus and HasUnits for units on hosts."""

    machines: tuple[Machine, ...]
    name: str
    _changes: Changes

    def machine(self, name: str) -> Machine:
        """Return the machine of that name."""
        raise NotImplementedError

    def _begin_gpus(self) -> None:
        self._gpus = {machine.name: MachineGpus(machine.host) for machine in self.machines}

    def gpus_of(self, machine: Machine, entry: GpuHost) -> tuple[str, ...]:
        """Return the GPUs of a replica as they are declared; `all` are those that its machine has."""
        return tuple(self._gpus[machine.name].devices()) if entry.gpus == "all" else entry.gpus

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

    def unit_host(self, name: str) -> SystemdHost:
        """Return the machine of that name with its units."""
        machine = self.machine(name)
        units = {entry.name: entry.unit for entry in machine.entries}
        pause = [unit for entry in machine.entries for unit in entry.pause]
        return SystemdHost(machine.host, self.nvidia_smi(name), units, pause, expect=self._changes.expect)
