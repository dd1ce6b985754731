"""Bring the catalogues of the reports' languages up to date with the code: `make messages`, from the repository.

What is new stands in the `.po` file without a translation, what no longer is said goes away; then the `.mo` files,
which are the ones that are read, are made again. `--check` writes nothing, and fails where something is missing, has
other placeholders, or is out of date. Needs Babel, which `make setup` brings.
"""

from __future__ import annotations

import ast
import io
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr
from pathlib import Path
from string import Formatter

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "drills"
LOCALE = PACKAGE / "data" / "locale"
DOMAIN = "drills"
#: What says a message in Python: the sentence itself, or the noun that goes with a number (`words.count`).
SAID = {"t": None, "mark": None, "count": (2,)}
#: What says messages imports them from here; in other files these names may mean something else.
SAYS = "from drills.lang import"
TEMPLATES = PACKAGE / "report" / "templates"
WIDTH = 120
HEADER = "# What reports say, in the language {language}. `make messages` brings it up to date with the code."
PITFALLS = PACKAGE / "data" / "pitfalls.yaml"


class Timeless(Catalog):
    """A catalogue that does not say who wrote it when: the same messages give the same bytes."""

    @property
    def mime_headers(self) -> list[tuple[str, str]]:
        """Return what gettext needs to know."""
        return [("Language", str(self.locale)), ("Content-Type", "text/plain; charset=utf-8")]

    @mime_headers.setter
    def mime_headers(self, headers: object) -> None:
        """Leave what a file says as it is."""


def messages() -> dict[str, list[str]]:
    """Return each message with the files it stands in."""
    found: dict[str, list[str]] = {}
    for message, where in _messages():
        places = found.setdefault(message, [])
        if where not in places:
            places.append(where)
    return dict(sorted(found.items(), key=lambda item: (item[1][0], item[0])))


def _messages() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if SAYS in path.read_text() or path.parent == TEMPLATES.parent:
            yield from _in(path, "python", SAID)
    for path in sorted(TEMPLATES.glob("*.j2")):
        yield from _in(path, "jinja2.ext:babel_extract", {"_": None})
    for item in YAML(typ="safe").load(PITFALLS)["pitfalls"]:
        for key in ("title", "why", "find", "question"):
            yield item[key], PITFALLS.relative_to(ROOT).as_posix()


def _in(path: Path, method: str, said: Mapping[str, tuple[int, ...] | None]) -> Iterator[tuple[str, str]]:
    # It tells of every f-string, also of those that fill placeholders; `hidden` tells of those that are messages.
    with path.open("rb") as file, redirect_stderr(io.StringIO()):
        for _, message, _, _ in extract(method, file, keywords=said, options={"silent": "false"}):
            if isinstance(message, str) and message:
                yield message, path.relative_to(ROOT).as_posix()


def hidden() -> list[str]:
    """Return messages that nobody finds: said inside an f-string, or made by one."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        inside = {id(one) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for one in ast.walk(node)}
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _says(node)):
            literal = node.args and isinstance(node.args[0], ast.Constant)
            if (literal and id(node) in inside) or (node.args and isinstance(node.args[0], ast.JoinedStr)):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: a message inside an f-string, or made by one")
    return found


def _says(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in SAID


def updated(language: str) -> Catalog:
    """Return a language's catalogue with every message of the code, and no other."""
    path = po(language)
    known = read_po(io.BytesIO(path.read_bytes()), locale=language) if path.exists() else Catalog(locale=language)
    catalogue = Timeless(locale=language, fuzzy=False, header_comment=HEADER.format(language=language))
    for message, places in messages().items():
        before = known.get(message)
        said = before.string if before is not None else ""
        catalogue.add(message, string=said, locations=[(place, 0) for place in places])
    return catalogue


def texts(catalogue: Catalog) -> tuple[bytes, bytes]:
    """Return the `.po` and the `.mo` of a catalogue."""
    written, compiled = io.BytesIO(), io.BytesIO()
    write_po(written, catalogue, width=WIDTH, include_lineno=False)
    write_mo(compiled, catalogue)
    return written.getvalue(), compiled.getvalue()


def po(language: str) -> Path:
    """Return where the translations to a language are written."""
    return LOCALE / language / "LC_MESSAGES" / f"{DOMAIN}.po"


def wrong(catalogue: Catalog) -> list[str]:
    """Return what is not translated, and what lost a placeholder or something in back-ticks."""
    found = []
    for one in catalogue:
        if one.id and not one.string:
            found.append(f"not translated: {one.id}")
        elif one.id and _fixed(str(one.id)) != _fixed(str(one.string)):
            found.append(f"other placeholders or code: {one.id} -> {one.string}")
    return found


def _fixed(text: str) -> tuple[list[tuple[str | None, ...]], list[str]]:
    """Return what a translation has to repeat: placeholders with their format, and code."""
    holders = [parts[1:] for parts in Formatter().parse(text) if parts[1] is not None] if "{" in text else []
    return sorted(holders, key=str), sorted(re.findall(r"`[^`]*`", text))


def main(argv: list[str]) -> int:
    """Write the catalogues, or check them; returns 1 where something is wrong."""
    found = 0
    for language in sorted(path.name for path in LOCALE.iterdir() if path.is_dir()):
        catalogue = updated(language)
        problems = [*hidden(), *wrong(catalogue)]
        for path, content in zip((po(language), po(language).with_suffix(".mo")), texts(catalogue), strict=True):
            if "--check" not in argv:
                path.write_bytes(content)
            elif not path.is_file() or path.read_bytes() != content:
                problems.append(f"{path.relative_to(ROOT)} is out of date: make messages")
        print(f"{language}: {len(catalogue)} messages, {len(problems)} problems", *problems, sep="\n  ")
        found += len(problems)
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
