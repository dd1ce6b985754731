"""Run folders: `<UTC time>-<experiment>-<run id>` under reports/runs, and how they are found again."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from drills import files
from drills.errors import FileProblem, Refused, nearest

#: Where runs are kept, below the working folder.
REPORTS_DIR: Final = Path("reports/runs")
LATEST: Final = "latest"
TAIL_BYTES: Final = 4096

#: One of these makes a folder a run folder.
_MARKS = ("plan.json", "journal.jsonl")
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-.+-([0-9a-f]{8})")


def new_run_id() -> str:
    """Return a new run id: 8 hexadecimal digits."""
    return secrets.token_hex(4)


def folder_name(begun: datetime, experiment: str, run: str) -> str:
    """Return a run folder's name; names sort by time."""
    return f"{begun.astimezone(UTC):%Y%m%dT%H%M%SZ}-{experiment}-{run}"


def create(begun: datetime, experiment: str, run: str, reports_dir: Path = REPORTS_DIR) -> Path:
    """Make the folder of a new run. Raises Refused when that is not possible: nothing was touched yet."""
    folder = reports_dir / folder_name(begun, experiment, run)
    try:
        folder.mkdir(parents=True)
    except OSError as exc:
        raise Refused(f"{folder}: cannot be made: {exc.strerror or exc}; name another place with --reports") from None
    return folder.resolve()


def prepare(reports_dir: Path) -> None:
    """Make the folder of all runs. Raises Refused when that is not possible."""
    try:
        reports_dir.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        what = f"cannot be made: {exc.strerror or exc}; name another place with --reports"
        raise Refused(f"{reports_dir}: {what}") from None


def find_run(name: str = LATEST, reports_dir: Path = REPORTS_DIR) -> Path:
    """Return the folder of a run: `latest`, a run id, a folder's name, or a path. Raises FileProblem."""
    runs = list_runs(reports_dir)
    if name == LATEST:
        if not runs:
            raise FileProblem(reports_dir, "there is no run yet; begin with: drill run noop")
        # A run that was refused touched nothing; it must not hide the real one before it.
        return next((run for run in reversed(runs) if not _refused(run)), runs[-1])
    for folder in runs:
        if name == folder.name or name == run_id(folder):
            return folder
    path = Path(name).expanduser()
    if "/" in name or _is_run(path):
        if _is_run(path):
            return path.resolve()
        there = _is_folder(path)
        what = f"is not a run folder: neither {' nor '.join(_MARKS)} is in it" if there else "is not there"
        raise FileProblem(path if name.isprintable() else repr(name), what)
    known = [LATEST, *(word for folder in runs[-5:] for word in (folder.name, run_id(folder)))]
    raise FileProblem(reports_dir, f"there is no run {name!r}{nearest(name, known)}")


def list_runs(reports_dir: Path = REPORTS_DIR) -> list[Path]:
    """Return all run folders, oldest first."""
    if not _is_folder(reports_dir):
        return []
    try:
        found = [p.resolve() for p in reports_dir.iterdir() if _NAME.fullmatch(p.name) and _is_run(p)]
    except OSError as exc:
        raise FileProblem(reports_dir, f"cannot be read: {exc.strerror or exc}") from None
    return sorted(found, key=lambda folder: folder.name)


def run_id(folder: Path) -> str:
    """Return the run id in a folder's name, or the whole name where it is another one."""
    match = _NAME.fullmatch(folder.name)
    return match[1] if match else folder.name


def _refused(folder: Path) -> bool:
    try:
        return b'"status":"refused"' in files.read(folder / "journal.jsonl")[-TAIL_BYTES:]
    except OSError:
        return False


def _is_run(path: Path) -> bool:
    return any(_exists(path / mark) for mark in _MARKS)


def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or has a NUL in it
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
