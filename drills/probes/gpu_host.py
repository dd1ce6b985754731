"""What a target's host says of its GPUs: `probes/gpu.py` and `access/holders.py`, run there and over at once.

The programs go in by stdin, so nothing has to be installed on the host. They run with the privileges that
nvidia-smi has there (its prefix), for others' processes are hidden from an ordinary user.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, cast

from drills.access import holders as holders_program
from drills.errors import DrillError
from drills.model import HasGpus, Host, Json, Target
from drills.probes import gpu as gpu_program

LOOK_TIMEOUT_S = 60.0
HOLDERS_TIMEOUT_S = 20.0
PERSISTENCE_DAEMON = "nvidia-persistenced"  # holds GPUs open; nvidia-smi suspends it around a reset by itself


def look(target: Target, host_name: str) -> Json:
    """Return the answer of `drills.probes.gpu` on that host. Raises DrillError when there is none."""
    host, smi = target.host(host_name), cast("HasGpus", target).nvidia_smi(host_name)
    library = target.facts().get("nvml_lib") if target.kind == "lab" else None  # elsewhere it is the system's
    argv = [*(["--nvml-lib", str(library)] if library else []), "--smi", *smi]
    answer: Json = _python(host, [], gpu_program.__file__, argv, LOOK_TIMEOUT_S)
    return answer


def holders(target: Target, host_name: str, uuids: Sequence[str]) -> list[Json]:
    """Return the processes that have the GPUs' device files open, but for the persistence daemon."""
    return [h for h in all_holders(target, host_name, uuids) if not is_daemon(h)]


def all_holders(target: Target, host_name: str, uuids: Sequence[str]) -> list[Json]:
    """Return the processes that have the GPUs' device files open, each with the UUID of that one as its `gpu`."""
    host, gpus = target.host(host_name), cast("HasGpus", target)
    uuid_of = {gpus.gpu_device(uuid): uuid for uuid in uuids}
    found = holders_of(host, list(uuid_of), gpus.nvidia_smi(host_name)[:-1])
    return [{**holder, "gpu": uuid_of[holder["device"]]} for holder in found]


def holders_of(host: Host, devices: Sequence[str], prefix: Sequence[str] = ()) -> list[Json]:
    """Return the processes that have these device files open; the prefix is what makes us root there."""
    found: list[Json] = _python(host, prefix, holders_program.__file__, devices, HOLDERS_TIMEOUT_S)
    return found


def is_below(holder: Json, pids: Container[int]) -> bool:
    """Whether it is one of these processes, or a descendant of one."""
    return any(pid in pids for pid in (holder["pid"], *holder["parents"]))


def is_daemon(holder: Json) -> bool:
    """Whether it is the persistence daemon."""
    return str(holder["title"]).split()[0].rsplit("/", 1)[-1] == PERSISTENCE_DAEMON


def describe(holder: Json) -> str:
    """Return who a holder is, in words."""
    stuck = ", stuck in the kernel (state D)" if holder["state"] == "D" else ""
    return f"pid {holder['pid']} ({holder['title'][:60]}) has {holder['device']} open{stuck}"


def gate_is_free(host: Host, path: str) -> bool | None:
    """Whether nobody holds the gate's lock exclusively; None when that cannot be told."""
    rc = host.run(["flock", "-n", "-s", path, "true"], timeout_s=10).rc
    return {0: True, 1: False}.get(rc)


def _python(host: Host, prefix: Sequence[str], program: str | None, argv: Sequence[str], timeout_s: float) -> Any:
    """Run one of our programs on the host and return the JSON it prints."""
    source = Path(str(program)).read_text()
    done = host.run([*prefix, host.python, "-", *argv], timeout_s=timeout_s, stdin=source)
    name = Path(str(program)).name
    if done.timed_out or done.rc != 0:
        why = f"no answer within {timeout_s:.0f} s" if done.timed_out else (done.err.strip().splitlines() or [""])[-1]
        raise DrillError(f"{host.name}: {name}: status {done.rc}: {why}; is Python 3.9 or newer there?")
    return json.loads(done.out)
