"""A run as a review sees it: its plan, journal and verdict, never its requests. Pure and offline.

A review reads dozens of runs, and the large files of old ones need not be kept. What is damaged or missing is named
in `problems`; everything else is told all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from drills import files, journal, runfolder, shapes, strictjson
from drills.errors import EXIT_REFUSED, EXIT_STOPPED, DrillError
from drills.lang import in_language, mark, spoken, t
from drills.model import Event, Json, Restored, Verdict
from drills.strictjson import is_count

MONTH: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])")
#: Outcomes that are no verdict: how a run ended that did not come to its end.
CUT_SHORT, NO_VERDICT = mark("cut short"), mark("no verdict yet")
REFUSED, STOPPED, CRASHED = "refused", "stopped", "crashed"
#: What the exit code says where no journal does.
_ENDED: Final = {EXIT_REFUSED: REFUSED, EXIT_STOPPED: STOPPED}
#: Shown in the place of a run, best first.
_SHOWN: Final = ("postmortem.md", "journal.jsonl", "plan.json")
_UNKNOWN: Final = "?"


@dataclass(frozen=True)
class Digest:
    """What is known of one run; nothing in it is inert yet.

    `foreign`: its verdict gives its reasons in another language than the one that is spoken.
    """

    folder: Path
    plan: Json
    verdict: Json
    events: tuple[Event, ...]
    problems: tuple[str, ...]
    foreign: bool = False

    @property
    def stamp(self) -> str:
        """Return when it began as its folder says it, `20261130T161814Z`: names sort by time."""
        return self.folder.name.split("-", 1)[0]

    @property
    def month(self) -> str:
        """Return the month in which it began, `2026-11`."""
        return f"{self.stamp[:4]}-{self.stamp[4:6]}"

    @property
    def day(self) -> str:
        """Return the day on which it began, `2026-11-30`."""
        return f"{self.month}-{self.stamp[6:8]}"

    @property
    def run(self) -> str:
        """Return its id."""
        return runfolder.run_id(self.folder)

    @property
    def shown(self) -> str:
        """Return the file that shows it best, in the reader's language first; empty when there is none."""
        names = (in_language(_SHOWN[0], spoken()), *_SHOWN)
        return next((name for name in names if (self.folder / name).is_file()), "")

    @property
    def drill(self) -> str:
        """Return the experiment's name; of a run without a plan the one that its folder has."""
        return _text(_map(self.plan.get("experiment")).get("name")) or self.folder.name[17:-9] or _UNKNOWN

    @property
    def target(self) -> str:
        """Return the target's name."""
        return _text(_map(self.plan.get("target")).get("name")) or _text(self.header.get("target")) or _UNKNOWN

    @property
    def place(self) -> tuple[str, str]:
        """Return target and drill: runs that share them make a row of their own."""
        return self.target, self.drill

    @property
    def defect(self) -> str:
        """Return the defect that was planted on purpose; empty without one."""
        return _text(self.plan.get("defect"))

    @cached_property
    def header(self) -> Json:
        """Return the data of the journal's header."""
        return next((event.data for event in self.events if event.event == "header"), {})

    @property
    def checks(self) -> list[Json]:
        """Return the rows of the verdict."""
        return list(self.verdict.get("checks") or [])

    def rows(self, check: str) -> Iterator[Json]:
        """Yield the rows of one check."""
        return (row for row in self.checks if row.get("check") == check)

    @property
    def judged(self) -> str:
        """Return the verdict, empty without one."""
        return _text(self.verdict.get("verdict"))

    @cached_property
    def ended(self) -> str:
        """Return how it ended: completed, stopped, refused, crashed or cut short; empty where nothing says so."""
        if self.events:  # a later recovery does not change how the run ended
            ends = (event.data.get("status") for event in self.events if event.event == "end")
            return _text(next(ends, CUT_SHORT))
        code: Any = self.verdict.get("exit_code")
        return _ENDED.get(code if is_count(code) else 0, "completed" if self.verdict else "")

    @property
    def outcome(self) -> str:
        """Return how it ended, in a word: its verdict where it came to its end."""
        return self.ended if self.ended not in ("", "completed") else self.judged or NO_VERDICT

    @property
    def reason(self) -> str:
        """Return why it ended early, or why its verdict is not `pass`."""
        ends = (event.data.get("reason") for event in self.events if event.event == "end")
        early = _text(next(ends, "")) if self.ended != "completed" else ""
        return early or _text(self.verdict.get("reason"))

    @property
    def restored(self) -> str:
        """Return whether what it changed is put back; without a verdict by its receipts."""
        return _text(self.verdict.get("restored")) or self._put_back

    @cached_property
    def _put_back(self) -> str:
        if not self.events:
            return Restored.UNKNOWN
        said = (event.data for event in self.events if event.event == "revert.end")
        ends = {_text(data.get("receipt")): _text(data.get("restored")) for data in said}
        receipts = (_map(event.data.get("receipt")) for event in self.events if event.event == "receipt")
        found = {ends.get(_text(receipt.get("id")), "") for receipt in receipts}
        bad = Restored.DIRTY if Restored.DIRTY in found else Restored.UNKNOWN
        return Restored.CLEAN if found <= {Restored.CLEAN} else bad

    @property
    def left(self) -> str:
        """Return how the service was left."""
        seen = [event.data.get("left") for event in self.events if event.event == "left"]
        return _text(self.verdict.get("left")) or (_text(seen[-1]) if seen else "") or "unknown"

    @property
    def ran(self) -> bool:
        """Whether it went beyond its preflight."""
        return self.ended != REFUSED

    @property
    def measured(self) -> bool:
        """Whether its figures may be compared: it came to its end, and was judged one way or the other."""
        return self.ended == "completed" and self.judged in (Verdict.PASS, Verdict.FAIL)

    @property
    def versions(self) -> dict[str, str]:
        """Return what was found at the target: name → version."""
        found = _map(self.header.get("versions"))
        told = {name: ", ".join(map(str, said)) if isinstance(said, list) else said for name, said in found.items()}
        return {name: said for name, said in sorted(told.items()) if isinstance(said, str) and said}

    @property
    def outcomes(self) -> dict[str, int]:
        """Return how its requests ended, as the generator counted them."""
        ends = [event.data.get("outcomes") for event in self.events if event.event == "load.stopped"]
        return {str(word): n for word, n in _map(ends[-1]).items() if is_count(n)} if ends else {}


