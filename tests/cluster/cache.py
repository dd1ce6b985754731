"""Where the programs, the packages, the images and the running node are kept: one folder outside the tree."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from tests.machines import locks
from tests.machines.errors import MachineError

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
#: What keeps the test cluster from being built or started: one line, with what to do.
ClusterError = MachineError


def cache() -> Path:
    """Return the folder: $DRILL_CLUSTER_CACHE, else drills-cluster in the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("DRILL_CLUSTER_CACHE") or home / "drills-cluster").absolute()


def digest(parts: Iterable[bytes | Path]) -> str:
    """Return a hash of bytes and of the contents of files."""
    found = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part
        found.update(len(data).to_bytes(8, "big") + data)
    return found.hexdigest()


def made(folder: Path, stamp: str) -> bool:
    """Whether the folder was finished with this stamp."""
    file = folder / ".stamp"
    return file.is_file() and file.read_text() == stamp


def begin(folder: Path) -> None:
    """Empty the folder, which is unfinished from now on."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def finish(folder: Path, stamp: str) -> None:
    """Say that the folder is finished."""
    (folder / ".stamp").write_text(stamp)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Be the only one who changes the cache or the node (ClusterError when somebody else does not end)."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as file:
        lock(file, fcntl.LOCK_EX)
        yield


def lock(file: IO[str], kind: int) -> None:
    """Take a lock (fcntl.LOCK_SH or LOCK_EX) on an open file, waiting for whoever has it."""
    locks.lock(file, kind, "test cluster")
