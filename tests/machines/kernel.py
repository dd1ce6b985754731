"""Calls and commands that make namespaces and mounts, which must work or say why they did not."""

from __future__ import annotations

import ctypes
import os
import subprocess

#: CLONE_* of Linux; os.unshare and os.setns came with Python 3.12.
NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWPID, NEWNET = 0x20000000, 0x40000000
COMMAND_TIMEOUT_S = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes) -> None:
    """Call a function of libc that returns 0 when it worked. Raises OSError."""
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def do(*command: str, fds: tuple[int, ...] = ()) -> None:
    """Run a command that must succeed. Raises OSError."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, pass_fds=fds, check=False)
    if ran.returncode:
        raise OSError(f"{' '.join(command)}: {ran.stderr.strip() or ran.returncode}")
