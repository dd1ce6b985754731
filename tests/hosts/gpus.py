"""The GPUs of a host, made at its boot: `python -m tests.hosts.gpus SEED`. The stand-in's, as device files in /dev."""

from __future__ import annotations

import sys
from pathlib import Path

from drills.lab.gpu import state
from tests.hosts import layout


def make(seed: int) -> None:
    """Make the GPUs anew; the same seed gives the same UUIDs."""
    folder = layout.GPU_STATE.parent
    state.create(folder, layout.GPUS, seed)
    with state.changed(layout.GPU_STATE) as found:
        for gpu in found["gpus"]:
            gpu["device"] = f"/dev/nvidia{gpu['minor']}"
            Path(gpu["device"]).touch(mode=0o666)


if __name__ == "__main__":
    make(int(sys.argv[1]))
