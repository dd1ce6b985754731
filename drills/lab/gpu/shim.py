"""Builds the lab's NVML, `libnvidia-ml.so.1`, from shim.c where there is a C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from drills.errors import DrillError

SOURCE = Path(__file__).with_name("shim.c")
SONAME = "libnvidia-ml.so.1"
TIMEOUT_S = 60.0


def compiler() -> str | None:
    """Return the C compiler of this machine, None when there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_shim(folder: Path, state_file: Path | None = None, *, old_driver: bool = False) -> Path | None:
    """Build the shim into `folder` for the state file (default: beside the folder); None without a compiler.

    `old_driver` leaves out what old drivers lack (the uptime of a GPU). A failing compiler is a DrillError.
    """
    cc = compiler()
    if cc is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    state = (state_file or folder.parent / "state.json").absolute()
    library = folder / SONAME
    new = folder / f".{SONAME}.new"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-fvisibility=hidden", f"-Wl,-soname,{SONAME}"]
    flags += [f'-DSTATE_FILE="{state}"'] + (["-DOLD_DRIVER"] if old_driver else [])
    try:
        done = subprocess.run(
            [cc, *flags, "-o", str(new), str(SOURCE)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DrillError(f"{SOURCE.name}: {cc} did not finish within {TIMEOUT_S:.0f} s; try again") from None
    if done.returncode != 0:
        why = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise DrillError(f"{SOURCE.name}: {cc} failed: {why}; the lab can do without: take the compiler off the PATH")
    new.replace(library)
    return library
