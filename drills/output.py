"""Standard output that cannot hurt: a reader that goes away, or a terminal that closes, changes no drill."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO, cast


class Unbreakable:
    """A text stream; from the first write that fails on, what is written to it is lost in silence."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or lose, the text."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._lose()
        return len(text)

    def flush(self) -> None:
        """Flush, or lose, what was written."""
        try:
            self._stream.flush()
        except OSError:
            self._lose()

    def _lose(self) -> None:
        """Put /dev/null in the place of what is gone, also for whoever writes at exit."""
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, self._stream.fileno())
        os.close(quiet)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def protect() -> None:
    """Make standard output and standard error unbreakable."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before we began
            stream = open(os.devnull, "w")  # noqa: SIM115, PTH123 - lives as long as the process
        setattr(sys, name, cast("TextIO", Unbreakable(stream)))
