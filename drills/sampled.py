"""Reads samples.ndjson: what the probes measured while a run was on."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from drills import files, shapes, strictjson
from drills.lang import mark, t
from drills.model import Json

#: Says what is missing or damaged, when it is asked: files are read once, and reported on in more than one language.
Said = Callable[[], str]
NO_FILE = mark("{file} is no file")


def no_file(path: Path) -> bool:
    """Whether something else than a file lies there."""
    return os.path.lexists(path) and not path.is_file()


def read(path: Path, problems: list[Said]) -> tuple[Json, ...]:
    """Return the samples that can be used; a torn last line is left out, any other bad line is named."""
    if no_file(path):
        problems.append(partial(t, NO_FILE, file=path.name))
        return ()
    found: list[Json] = []
    bad: list[int] = []
    try:
        content = files.read(path)
    except FileNotFoundError:
        return ()
    except OSError as exc:
        why = str(exc.strerror or exc)
        problems.append(partial(t, mark("{file} cannot be read ({error})"), file=path.name, error=why))
        return ()
    whole = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), start=1):
        sample = _sample(line)
        if sample is None:
            bad.append(number)
        else:
            found.append(sample)
    if bad:
        problems.append(partial(_bad_lines, path.name, bad[0], len(bad) - 1))
    return tuple(found)


def _bad_lines(name: str, first: int, more: int) -> str:
    if not more:
        return t("{file}:{line} is no sample", file=name, line=first)
    return t("{file}:{line} is no sample (and {n} more)", file=name, line=first, n=more)


def _sample(line: bytes) -> Json | None:
    try:
        sample: Json = strictjson.loads(line)
    except ValueError:
        return None
    values = sample.get("values") if isinstance(sample, dict) else None
    good = not strictjson.misfit(sample, shapes.SAMPLE) and (not sample["ok"] or isinstance(values, dict))
    return sample if good else None
