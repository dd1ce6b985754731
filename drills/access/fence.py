"""The fence of a receipt: what a fault orders on a host is carried out there only until the undo begins.

An order may come late. It lay in a buffer while a link was cut; whoever gave it was told that its end is not known,
has put everything back over another link, and is gone. So each order of a deed names the receipt it belongs to, and is
carried out behind the fence; whoever undoes shuts it first, for good, and waits for what is under way.

<id>.fence   beside the receipt: the fence is open       <id>.shut   the same file once it was shut

The kernel's lock of that file is held, shared, for as long as an order is carried out, and ends with whoever carries it
out. Standard library only: it is copied to hosts.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

#: Most commands of a deed end sooner; what does not is told, and the undo is tried again.
WAIT_S = 20.0
POLL_S = 0.02
_NO_DEED: Mapping[str, str] = MappingProxyType({})
_DEED: ContextVar[Mapping[str, str]] = ContextVar("deed", default=_NO_DEED)


class Shut(Exception):
    """The order was not carried out, in a sentence."""


# ---- where orders are given --------------------------------------------------------------------------------


@contextmanager
def deed(receipt_of: Mapping[str, str]) -> Iterator[None]:
    """What is ordered in here belongs to a receipt; `receipt_of` says for each host where its file lies there."""
    token = _DEED.set(receipt_of)
    try:
        yield
    finally:
        _DEED.reset(token)


def receipt_for(host: str) -> str | None:
    """Return the file of the receipt to which an order for that host belongs now, None when it belongs to none."""
    return _DEED.get().get(host)


# ---- where they are carried out ----------------------------------------------------------------------------


def build(spec: Path) -> None:
    """Put the fence up, open, for the receipt in that file."""
    _shut_file(spec).unlink(missing_ok=True)
    _open_file(spec).touch(mode=0o600)


@contextmanager
def behind(spec: Path) -> Iterator[None]:
    """Carry out an order of that receipt in here. Raises Shut."""
    try:
        fd = os.open(_open_file(spec), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Shut(_why(spec)) from None
    try:
        with suppress(BlockingIOError):  # only who shuts it holds it alone
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not _is(fd, _open_file(spec)) or not spec.exists():
            raise Shut(_why(spec))
        yield
    finally:
        os.close(fd)


def shut(spec: Path, timeout_s: float = WAIT_S) -> str | None:
    """Let no order begin any more, and wait for those that have begun; says what is still under way, or went wrong."""
    try:
        with suppress(FileNotFoundError):  # it was shut before, or there never was one
            _open_file(spec).rename(_shut_file(spec))
        fd = os.open(_shut_file(spec), os.O_RDWR | os.O_CLOEXEC)
        try:
            over = _is_over(fd, time.monotonic() + timeout_s)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None
    except OSError as error:  # the undo goes on without
        return f"{_open_file(spec)}: cannot be shut: {error.strerror}"
    return None if over else "an order of the fault is still being carried out; what it does is not undone"


def _is_over(fd: int, deadline_mono: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline_mono:
                return False
            time.sleep(POLL_S)


def _is(fd: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (os.fstat(fd).st_dev, os.fstat(fd).st_ino)


def _why(spec: Path) -> str:
    return f"what {spec.stem} was about is being put back, or is; it was not carried out"


def _open_file(spec: Path) -> Path:
    return spec.with_suffix(".fence")


def _shut_file(spec: Path) -> Path:
    return spec.with_suffix(".shut")
