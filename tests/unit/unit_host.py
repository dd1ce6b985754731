"""A host in memory with files, units and a GPU that does as told, for the planned reset of units."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drills.errors import DrillError, Refused, Unreachable
from drills.faults import gpu_notes
from drills.faults.gpu_reset import GpuReset
from drills.model import Completed, Context, Json, Receipt, Replica, Restored
from tests.unit.gpu_node import a_gpu

GPU, OTHER_GPU = "GPU-11111111-aaaa", "GPU-22222222-bbbb"
UNIT, WATCHER, FOREIGN = "vllm.service", "dcgm-exporter.service", "jupyter.service"
DONE = "GPU 00000000:1A:00.0 was successfully reset.\nAll done.\n"
IN_USE = (255, "The following GPUs could not be reset:\n  GPU 00000000:1A:00.0: In use by another client\n")


class Machine:
    """The truth of the host: who runs, who holds the GPU, what its files say."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.states = {UNIT: "active", WATCHER: "active", FOREIGN: "inactive"}
        self.uids = {UNIT: "run-1", WATCHER: "run-2", FOREIGN: "run-3"}
        self.gpus = {GPU: a_gpu(), OTHER_GPU: a_gpu(pci="00000000:3B:00.0")}
        self.holders = [holder(10, UNIT), holder(20, WATCHER), holder(30, "", title="/usr/bin/nvidia-persistenced")]
        self.outcomes: list[tuple[int, str] | None] = []  # of the next resets; then all go well
        self.after: Json = {"uptime_s": 1}  # what a reset makes of the GPU
        self.uptime_s = 90000.0
        self.resets, self.boot_id = 0, "b"
        self.deaf = 0  # so many calls get no answer
        self.lose = ""  # the mutation whose answer is lost: "stop" or "spawn"

    def hear(self) -> None:
        """Lose this call when the link is down."""
        if self.deaf > 0:
            self.deaf -= 1
            raise Unreachable("h1: no answer")


def holder(pid: int, unit: str, *, gpu: str = GPU, title: str = "VLLM::EngineCore", state: str = "S") -> Json:
    """Return a process that has the GPU's device open."""
    where = {"device": "/dev/nvidia0", "gpu": gpu, "pod": "", "unit": unit, "ppid": 1, "parents": [1]}
    return {"pid": pid, "start": 1, "title": title, "state": state, **where}


