"""Files of a folder that others can write to: only regular ones are read, and none is written through a link."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from drills.errors import FileProblem


def opened(path: Path | str) -> BinaryIO:
    """Open a file to read it. Raises OSError, also for what is no regular file: a pipe would keep us waiting."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC) if _regular(path) else -1
    if fd < 0 or not stat.S_ISREG(os.fstat(fd).st_mode):  # another one by now
        if fd >= 0:
            os.close(fd)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(fd, "rb")


def _regular(path: Path | str) -> bool:
    """Whether it is one, asked without opening it: a device may do something then. Raises OSError."""
    mode = os.stat(path).st_mode  # noqa: PTH116 - `path` may be text
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    return stat.S_ISREG(mode)


def read(path: Path | str) -> bytes:
    """Return a regular file's content. Raises OSError."""
    with opened(path) as file:
        return file.read()


def write(path: Path, content: bytes) -> None:
    """Write a file in one step: a fresh file beside it, then a rename. Raises FileProblem, with nothing left behind."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(fd, "wb") as out:
                out.write(content)
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FileProblem(path, f"cannot be written: {error.strerror or error}") from None
