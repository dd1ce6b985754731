"""Make text that came from outside inert in Markdown, HTML and a terminal.

Names of replicas and alerts, error texts and commands are data: none may open a link, ring a bell, colour a
terminal, mention a person, start a table cell or end a code block. Short data goes into code spans (`code`), whole
lines into fenced blocks (`fence`), prose from the experiment file stays readable (`prose`).
"""

from __future__ import annotations

import re

from drills.output import visible as visible

#: Longest piece of foreign text a report repeats; the file it came from has the rest.
LENGTH_MAX = 200
#: Longest sentence of ours that repeats such pieces.
SPANS_MAX = 1000

_PUNCTUATION = re.compile(r"([\\`*_\[\]{}|~#!$])")
_BLOCK_START = re.compile(r"^(?:[-+=>:]|\d+(?=[.)](?:\s|$)))")
_TICKS = re.compile(r"`+")


def _one_line(text: object) -> str:
    """Return a text with its line breaks and tabs as single spaces."""
    return re.sub(r"[\t\n\r]+", " ", str(text)).strip()


def shorten(text: str, length_max: int = LENGTH_MAX) -> str:
    """Cut a text at the last word that fits and say so with an ellipsis; a word of its own length is cut in itself."""
    if len(text) <= length_max:
        return text
    cut = text[: length_max - 1]
    head, space, _ = cut.rpartition(" ")
    whole = head if space and text[len(cut)] != " " and len(head) >= length_max // 2 else cut
    return whole.rstrip(" ,;:") + "…"


def prose(text: object, length_max: int = LENGTH_MAX) -> str:
    """Return words of an experiment or a reason for use inside a sentence or a table cell."""
    return _at_start(_inert(shorten(visible(_one_line(text)), length_max)))


def spans(text: object, length_max: int = SPANS_MAX) -> str:
    """Return a sentence of ours as Markdown: what stands in back-ticks there is code, the rest is prose."""
    parts = shorten(visible(_one_line(text)), length_max).split("`")
    if len(parts) % 2 == 0:  # one tick without its other one is a tick
        parts[-2:] = ["`".join(parts[-2:])]
    return _at_start("".join(code(part) if i % 2 and part else _inert(part) for i, part in enumerate(parts)))


def plain(text: object) -> str:
    """Return foreign text for a sentence that `spans` is to show: one line, cut, without a back-tick of its own."""
    return shorten(visible(_one_line(text))).replace("`", "'")


def ticked(text: object) -> str:
    """Return a foreign name for such a sentence, in back-ticks."""
    return f"`{plain(text) or ' '}`"


def _inert(safe: str) -> str:
    safe = safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    safe = _PUNCTUATION.sub(r"\\\1", safe)
    # Renderers turn these into links and mentions without any markup.
    safe = safe.replace("@", "&#64;").replace("://", "&#58;//")
    return re.sub(r"(?i)www\.", lambda hit: hit.group()[:-1] + "&#46;", safe)


def _at_start(safe: str) -> str:
    """Return a text that begins no heading, list or quotation where it begins a line."""
    return _BLOCK_START.sub(lambda hit: f"{hit.group()}\\" if hit.group().isdigit() else f"\\{hit.group()}", safe)


def code(text: object) -> str:
    """Return data as a code span that also holds inside a table cell."""
    safe = shorten(visible(_one_line(text))) or " "
    # A table splits cells at a bar even inside a code span, and "\|" is literal outside of one: use a look-alike.
    safe = safe.replace("|", "¦")
    longest = max((len(run) for run in _TICKS.findall(safe)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if safe.startswith("`") or safe.endswith("`") else ""
    return f"{ticks}{pad}{safe}{pad}{ticks}"


def fence(text: object, language: str = "text") -> str:
    """Return lines as a fenced block that its content cannot end."""
    safe = visible(text, keep_newlines=True).strip("\n")
    longest = max((len(run) for run in _TICKS.findall(safe)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{safe}\n{ticks}"


def ascii_name(text: object, length_max: int = 40) -> str:
    """Return a name for a figure: printable ASCII only, so that every font has every letter."""
    return shorten("".join(char if " " <= char <= "~" else "?" for char in str(text)), length_max).replace("…", "~")