@functools.cache
def note_of_a_process() -> str:
    """Return what the very script that runs a reset notes of its process."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "reset")
        base.with_suffix(".begun").touch()
        subprocess.run(["/bin/sh", "-c", gpu_notes.RUN_RESET, base, "true"], check=True, timeout=10)
        return base.with_suffix(".pid").read_text()


class MemoryHost:
    """Implements Host as far as a reset needs it."""

    name, python = "h1", "python3"

    def __init__(self, machine: Machine) -> None:
        self.on, self.ran = machine, list[Sequence[str]]()

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        assert timeout_s > 0
        self.on.hear()
        self.ran.append(argv)
        rc, out, err = 0, "", ""
        if "-" in argv:
            out = json.dumps(self._machine())
        elif "-pm" in argv:
            self.on.gpus[argv[-1]]["persistence"] = argv[argv.index("-pm") + 1] == "1"
        elif "drills.access.gpu_units" in argv:
            rc, err = self._start(argv)
        elif "drills.access.gpu_restore" in argv:
            rc, err = self._restore(argv)
        return Completed(tuple(argv), rc, out, err)

    def _machine(self) -> Json:
        self.on.uptime_s += 3
        return {
            "source": "nvml", "lab": False, "boot_id": self.on.boot_id, "host_uptime_s": self.on.uptime_s,
            "count": len(self.on.gpus), "conf_compute": False, "may_reset": True, "errors": [],
            "gpus": copy.deepcopy(self.on.gpus),
        }  # fmt: skip

    def _start(self, argv: Sequence[str]) -> tuple[int, str]:
        """Do as `drills.access.gpu_units` does."""
        note, unit = argv[argv.index("--note") + 1], argv[argv.index("--unit") + 1]
        bases = argv[argv.index("--unless") + 1 :] if "--unless" in argv else []
        if note not in self.on.files:
            return 0, ""
        if open_ := [
            base for base in bases if f"{base}.begun" in self.on.files and f"{base}.seen" not in self.on.files
        ]:
            return 1, f"unit {unit}: stays stopped: {open_[0]} is not judged"
        if human := [base for base in bases if f"{base}.human" in self.on.files]:
            return 1, f"unit {unit}: stays stopped: {self.on.files[f'{human[0]}.human']}"
        if self.on.states[unit] != "active":
            self.on.states[unit], self.on.uids[unit] = "active", f"{self.on.uids[unit]}-again"
        del self.on.files[note]
        return 0, ""

    def _restore(self, argv: Sequence[str]) -> tuple[int, str]:
        """Do as `drills.access.gpu_restore` does."""
        base, uuid = argv[argv.index("--base") + 1], argv[argv.index("--uuid") + 1]
        if "--persistence" in argv and argv[argv.index("--persistence") + 1] == "1":
            self.on.gpus[uuid]["persistence"] = True
        if f"{base}.human" in self.on.files:
            return 1, self.on.files[f"{base}.human"]
        if "--keep" not in argv:
            for note in ("begun", "pid", "out", "rc", "seen"):
                self.on.files.pop(f"{base}.{note}", None)
        return 0, ""

    def spawn(self, argv: Sequence[str], *, log: str) -> None:
        self.on.hear()
        base, uuid = argv[3], argv[-1]
        if self.on.lose == "never spawned":
            raise Unreachable("h1: spawn: no answer")
        self.on.resets += 1
        ended = self.on.outcomes.pop(0) if self.on.outcomes else (0, DONE)
        told = ["77", "1", str(self.on.uptime_s), self.on.boot_id]
        self.on.files[f"{base}.pid"] = " ".join(told[: len(note_of_a_process().split())])
        if ended is not None:
            self.on.files[f"{base}.rc"], self.on.files[log] = f"{ended[0]} {self.on.uptime_s + 2}", ended[1]
            if ended[0] == 0:
                self.on.gpus[uuid].update(self.on.after)
        if self.on.lose == "spawn":
            raise Unreachable("h1: spawn: no answer")

    def read(self, path: str) -> str | None:
        self.on.hear()
        kernel = {"/proc/modules": "", gpu_notes.BOOT_ID: f"{self.on.boot_id}\n"}
        return kernel[path] if path in kernel else self.on.files.get(path)

    def write(self, path: str, text: str, *, mode: int = 0o600) -> None:
        assert mode == 0o600
        self.on.hear()
        self.on.files[path] = text

    def remove(self, path: str) -> None:
        self.on.hear()
        self.on.files.pop(path, None)

    def alive(self, pid: int, pid_start: int) -> bool:
        self.on.hear()
        return pid in (10, 11) and self.on.states[UNIT] == "active" and self.on.uids[UNIT] == "run-1"


class MemoryUnits:
    """Implements `UnitHost`."""

    name = "h1"

    def __init__(self, host: MemoryHost) -> None:
        self.host: Any = host
        self.on = host.on
        self.reasons: list[str] = []
        self.stuck: set[str] = set()  # units that never stop
        self.expected: list[str] = []
        self.expect = self.expected.append

    def refusals(self, victims: Sequence[Replica], *, stop: bool) -> list[str]:
        assert stop
        assert victims
        return self.reasons

    def survey(self) -> Json:
        self.on.hear()
        kind = {"architecture": "Hopper", "virtualization": "None"}
        return {
            "gpus": dict.fromkeys(self.on.gpus, kind), "holders": self._holders(), "blind": 0, "errors": [],
            "nvswitch": False, "fabric_manager": False,
        }  # fmt: skip

    def _holders(self) -> list[Json]:
        return [h for h in self.on.holders if not h["unit"] or self.on.states[h["unit"]] == "active"]

    def unit_of(self, victim: str) -> str:
        assert victim == "h1"
        return UNIT

    def units(self, names: Sequence[str]) -> dict[str, Json]:
        self.on.hear()
        return {n: {"uid": self.on.uids[n], "state": self.on.states[n], "sub": "", "job": False} for n in names}

    def to_pause(self, survey: Json, gpus: Sequence[str], victims: Sequence[str]) -> dict[str, str]:
        assert victims == ["h1"]
        there = {h["unit"] for h in survey["holders"] if h["gpu"] in gpus}
        return {WATCHER: self.on.uids[WATCHER]} if WATCHER in there else {}

    def stop(self, unit: str, uid: str, note: str) -> None:
        self.host.write(note, unit)
        if self.on.uids[unit] != uid:
            self.host.remove(note)
            raise Refused(f"unit {unit} is another run of it by now")
        if self.on.lose == "never stopped":
            raise Unreachable("h1: run: no answer")
        if unit not in self.stuck:
            self.on.states[unit] = "inactive"
        if self.on.lose == "stop":
            raise Unreachable("h1: run: no answer")

    def command_of_start(self, unit: str, note: str, bases: Sequence[str] = ()) -> list[str]:
        argv = ["python3", "-m", "drills.access.gpu_units", "--note", note, "--unit", unit]
        return [*argv, *(["--unless", *bases] if bases else [])]


class Custody:
    """Carries out undo steps as `drills.access.ontarget` does: the last one first, and none stops the others."""

    def __init__(self, host: MemoryHost) -> None:
        self.host = host

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        whys = []
        for step in reversed(receipt.undo):
            done = self.host.run(step["argv"], timeout_s=step["timeout_s"])
            whys += [done.err] if done.rc else []
        return (Restored.DIRTY if whys else Restored.CLEAN), whys


class Target:
    """A target of two replicas, on a host each; the first one is drilled."""

    name, kind = "gpu-hosts", "hosts"

    def __init__(self) -> None:
        self.machine = Machine()
        self.there = MemoryHost(self.machine)
        self.node = MemoryUnits(self.there)
        self.custody = Custody(self.there)
        self.site_lock_mhz: tuple[int, ...] | None = ()

    def replicas(self) -> list[Replica]:
        def one(name: str, uid: str, gpu: str) -> Replica:
            return Replica(
                name=name, uid=uid, role="primary", url="", ready=True, host=name, pid=10, pid_start=1, engine_pid=11,
                engine_start=1, gpus=(gpu,),
            )  # fmt: skip

        return [one("h1", self.machine.uids[UNIT], GPU), one("h2", "other", "GPU-33")]

    def host(self, name: str) -> MemoryHost:
        assert name == "h1"
        return self.there

    def state_dir_of(self, host: str) -> str:
        assert host == "h1"
        return "/var/lib/drill"

    def facts(self) -> Json:
        return {}

    def nvidia_smi(self, host: str) -> list[str]:
        assert host == "h1"
        return ["nvidia-smi"]

    def clock_lock(self, replica: str) -> tuple[int, ...] | None:
        assert replica == "h1"
        return self.site_lock_mhz

    def gpu_device(self, uuid: str) -> str:
        raise DrillError(f"nobody should ask for the device of {uuid}")

    def unit_host(self, name: str) -> MemoryUnits:
        assert name == "h1"
        return self.node


class Drilled:
    """One planned reset, with its journal as a list."""

    def __init__(self) -> None:
        self.target: Any = Target()
        self.machine: Machine = self.target.machine
        self.node: MemoryUnits = self.target.node
        self.fault = GpuReset(GpuReset.Params(how="planned"), "hosts")
        self.events: list[tuple[str, Json]] = []
        self.stop_at: str | None = None
        self.on_step: Callable[[str], object] = lambda _: None
        clock = itertools.count()
        self.ctx = Context(self.tell, lambda _: None, lambda: float(next(clock)), self.stopping, 60.0)
        self.before = self.kept()

    def kept(self) -> Json:
        """Return what must be as before when all is put back."""
        settings = {uuid: (gpu["persistence"], gpu["power_limit_w"]) for uuid, gpu in self.machine.gpus.items()}
        return {"states": dict(self.machine.states), "files": dict(self.machine.files), "settings": settings}

    def tell(self, event: str, data: Json) -> None:
        self.events.append((event, data))
        if event == "inject.step":
            self.on_step(data["step"])

    def stopping(self) -> bool:
        return self.stop_at is not None and self.stop_at in self.steps()

    def steps(self) -> list[str]:
        """Return the steps that were told, but for those of each unit."""
        told = [data["step"] for event, data in self.events if event == "inject.step"]
        return [step for step in told if step != "unit.stopping"]

    def victims(self) -> list[Replica]:
        return self.target.replicas()[:1]  # type: ignore[no-any-return] # the target is Any here

    def preflight(self) -> list[str]:
        return self.fault.preflight(self.target, self.victims())

    def aim(self) -> Receipt:
        return self.fault.aim(
            self.target, self.victims(), run="abcd0123", receipt="abcd0123-0-gpu-reset", deadline_s=35.0
        )

    def inject(self, receipt: Receipt) -> None:
        self.fault.inject(self.target, receipt, self.ctx)

    def revert(self, receipt: Receipt) -> Restored:
        return self.fault.revert(self.target, receipt, self.ctx)
