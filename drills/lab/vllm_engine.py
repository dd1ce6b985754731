"""Replicas of real vLLM in the lab (`--engine vllm`): where it is found, its command line, and what the lab changes.

On a machine of a few cores the load generator must not share a core with the engines: sharing shows as gaps of
seconds that no fault made. So the engines get all cores but the first, and the load the first.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import drills
from drills.errors import Refused
from drills.lab import tiny_model
from drills.lab.config import LabConfig

INSTALL = "`make setup-vllm` makes one in .cache/vllm/venv, or name yours with DRILL_VLLM=/path/to/vllm"
#: On a small machine: each holds about 2.4 GiB.
REPLICAS = 2
#: A plugin in the environment of vLLM may hold the stand-in GPU open from the EngineCore: its device is named here.
DEVICE = "DRILL_GPU_DEVICE"
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}
#: One thread and one GiB of KV cache (the CPU build reads them); more threads than cores only spin.
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
SERVE = ("--dtype=bfloat16", "--max-model-len=8192", "--max-num-seqs=16", "--enforce-eager")


def executable(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of `vllm`: $DRILL_VLLM, beside this Python, on the PATH, or made by `make setup-vllm`.

    Refused when there is none.
    """
    if named := environ.get("DRILL_VLLM"):
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise Refused(f"lab: DRILL_VLLM={named} is not a program; {INSTALL}")
        return str(Path(named).absolute())
    roots = (Path.cwd(), Path(drills.__file__).parents[1])
    made = (root / ".cache" / "vllm" / "venv" / "bin" / "vllm" for root in roots)
    for path in (Path(sys.executable).parent / "vllm", shutil.which("vllm", path=environ.get("PATH")), *made):
        if path is not None and os.access(path, os.X_OK):
            return str(path)
    raise Refused(f"lab: --engine vllm, and vLLM is not installed: {INSTALL}")


def cores() -> tuple[int, tuple[int, ...]] | None:
    """Return the core of the load and the cores of the engines; None where there is one core only."""
    first, *rest = sorted(os.sched_getaffinity(0))
    return (first, tuple(rest)) if rest else None


def client_cpu(config: LabConfig) -> int | None:
    """Return the core that the load of a drill must keep to, None where it may run anywhere."""
    found = cores() if config.engine == "vllm" else None
    return found[0] if found else None


def settings(config: LabConfig, vllm: str) -> LabConfig:
    """Return the config of a lab with two real replicas: slower to start, slower to answer, fewer of them."""
    return dataclasses.replace(
        config,
        engine="vllm",
        vllm=vllm,
        replicas=REPLICAS,
        ready_within_s=420.0,
        capacity_per_replica=6.0,
        first_token_deadline_ms=2500,
    )


def notes(config: LabConfig) -> list[str]:
    """Return what a reader of the lab's figures must know."""
    if config.engine != "vllm":
        return []
    found = [f"{config.model} is real vLLM ({config.vllm}), {config.fallback_model} is the emulator"]
    if not _pinned():
        found.append("load and engines share their cores (one core, or no taskset): gaps may be the load's own")
    return found


def argv(vllm: str, model: Path, *args: str, device: str | None = None) -> list[str]:
    """Return the command line of a replica; the process stays the same one through `env` and `taskset`."""
    env = {**QUIET, **SMALL, **({DEVICE: device} if device else {})}
    return ["env", *(f"{k}={v}" for k, v in env.items()), *_pinned(), vllm, "serve", str(model), *SERVE, *args]


def replica_argv(folder: Path, config: LabConfig, host: str, port: int, device: str) -> list[str]:
    """Return the command line of a replica of the lab; `engine_args` come last and win.

    Its model is $DRILL_VLLM_MODEL, else a tiny one that is made in the lab's folder.
    """
    model = Path(os.environ.get("DRILL_VLLM_MODEL") or tiny_model.make(folder / "model"))
    args = (f"--host={host}", f"--port={port}", f"--served-model-name={config.model}", *config.engine_args)
    return argv(config.vllm or executable(), model, *args, device=device)


def _pinned() -> Sequence[str]:
    found, taskset = cores(), shutil.which("taskset")
    return (taskset, "--cpu-list", ",".join(map(str, found[1]))) if found and taskset else ()
