"""The language of reports: English stands in the code, another one in a gettext catalogue of the package.

`t` is for a sentence that is said now, `mark` for one that stands in a constant and is said later, by `t`. What is in a
journal and what people wrote stays as it is.
"""

from __future__ import annotations

import gettext
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Final, LiteralString

from drills.errors import UsageError, nearest

ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, "zh")
DOMAIN: Final = "drills"
CATALOGUES: Final = Path(__file__).parent / "data" / "locale"

_spoken: ContextVar[str] = ContextVar("language of reports", default=ENGLISH)


def t(message: str, /, **values: object) -> str:
    """Return a message in the language that is spoken, its `{placeholders}` filled in as `str.format` does."""
    said = _catalogue(_spoken.get()).gettext(message)
    return said.format(**values) if values else said


def mark(message: LiteralString, /) -> str:
    """Return a message as it is: the catalogue gets it, `t` says it later."""
    return message


def spoken() -> str:
    """Return the code of the language that is spoken."""
    return _spoken.get()


@contextmanager
def speaking(language: str) -> Generator[None]:
    """Speak a language inside the block; raises UsageError for one there is no catalogue of."""
    if language not in LANGUAGES:
        raise UsageError(f"--lang {language}: no such language{nearest(language, LANGUAGES)}")
    token = _spoken.set(language)
    try:
        yield
    finally:
        _spoken.reset(token)


def in_language(name: str, language: str) -> str:
    """Return the name of a text's file in a language: `review.zh.md` stands beside `review.md`."""
    stem, _, ending = name.rpartition(".")
    return name if language == ENGLISH else f"{stem}.{language}.{ending}"


@cache
def _catalogue(language: str) -> gettext.NullTranslations:
    if language == ENGLISH:
        return gettext.NullTranslations()
    return gettext.translation(DOMAIN, CATALOGUES, [language])
