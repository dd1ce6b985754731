"""Locks on files, taken with a deadline; the kernel lets go of them when their holder ends, however that is."""

from __future__ import annotations

import fcntl
import time
from typing import IO

from tests.machines.errors import MachineError

LOCK_TIMEOUT_S, POLL_S = 3600.0, 0.1  # a first build takes long


def lock(file: IO[str], kind: int, whose: str = "test machines") -> None:
    """Take a lock (fcntl.LOCK_SH or LOCK_EX) on an open file, waiting for whoever has it (MachineError)."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise MachineError(f"{whose}: another up or down holds {file.name} and does not end") from None
            time.sleep(POLL_S)
