"""Standard output that hurts nobody: a reader that goes away ends no drill, no word of others steers a terminal."""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import Any, TextIO, cast


def visible(text: object, *, keep_newlines: bool = False) -> str:
    """Return the text with every control, format and unassigned character shown as an escape such as \\x1b."""
    return "".join(_show(char, keep_newlines) for char in str(text))


def _show(char: str, keep_newlines: bool) -> str:
    if char.isprintable() or (char == "\n" and keep_newlines):
        return char
    if unicodedata.category(char) == "Zs":  # spaces of other widths
        return " "
    # Controls (ESC, BEL, C1), bidi and zero-width marks, line separators, half surrogates, unassigned points.
    point = ord(char)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def say(text: object, *, to: TextIO | None = None) -> None:
    """Print one line, now: the only way in which our words, and those of others in them, reach a terminal."""
    print(visible(text), file=to, flush=True)


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
