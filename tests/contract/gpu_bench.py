"""A host with GPUs for the contract suite: the lab's stand-ins, and replicas that are real processes.

A replica is a server whose child, the engine, has the GPU's device file open; the server ends when its engine
dies, as vLLM's does. There is no supervisor: what the gate keeps out is tested by trying to pass it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drills.access import procs
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.custody import Custody
from drills.errors import Refused
from drills.faults.gpu_reset import GpuReset
from drills.lab.gpu import state
from drills.lab.gpu.smi import write_nvidia_smi
from drills.model import Bound, Context, Host, Json, Receipt, Replica, Sla

DEADLINE_S = 20.0
SLA = Sla(Bound(0.99, 1.0), Bound(0.99, 6.0), Bound(0.99, 2.0), 0.01)

ENGINE = "import sys,time; held=[open(p) for p in sys.argv[2:]]; print('up', flush=True); time.sleep(120)"
SERVER = """
import subprocess, sys, time
engine = subprocess.Popen([sys.executable, "-c", sys.argv[1], "engine", *sys.argv[2:]], stdout=subprocess.PIPE)
engine.stdout.readline()
print(engine.pid, flush=True)
engine.wait()
"""


def until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fail with `what` when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


@dataclass
class Bench:
    """Implements Target and HasGpus on this machine."""

    folder: Path
    smi: Path
    state_file: Path
    gpus: list[Json]
    nvml_lib: Path | None = None
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    rows: dict[str, Replica] = field(default_factory=dict)

    name: str = "bench"
    kind: str = "lab"
    site_lock_mhz: tuple[int, ...] | None = ()
    sla: Sla = SLA
    endpoint: str = "http://127.0.0.1:9/v1"
    model: str = "m"
    fallback_models: tuple[str, ...] = ()
    expected_replicas: int = 2
    capacity_per_replica: float | None = None
    prometheus: str | None = None
    alertmanager: str | None = None
    router_metrics: str | None = None
    state_dir: str = ""
    custody: Custody = field(init=False)

    def __post_init__(self) -> None:
        self.state_dir = str(self.folder / "drill")
        self.custody = FileCustody(LocalHost(), self.state_dir, self.name)

    def replicas(self) -> list[Replica]:
        return list(self.rows.values())

    def control_host(self) -> Host:
        return LocalHost()

    def host(self, name: str) -> Host:
        assert name == "local"
        return LocalHost()

    def state_dir_of(self, host: str) -> str:
        assert host == "local"
        return self.state_dir

    def receipts_dir_of(self, host: str) -> str:
        return f"{self.state_dir_of(host)}/receipts"

    def facts(self) -> Json:
        return {"nvml_lib": self.nvml_lib and str(self.nvml_lib)}

    def nvidia_smi(self, host: str) -> list[str]:
        return [str(self.smi)]

    def clock_lock(self, replica: str) -> tuple[int, ...] | None:
        assert replica in self.rows
        return self.site_lock_mhz

    def gpu_device(self, uuid: str) -> str:
        try:
            return str(state.by_uuid(state.read(self.state_file), uuid)["device"])
        except KeyError:
            raise Refused(f"bench: no GPU {uuid}") from None

    # ---- what happens on it --------------------------------------------------------------------------

    def start_replica(self, name: str, *indexes: int, server: str = SERVER) -> Replica:
        devices = [self.gpus[i]["device"] for i in indexes]
        process = self.run_python(server, ENGINE, *devices)
        assert process.stdout is not None
        engine_pid = int(process.stdout.readline())
        self.rows[name] = Replica(
            name=name,
            uid=f"{name}-uid",
            role="primary",
            url="http://127.0.0.1:9",
            ready=True,
            pid=process.pid,
            pid_start=procs.start(process.pid),
            engine_pid=engine_pid,
            engine_start=procs.start(engine_pid),
            gpus=tuple(self.gpus[i]["uuid"] for i in indexes),
            gate=str(self.folder / f"{name}.lock"),
        )
        return self.rows[name]

    def hold(self, index: int, title: str = "stranger") -> subprocess.Popen[str]:
        """Start somebody else's process that has the GPU's device file open."""
        code = f"exec -a {title} {sys.executable} -c {ENGINE!r} {title} {self.gpus[index]['device']}"
        process = self.popen(["bash", "-c", code.replace("\\n", "")])
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def run_python(self, code: str, *argv: str) -> subprocess.Popen[str]:
        return self.popen([sys.executable, "-c", code, *argv])

    def popen(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def nvidia(self, *argv: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.smi, *argv], capture_output=True, text=True, timeout=timeout_s, check=False)

    def gpu(self, index: int) -> Json:
        return state.by_uuid(state.read(self.state_file), self.gpus[index]["uuid"])

    def set(self, index: int, **values: Any) -> None:
        state.change_gpu(self.state_file, self.gpus[index]["uuid"], **values)

    def set_machine(self, **values: Any) -> None:
        with state.changed(self.state_file) as found:
            assert values.keys() <= found.keys()
            found.update(values)

    def close(self) -> None:
        for replica in self.rows.values():
            procs.signal(replica.engine_pid or 0, replica.engine_start or 0, 9)
        for process in self.processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def bench(folder: Path, *, count: int = 3, nvml: bool = False) -> Iterator[Bench]:
    """A bench with GPUs that reset in no time."""
    gpus = state.create(folder / "gpu", count=count, seed=7)
    state_file = folder / "gpu" / "state.json"
    library = None
    if nvml:
        from drills.lab.gpu.shim import build_shim

        library = build_shim(folder / "gpu" / "lib")
    made = Bench(folder, write_nvidia_smi(folder / "bin", state_file), state_file, gpus, library)
    made.set_machine(reset_duration_s=0.05)
    Path(made.state_dir).mkdir()
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def two_replicas(folder: Path) -> Iterator[Bench]:
    """A bench with a replica on each of two GPUs; timers that a test leaves behind are ended."""
    with bench(folder) as made:
        made.start_replica("replica-0", 0)
        made.start_replica("replica-1", 1)
        yield made
        for left in made.custody.outstanding():
            made.custody.disarm(left.receipt)


class Drilled:
    """One gpu-reset on a bench, with its journal as a list."""

    def __init__(self, on: Bench, *victims: Replica, deadline_s: float = 60, timeout_s: float = 20) -> None:
        self.bench, self.victims = on, victims
        self.fault = GpuReset(GpuReset.Params(how="crash"), "lab")
        self.events: list[tuple[str, Json]] = []
        self.stop = False
        self.ctx = Context(self.tell, time.sleep, time.monotonic, lambda: self.stop, timeout_s)
        self.deadline_s = deadline_s
        self.receipt: Receipt | None = None

    def tell(self, event: str, data: Json) -> None:
        self.events.append((event, data))

    def preflight(self) -> list[str]:
        return self.fault.preflight(self.bench, self.victims)

    def aim(self) -> Receipt:
        self.receipt = self.fault.aim(
            self.bench, self.victims, run="abcd0123", receipt="abcd0123-0-gpu-reset", deadline_s=self.deadline_s
        )
        return self.receipt

    def arm(self) -> Receipt:
        receipt = self.receipt or self.aim()
        self.bench.custody.arm(receipt)
        return receipt

    def inject(self) -> None:
        self.fault.inject(self.bench, self.receipt or self.arm(), self.ctx)

    def steps(self) -> list[str]:
        return [data["step"] for event, data in self.events if event == "inject.step"]

    def step(self, name: str) -> Json:
        return next(data for event, data in reversed(self.events) if event == "inject.step" and data["step"] == name)

    def disarm(self) -> None:
        if self.receipt is not None:
            self.bench.custody.disarm(self.receipt)
