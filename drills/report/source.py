"""A run folder as the report reads it: the evidence, the verdict, and what is not there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drills import evidence, files, shapes, strictjson, verdict
from drills.errors import FileProblem
from drills.evidence import Evidence
from drills.model import Json

#: The files that a report is made from.
NEEDED = ("journal.jsonl", "requests.ndjson", "ledger.ndjson", "samples.ndjson", "verdict.json")
#: The files whose checksums are printed.
FILES = ("plan.json", "load.json", *NEEDED)
#: What a verdict says under these names is no sentence, and the same in every language.
FIXED = frozenset({"run", "verdict", "restored", "left", "check", "value", "bound", "unit"})


@dataclass(frozen=True)
class Source:
    """What was read; `missing` and `torn` are names of files.

    `foreign`: the verdict gives its reasons in another language than the one the report is in.
    """

    folder: Path
    evidence: Evidence
    verdict: Json
    missing: list[str]
    torn: list[str]
    foreign: bool = False


def read(folder: Path, seen: Evidence | None = None) -> Source:
    """Read a run folder, but what was `seen` of it already; raises DrillError without a journal to report on."""
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    torn = [name for name in NEEDED[:4] if _torn(folder / name)]
    return Source(folder, seen or evidence.read(folder), _verdict(folder / "verdict.json"), missing, torn)


def translated(source: Source) -> Source:
    """Return a run whose verdict gives its reasons in the language that is spoken.

    It is judged again, in memory. A stored verdict that differs in more than sentences stays as it is, in English.
    """
    if not source.verdict:
        return source
    judged: Json = strictjson.loads(verdict.encode(verdict.of(source.evidence)))
    same = _without_sentences(judged) == _without_sentences(source.verdict)
    return replace(source, verdict=judged) if same else replace(source, foreign=True)


def _without_sentences(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: item if key == "params" else _without_sentences(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_sentences(item, name) for item in value]
    return "" if isinstance(value, str) and name not in FIXED else value


def _torn(path: Path) -> bool:
    """Whether the last line of a file was cut off while it was written."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with files.opened(path) as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def _verdict(path: Path) -> Json:
    if not path.is_file():
        return {}
    again = "delete it and run `drill judge` again"
    try:
        value: Any = strictjson.loads(files.read(path))
    except OSError as error:
        raise FileProblem(path, f"cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise FileProblem(path, f"not JSON ({error}); {again}") from None
    if said := strictjson.misfit(value, shapes.VERDICT):
        raise FileProblem(path, f"not a verdict ({said}); {again}")
    return dict(value)


def checksums(folder: Path) -> list[tuple[str, str]]:
    """Return name and sha256 of each file of the run that is there."""
    there = [name for name in FILES if (folder / name).is_file()]
    return [(name, _digest(folder / name)) for name in there]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with files.opened(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def find(value: Any, key: str) -> Any:
    """Return the first value of that key anywhere inside plain data, None when there is none."""
    if isinstance(value, dict):
        if value.get(key) is not None:
            return value[key]
        parts: list[Any] = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return None
    return next((hit for part in parts if (hit := find(part, key)) is not None), None)
