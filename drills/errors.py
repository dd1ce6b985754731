"""Everything that can go wrong, each leaf with its exit code.

    DrillError
    ├── UsageError        64   bad command line or bad file
    │   └── FileProblem   64   a file, with line, key, value and the nearest valid name
    ├── Refused            3   nothing was touched: preflight, gate, lock, limits, empty set of victims
    │   └── Unreachable    3   the target cannot be asked at this moment; a run that is under way goes on if it can
    ├── Stopped            4   a guard, a signal or `drill stop` ended the run; everything is put back
    └── NotRestored        5   something could not be put back (outranks every other outcome)

An error's text is one line that says where, what, and what to do. Anything else that escapes is our
own bug and ends in 70.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_INCONCLUSIVE = 2
EXIT_REFUSED = 3
EXIT_STOPPED = 4
EXIT_NOT_RESTORED = 5
EXIT_USAGE = 64
EXIT_BUG = 70

#: With several drills the worst wins, in this order.
EXIT_ORDER = (
    EXIT_NOT_RESTORED,
    EXIT_BUG,
    EXIT_STOPPED,
    EXIT_REFUSED,
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_PASS,
)


class DrillError(Exception):
    """Base of all errors a user may see; `exit_code` is what the process ends with."""

    exit_code = EXIT_BUG


class UsageError(DrillError):
    """A bad command line or a bad file."""

    exit_code = EXIT_USAGE


class FileProblem(UsageError):
    """A file that cannot be used: where (path, line, key), what, and what to do."""

    def __init__(self, path: Path | str, what: str, *, line: int | None = None, key: str | None = None) -> None:
        where = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {key}: {what}" if key else f"{where}: {what}")
        self.path, self.line, self.key, self.what = str(path), line, key, what


class Refused(DrillError):
    """The drill was refused before anything was touched."""

    exit_code = EXIT_REFUSED


class Unreachable(Refused):
    """The target, or what leads there, does not answer at this moment."""


class Stopped(DrillError):
    """A guard, a signal or the stop button ended the run; everything is put back."""

    exit_code = EXIT_STOPPED


class NotRestored(DrillError):
    """Something could not be put back; the text carries the manual commands."""

    exit_code = EXIT_NOT_RESTORED


def worst(codes: Iterable[int]) -> int:
    """Return the worst exit code of several drills (0 for none)."""
    seen = set(codes)
    for code in EXIT_ORDER:
        if code in seen:
            return code
    return EXIT_BUG if seen else EXIT_PASS


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest valid name, or the list of valid ones."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; valid: {', '.join(names)}"


def first_line(error: BaseException) -> str:
    """Return what an error says, in its first line; what it is called where it says nothing, as EOFError does."""
    said = str(getattr(error, "strerror", None) or error).split("\n")
    return next((line.strip() for line in said if line.strip()), type(error).__name__)
