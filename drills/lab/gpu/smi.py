"""The nvidia-smi stand-in: `python -m drills.lab.gpu.smi --state FILE <arguments of nvidia-smi>`.

It serves what a drill asks (`-L`, `-q -x`, `--query-gpu`, `--query-compute-apps`, `--query-supported-clocks`,
`--gpu-reset`/`-r`, `-pm`, `-pl`, `-lgc`, `-rgc`, `conf-compute -f`) from the lab's state file, and refuses for the
documented reasons.
Exit statuses are the documented ones: 0 ok, 2 bad argument, 4 no permission, 6 not found, 15 GPU lost, 255 other.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from drills.lab.gpu import smi_query, smi_reset, state
from drills.lab.gpu.state import Json

NO_PERMISSION = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Do what nvidia-smi would; returns its exit status."""
    asked = _parser().parse_args(argv)
    if asked.subcommand == ["conf-compute"]:
        print(f"CC status: {'ON' if state.read(asked.state)['conf_compute'] else 'OFF'}")
        return 0
    found = state.read(asked.state)
    gpus = _selected(found, asked.id)
    if gpus is None or not gpus:
        print("No devices were found")
        return 6
    if asked.gpu_reset:
        return smi_reset.reset(asked.state, [gpu["uuid"] for gpu in gpus])
    for change in (_persistence, _power_limit, _lock_clocks, _reset_clocks):
        status = change(asked, gpus)
        if status is not None:
            return status
    return smi_query.answer(asked, found, gpus)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nvidia-smi", description="nvidia-smi stand-in of the lab", allow_abbrev=False
    )
    parser.add_argument("--state", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("subcommand", nargs="*", choices=[[], "conf-compute"], metavar="conf-compute")
    parser.add_argument("-f", action="store_true", help="with conf-compute: whether confidential computing is on")
    parser.add_argument("-i", "--id", help="index, serial, UUID or PCI id; a comma list; all GPUs when left out")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-q", "--query", action="store_true")
    parser.add_argument("-x", "--xml-format", action="store_true")
    parser.add_argument("--query-gpu", type=lambda text: text.split(","))
    parser.add_argument("--query-compute-apps", type=lambda text: text.split(","))
    parser.add_argument("--query-supported-clocks", type=lambda text: text.split(","))
    parser.add_argument("--format", type=lambda text: text.split(","), default=[])
    parser.add_argument("-r", "--gpu-reset", action="store_true")
    parser.add_argument("-pm", "--persistence-mode", choices=["0", "1"])
    parser.add_argument("-pl", "--power-limit", type=float)
    parser.add_argument("-lgc", "--lock-gpu-clocks", type=lambda text: [int(mhz) for mhz in text.split(",")])
    parser.add_argument("-rgc", "--reset-gpu-clocks", action="store_true")
    return parser


def _selected(found: Json, ids: str | None) -> list[Json] | None:
    """Return the GPUs that `-i` names, all without it; None when one of them is not there."""
    if ids is None:
        return list(found["gpus"])
    picked = []
    for one in ids.split(","):
        names = [
            g for g in found["gpus"] if one in (str(g["index"]), g["serial"], g["uuid"]) or _same_bus(one, g["pci"])
        ]
        if not names:
            return None
        picked += names
    return picked


def _same_bus(text: str, pci: str) -> bool:
    """Whether the text is that PCI id, with the domain in 8 or 4 digits or left out."""
    return text.upper() in (pci, pci[4:], pci[9:])


# ---- settings --------------------------------------------------------------------------------------------


def _persistence(asked: argparse.Namespace, gpus: list[Json]) -> int | None:
    if asked.persistence_mode is None:
        return None
    on = asked.persistence_mode == "1"
    words = f"{'Enabled' if on else 'Disabled'} persistence mode for GPU {{pci}}."
    return _set(asked, gpus, lambda gpu: gpu.update(persistence=on), words)


def _power_limit(asked: argparse.Namespace, gpus: list[Json]) -> int | None:
    watts = asked.power_limit
    if watts is None:
        return None
    for gpu in gpus:
        low, high = gpu["power_min_w"], gpu["power_max_w"]
        if not low <= watts <= high:
            print(f"Provided power limit {watts:.2f} W is not a valid power limit which should be between ", end="")
            print(f"{low:.2f} W and {high:.2f} W for GPU {gpu['pci']}\nTerminating early due to previous errors.")
            return 2
    words = f"Power limit for GPU {{pci}} was set to {watts:.2f} W from {{power_limit_w:.2f}} W."
    return _set(asked, gpus, lambda gpu: gpu.update(power_limit_w=watts), words)


def _lock_clocks(asked: argparse.Namespace, gpus: list[Json]) -> int | None:
    if asked.lock_gpu_clocks is None:
        return None
    for gpu in gpus:
        if not gpu["clock_control"]:  # in the words of the real one, which calls that a success
            print(f"Setting locked GPU clocks is not supported for GPU {gpu['pci']}.")
            print("Treating as warning and moving on.\nAll done.")
            return 0
    low, high = (asked.lock_gpu_clocks * 2)[:2]
    words = f'GPU clocks set to "(gpuClkMin {low}, gpuClkMax {high})" for GPU {{pci}}'
    return _set(asked, gpus, lambda gpu: gpu.update(locked_clocks_mhz=[low, high]), words)


def _reset_clocks(asked: argparse.Namespace, gpus: list[Json]) -> int | None:
    if not asked.reset_gpu_clocks:
        return None
    return _set(asked, gpus, lambda gpu: gpu.update(locked_clocks_mhz=None), "GPU clocks reset for GPU {pci}")


def _set(asked: argparse.Namespace, gpus: list[Json], change: Callable[[Json], None], words: str) -> int:
    """Change the GPUs if the lab plays root (the refusal's words are a guess; its status is documented)."""
    with state.changed(asked.state) as found:
        for gpu in (state.by_uuid(found, g["uuid"]) for g in gpus):
            if gpu["lost"]:
                print(smi_query.lost(gpu))
                return smi_query.LOST
            if not found["root"]:
                print(f"Unable to change GPU {gpu['pci']}: Insufficient Permissions")
                print("Terminating early due to previous errors.")
                return NO_PERMISSION
            print(words.format(**gpu))
            change(gpu)
    print("All done.")
    return 0


def write_nvidia_smi(bin_dir: Path, state_file: Path) -> Path:
    """Write the executable `bin_dir/nvidia-smi` that runs this stand-in on that state file."""
    bin_dir.mkdir(parents=True, exist_ok=True)
    path = bin_dir / "nvidia-smi"
    command = shlex.join([sys.executable, "-m", "drills.lab.gpu.smi", "--state", str(state_file.absolute())])
    root = Path(__file__).resolve().parents[3]  # the package may be run from where it lies
    head = f"#!/bin/sh\n# The lab's stand-in, not NVIDIA's.\nexport PYTHONPATH={shlex.quote(str(root))}\n"
    path.write_text(f'{head}exec {command} "$@"\n')
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    sys.exit(main())
