"""The month's own folder beside the runs: what was asked of each `drill monthly`, and the review of all runs.

reports/2026-11/20261101T020000Z-staging.json     what was asked for, and how each drill ended
reports/2026-11/review.md                         made again from those files and the runs
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from drills import files
from drills.clock import utc
from drills.errors import DrillError, worst
from drills.model import Json
from drills.session import Told

NOT_BEGUN = "not begun: what was before it ended the suite"


class Month:
    """What one `drill monthly` was asked for, written down as it goes: whoever is killed leaves what was known."""

    def __init__(self, reports: Path, began: datetime, target: str, drills: list[str]) -> None:
        self.reports, self.month = reports, f"{began:%Y-%m}"
        self.folder = reports / self.month
        self.name = f"{began:%Y%m%dT%H%M%SZ}-{target}.json"
        self.rows: list[Json] = [{"drill": one, "run": None, "exit_code": None, "why": NOT_BEGUN} for one in drills]
        self.data: Json = {"began": utc(began.timestamp()), "target": target, "drills": self.rows, "exit_code": None}
        self._done = 0

    def ended(self, told: Told) -> None:
        """Write down how the next drill ended, in the order in which they were asked for."""
        run = told.folder.name if told.folder else None
        said = next((line.removeprefix("refused: ") for line in told.lines if line.startswith("refused: ")), "")
        self.rows[self._done] |= {"run": run, "exit_code": told.code, "why": said}
        self._done += 1
        self.data["exit_code"] = worst(row["exit_code"] for row in self.rows[: self._done])
        self.kept()

    def failed(self, error: DrillError) -> None:
        """Write down why no other drill was begun."""
        for row in self.rows[self._done :]:
            row["why"] = str(error)
        self.data["exit_code"] = error.exit_code

    def kept(self) -> str:
        """Write what is known, and say where; that it cannot be written ends no suite and hides no exit code."""
        try:
            return f"review: {self.write()}"
        except (OSError, DrillError) as error:
            return f"review: not written: {error}"
        except Exception as bug:
            return f"review: not written, by a bug of ours: {type(bug).__name__}: {bug}"

    def write(self) -> Path:
        """Write what is known, and the review; returns that. Raises FileProblem."""
        from drills.report import month  # matplotlib costs a second

        self.folder.mkdir(parents=True, exist_ok=True)
        files.write(self.folder / self.name, (json.dumps(self.data, indent=2, sort_keys=True) + "\n").encode())
        return month.write(self.reports, self.month)
