"""Reports for people: pure and offline, the same files give the same bytes."""

from __future__ import annotations

from pathlib import Path


def write(folder: Path | str) -> Path:
    """Write a run's postmortem and figures into its folder and return the path; raises DrillError."""
    from drills.report import run  # matplotlib and polars cost a second, which `drill --help` must not pay

    return run.write(folder)
