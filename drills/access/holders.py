"""Which processes have a device file open: `python holders.py DEVICE...` prints a JSON list.

Lists of known services miss holders, the kernel does not: every `/proc/PID/fd` is looked at. Each entry is
`{"pid", "start", "title", "device", "state", "ppid", "parents"}`: `start` in clock ticks since boot, `state` the
letter of /proc/PID/stat, `parents` all pids up to init, nearest first. Without root, other users' processes
cannot be looked into; how many those were is said on stderr. Standard library only, so that it also runs on
target hosts (`python3 - DEVICE < holders.py`).
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Identity = tuple[str, int, int]


def find(devices: Iterable[str]) -> tuple[list[Json], int]:
    """Return the holders of the devices, and how many processes could not be looked into."""
    wanted = {identity: device for device in devices if (identity := _identity(device)) is not None}
    found: list[Json] = []
    blind = 0
    for entry in Path("/proc").iterdir() if wanted else ():
        if entry.name.isdigit():
            held = _held(entry, wanted)
            blind += held is None
            found += [h for device in sorted(held or ()) if (h := _describe(entry, device)) is not None]
    return sorted(found, key=lambda h: (h["device"], h["pid"])), blind


def _identity(path: Path | str) -> Identity | None:
    """Return what names the device itself: containers have files of their own for the same device number."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    if stat.S_ISCHR(found.st_mode):
        return "device", os.major(found.st_rdev), os.minor(found.st_rdev)
    return "file", found.st_dev, found.st_ino


def _held(process: Path, wanted: dict[Identity, str]) -> set[str] | None:
    """Return which of the devices the process has open; None when it may not be looked into."""
    try:
        files = list((process / "fd").iterdir())
    except PermissionError:
        return None
    except OSError:  # it ended meanwhile
        return set()
    open_ones = (_identity(file) for file in files)
    return {wanted[i] for i in open_ones if i in wanted}


def _describe(process: Path, device: str) -> Json | None:
    """Return who the holder is; None when it ended meanwhile."""
    try:
        line = (process / "stat").read_text()
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    name, fields = line[line.index("(") + 1 : line.rindex(")")], line[line.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return {
        "pid": int(process.name),
        "start": int(fields[19]),
        "title": command or f"[{name}]",
        "device": device,
        "state": fields[0],
        "ppid": int(fields[1]),
        "parents": _parents(int(fields[1])),
    }


def _parents(pid: int) -> list[int]:
    chain: list[int] = []
    while pid > 0 and pid not in chain:
        chain.append(pid)
        try:
            line = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(line[line.rindex(")") + 2 :].split()[1])
    return chain


def main(devices: list[str]) -> int:
    """Print the holders of the devices as JSON."""
    found, blind = find(devices)
    print(json.dumps(found))
    if blind:
        print(f"{blind} processes of other users could not be looked into", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
