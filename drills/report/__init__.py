"""Reports for people: pure and offline, the same files give the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drills.lang import ENGLISH

if TYPE_CHECKING:
    from drills.evidence import Evidence


def write(folder: Path | str, seen: Evidence | None = None, tz: str | None = None, lang: str = ENGLISH) -> Path:
    """Write a run's postmortem and figures into its folder and return the path; raises DrillError.

    `seen`: the folder's evidence, where it was read already; `tz`: the reader's time zone, beside UTC; `lang`: that of
    the page whose path is returned, written beside the English one.
    """
    from drills.report import run  # matplotlib and polars cost a second, which `drill --help` must not pay

    return run.write(folder, seen, tz, lang)
