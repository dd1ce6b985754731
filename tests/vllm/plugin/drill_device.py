"""A vLLM plugin: the EngineCore holds the device file named by DRILL_GPU_DEVICE open, and nobody else does.

vLLM loads its plugins in each of its processes; only the EngineCore has set its title to that by then.
"""

from __future__ import annotations

import os

from setproctitle import getproctitle

VARIABLE = "DRILL_GPU_DEVICE"
_held: list[int] = []


def hold() -> None:
    """Open the device for as long as this process lives; a device that cannot be opened ends the engine's start."""
    path = os.environ.get(VARIABLE)
    if path and not _held and getproctitle().startswith("VLLM::EngineCore"):
        _held.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
