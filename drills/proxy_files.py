"""Faults that are on while a file is there: the way to command a proxy that needs no connection to it.

Each `*.json` in the folder holds what POST /faults takes, {"id", "mode", "delay_s"}. It is looked for every 100 ms and
read again when it has changed; removing it is the undo. A file that cannot be understood is told in /status and has no
effect. Names that begin with a dot are files being written: write such a one, then rename it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from drills.plain import Json
from drills.proxy_faults import Faults, ProxyFault, parse

POLL_S = 0.1
_MAX_BYTES = 64 * 1024

Identity = tuple[int, int, int]


class FaultFiles:
    """The folder as it was last seen. `changed` is called after the faults have been."""

    def __init__(self, folder: Path, faults: Faults, changed: Callable[[], None]) -> None:
        self.folder, self.faults, self.changed = folder, faults, changed
        self.broken: dict[str, str] = {}
        self._seen: dict[str, Identity] = {}

    async def watch(self) -> None:
        """Look at the folder for ever."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                self.look()
            except Exception as error:  # a watch that ended would leave its faults on for ever
                print(f"faults in {self.folder}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def look(self) -> None:
        """Make the faults what the folder says now."""
        try:
            now = self._names()
        except OSError as error:  # a folder that cannot be read commands nothing
            now = {}
            self.broken = {".": f"{self.folder}: {error.strerror}"}
        else:
            self.broken.pop(".", None)
        if now == self._seen:
            return
        for name in self._seen.keys() - now.keys():
            self.faults.remove(_key(name))
            self.broken.pop(name, None)
        for name in sorted(now):
            if self._seen.get(name) != now[name]:
                self._take(name)
        self._seen = now
        self.changed()

    def status(self) -> Json:
        """Return what GET /status shows of the folder."""
        broken = [{"file": name, "error": error} for name, error in sorted(self.broken.items())]
        return {"folder": str(self.folder), "files": sorted(self._seen), "broken": broken}

    def _names(self) -> dict[str, Identity]:
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return {}
        found = {}
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # removed at this moment
                    stat = (self.folder / name).lstat()
                    found[name] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        return found

    def _take(self, name: str) -> None:
        try:
            self.faults.add(self._read(name), _key(name))
            self.broken.pop(name, None)
        except (OSError, ValueError) as error:
            self.faults.remove(_key(name))
            self.broken[name] = str(error)

    def _read(self, name: str) -> ProxyFault:
        path = self.folder / name
        if not path.is_file():
            raise ValueError("is not a file")
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES)
        return parse(json.loads(raw), monotonic())


def _key(name: str) -> tuple[str, str]:
    """Return the fault's key: the control port has no word for it, so only the file can take it off."""
    return "file", name