def read(folder: Path) -> Digest:
    """Read a run folder; never raises for what is in it."""
    problems: list[str] = []
    events = _events(folder / "journal.jsonl", problems)
    header = next((event.data for event in events if event.event == "header"), {})
    plan = _object(folder / "plan.json", None, problems) or _map(header.get("plan"))
    verdict = _object(folder / "verdict.json", shapes.VERDICT, problems)
    return Digest(folder, plan, verdict, tuple(events), tuple(problems))


def every(reports: Path, first: str, last: str) -> list[Digest]:
    """Return the runs of the months from `first` to `last`, `2026-11`, oldest first. Raises FileProblem."""
    low, high = first.replace("-", ""), last.replace("-", "")
    return [read(f) for f in runfolder.list_runs(reports / "runs") if low <= f.name[:6] <= high]


def _events(path: Path, problems: list[str]) -> list[Event]:
    try:
        return journal.read(path)
    except DrillError as error:
        problems.append(str(error).replace(f"{path}:", f"{path.name}:"))
        return []


def _object(path: Path, shape: strictjson.Shape | None, problems: list[str]) -> Json:
    """Return a file's object; nothing when it is not there or, which is said, damaged."""
    try:
        found = strictjson.loads(files.read(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        why = error.strerror or error
        problems.append(t("{file}: cannot be read: {reason}", file=path.name, reason=why))
        return {}
    except ValueError as error:
        problems.append(t("{file}: no JSON: {reason}", file=path.name, reason=error))
        return {}
    said = strictjson.misfit(found, shape or strictjson.is_object)
    if said:
        problems.append(f"{path.name}: {said}")
    return {} if said else dict(found)


def _map(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
