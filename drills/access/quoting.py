"""Words for a shell on another machine: SSH carries a line of text, never words.

The one place where such a line is made. Every word is quoted, so that a shell finds no reserved word, assignment or
name of its own in any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from drills.errors import Refused


def command_line(argv: Sequence[str]) -> str:
    """Return the line that a shell reads as exactly these words. Refused when no line can carry them."""
    if any("\0" in word for word in argv):
        raise Refused(f"a word of the command {argv[0]!r} holds a NUL, which no command can be given")
    return " ".join(_word(word) for word in argv)


def _word(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"
