"""What machines get of a command that drills: JUnit XML in a file, and a JSON object a drill on standard output.

With JSON, what people read goes to standard error, whoever writes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from drills import errors, files, journal, junit, output, runfolder, shapes, strictjson
from drills.errors import DrillError, FileProblem
from drills.junit import Ended
from drills.model import Json

if TYPE_CHECKING:
    from drills.session import Told

NOT_BEGUN = "what was before it ended the suite"
#: What of a drill without a verdict is null.
NO_VERDICT: Json = {"run": None, "verdict": None, "restored": None, "left": None, "checks": []}


class Machines:
    """Collects how drills end, and writes it at the end, also when the end is an error."""

    def __init__(self, junit_file: Path | None, as_json: bool, asked: Sequence[str]) -> None:
        """Raises FileProblem when the file cannot be written there, before anything has begun."""
        if junit_file is not None and not junit_file.parent.is_dir():
            raise FileProblem(junit_file, "its folder is not there; make it, or name another file with --junit")
        self._file, self._json, self._asked = junit_file, as_json, list(asked)
        self._ended: list[tuple[Ended, Path | None]] = []
        self._people = redirect_stdout(sys.stderr) if as_json else None

    def __enter__(self) -> Self:
        if self._people:
            self._people.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Write what was asked for; that this fails hides no verdict."""
        if self._people:
            self._people.__exit__(kind, error, at)
        if not self._file and not self._json:
            return
        self._missing(error)
        if self._file:
            try:
                files.write(self._file, junit.document([ended for ended, _ in self._ended]))
            except DrillError as problem:
                output.say(f"drill: {problem}", to=sys.stderr)
        if self._json:
            for ended, folder in self._ended:
                output.say(json.dumps(as_json(ended, folder), sort_keys=True))

    def told(self, told: Told) -> None:
        """Hear how the next drill that was asked for ended."""
        word = self._asked[len(self._ended)] if len(self._ended) < len(self._asked) else "drill"
        refused = (line.removeprefix("refused: ") for line in told.lines if line.startswith("refused: "))
        unjudged = told.folder is not None and not (told.folder / "verdict.json").is_file()
        self.ended(word, told.code, told.folder, next(refused, "; ".join(told.lines) if unjudged else ""))

    def ended(self, drill: str, code: int, folder: Path | None, reason: str = "") -> None:
        """Hear how a drill ended; where it has a folder its name is what that says."""
        if self._file or self._json:
            self._ended.append((of(drill, code, folder, reason), folder))

    def _missing(self, error: BaseException | None) -> None:
        """Add what was asked for and did not run; the first of it, or the command itself, ended by the error."""
        rest = self._asked[len(self._ended) :]
        if error is not None:
            code, reason = _told(error)
            self._ended.append((Ended(rest[0] if rest else "drill", code, reason), None))
        self._ended += [(Ended(name, None, NOT_BEGUN), None) for name in rest[1 if error is not None else 0 :]]


def _told(error: BaseException) -> tuple[int, str]:
    if isinstance(error, DrillError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return errors.EXIT_STOPPED, "stopped before anything was touched"
    return errors.EXIT_BUG, f"{type(error).__name__}: {error}"


def of(drill: str, code: int, folder: Path | None, reason: str = "") -> Ended:
    """Return how a drill ended, with what its folder says."""
    verdict, plan = (_json(folder, name) for name in ("verdict.json", "plan.json"))
    if strictjson.misfit(verdict, shapes.VERDICT):
        verdict = {}
    target, experiment = plan.get("target"), plan.get("experiment")
    drill = str((experiment.get("name") if isinstance(experiment, dict) else None) or drill)
    began, seconds = _times(folder)
    properties: Json = {
        "run": runfolder.run_id(folder) if folder else None,
        "seed": plan.get("seed"),
        "target": target.get("name") if isinstance(target, dict) else None,
        **{name: verdict.get(name) for name in ("verdict", "restored", "left")},
        "exit_code": code,
        "folder": folder.name if folder else None,
    }
    return Ended(drill, code, reason, verdict, properties, began, seconds)


def as_json(ended: Ended, folder: Path | None) -> Json:
    """Return a drill as one object: verdict.json, with the drill, its folder and its exit code."""
    said = {"drill": ended.drill, "folder": str(folder) if folder else None, "exit_code": ended.code}
    reason = ended.reason or str(ended.verdict.get("reason") or "")
    return {**NO_VERDICT, **ended.verdict, **said, "reason": reason}


def _json(folder: Path | None, name: str) -> Json:
    if folder is None:
        return {}
    try:
        found = strictjson.loads(files.read(folder / name))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _times(folder: Path | None) -> tuple[str, float | None]:
    """Return when a run began (UTC) and how long it took, as its journal says."""
    if folder is None:
        return "", None
    try:
        events = journal.read(folder / "journal.jsonl")
        began = datetime.fromisoformat(events[0].time) if events else None
    except (DrillError, ValueError):
        return "", None
    if began is None:
        return "", None
    length = events[-1].mono - events[0].mono
    return f"{began:%Y-%m-%dT%H:%M:%S}", length if strictjson.is_number(length) and length >= 0 else None
