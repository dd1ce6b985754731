"""YAML files with line numbers. Whatever is in the file, the answer is a Document or a FileProblem.

YAML 1.2 by ruamel.yaml. Values come out as plain Python (map, list, text, number, true/false, null);
dates become ISO text. Duplicate keys, tags and keys that are not text are refused.
"""

from __future__ import annotations

import datetime
import re
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq, TaggedScalar
from ruamel.yaml.constructor import ConstructorError, DuplicateKeyError, RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from drills.errors import FileProblem

#: Limits that no honest file reaches; an alias bomb does.
SIZE_MAX: Final = 1024 * 1024
NODES_MAX: Final = 50_000
DEPTH_MAX: Final = 40
INTEGER_MAX: Final = 2**63 - 1

#: Where a value is: map keys and list indices from the top.
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A file's plain data, and the line of every key in it."""

    path: Path
    data: Any
    lines: Mapping[Key, int] = field(repr=False, compare=False)

    def line(self, key: Key) -> int:
        """Return the line of a key, or of the nearest one above it that is in the file."""
        while key not in self.lines:
            key = key[:-1]
        return self.lines[key]

    def problem(self, key: Key, what: str) -> FileProblem:
        """Return the error that points at a key."""
        return FileProblem(self.path, what, line=self.line(key), key=dotted(key) or None)


def dotted(key: Key) -> str:
    """Return a key path as people write it: `checks[0].failover.within`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if part.isprintable() and len(part) <= 60 else repr(part[:60])
            text += f".{name}" if text else name
    return text


def read(path: Path) -> Document:
    """Read a YAML file that holds one map. Raises FileProblem, nothing else."""
    return parse(path, text_of(path))


def parse(path: Path, text: str) -> Document:
    """Read YAML text that holds one map; `path` is for error texts only. Raises FileProblem."""
    try:
        # Round-trip mode keeps the lines. Reused anchors only earn a warning, which nobody would see.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yaml = YAML(typ="rt", pure=True)
            yaml.Constructor = _Constructor
            node = yaml.load(text)
    except RecursionError:
        raise FileProblem(path, "is nested too deep") from None
    except Exception as exc:  # broken input makes ruamel raise much more than YAMLError
        raise _unreadable(path, text, exc) from None
    if node is None:
        raise FileProblem(path, "is empty", line=1)
    if not isinstance(node, CommentedMap):
        raise FileProblem(path, f"holds {kind_of(node)} where a map (`key: value` lines) is expected", line=1)
    plain = _Plain(path)
    data = plain.convert(node, (), 1)
    return Document(path, data, plain.lines)


def kind_of(value: object) -> str:
    """Return what a value is, in words, without showing it."""
    kinds: tuple[tuple[type, str], ...] = (
        (type(None), "nothing"),
        (bool, "true or false"),
        (int, "a number"),
        (float, "a number"),
        (str, "text"),
        (list, "a list"),
        (dict, "a map"),
    )
    return next((word for kind, word in kinds if isinstance(value, kind)), "something else")


def text_of(path: Path) -> str:
    """Return the text of a file that is small enough to be one of ours. Raises FileProblem."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise FileProblem(path, "is a folder; name a YAML file in it")
        if not stat.S_ISREG(status.st_mode):
            raise FileProblem(path, "is not a regular file")
        if status.st_size > SIZE_MAX:
            raise FileProblem(path, f"is larger than {SIZE_MAX // 1024} KiB; this is not a drill file")
        raw = path.read_bytes()
    except FileNotFoundError:
        raise FileProblem(path, "is not there; check the name and the folder") from None
    except OSError as exc:
        raise FileProblem(path, f"cannot be read: {exc.strerror or type(exc).__name__}") from None
    except ValueError:  # a NUL in the name
        raise FileProblem(repr(str(path)), "is not a file name") from None
    return _decoded(path, raw)


def _decoded(path: Path, raw: bytes) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise FileProblem(
            path, f"byte 0x{raw[exc.start]:02x} is not UTF-8; save the file as UTF-8", line=line
        ) from None
    if not text.strip():
        raise FileProblem(path, "is empty", line=1)
    return text


def _unreadable(path: Path, text: str, exc: Exception) -> FileProblem:
    """Return one line for a parser's error. The file's own words stay out: one of them may be a secret."""
    if isinstance(exc, DuplicateKeyError):
        found = re.search(r'duplicate key "(.*?)"', str(exc.problem), re.DOTALL)
        line = exc.problem_mark.line + 1 if exc.problem_mark else None
        return FileProblem(path, "is there twice; remove one", line=line, key=dotted((found[1],)) if found else "a key")
    if isinstance(exc, ReaderError):
        line = text.count("\n", 0, int(exc.position)) + 1
        return FileProblem(path, f"character #x{int(exc.character):04x} is not allowed in YAML", line=line)
    if isinstance(exc, MarkedYAMLError):
        mark = exc.problem_mark or exc.context_mark
        if mark and _at_a_tab(text, mark.line, mark.column):
            return FileProblem(path, "a tab stands where YAML takes spaces only; replace it", line=mark.line + 1)
        problem = re.sub(r"""'[^']*'|"[^"]*\"""", _grammar_only, " ".join(str(exc.problem or exc.context).split()))
        return FileProblem(path, f"is not YAML: {problem}", line=mark.line + 1 if mark else None)
    return FileProblem(path, f"is not YAML that can be read ({type(exc).__name__})")


def _at_a_tab(text: str, line: int, column: int) -> bool:
    """Whether the parser stopped at a tab, or in a line indented with one; it only says that it found no token."""
    rows = text.splitlines()
    row = rows[line] if line < len(rows) else ""
    indent = row[: len(row) - len(row.lstrip())]
    return "\t" in indent + row[column : column + 1]


def _grammar_only(quoted: re.Match[str]) -> str:
    """Keep YAML's own signs, such as '}' and '<scalar>', and drop what was quoted from the file."""
    word = quoted[0][1:-1]
    return quoted[0] if len(word) <= 1 or word.startswith("<") else "…"


class _Constructor(RoundTripConstructor):
    """ruamel's constructor, which says where a scalar such as 2026-13-01 stands that it cannot make a value of."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, ArithmeticError):
            raise ConstructorError(None, None, "this value cannot be read", node.start_mark) from None


class _Plain:
    """Turns ruamel's nodes into plain values, noting each key's line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Key, int] = {(): 1}

    def convert(self, node: object, key: Key, line: int) -> Any:
        self.lines.setdefault(key, line)
        if len(self.lines) > NODES_MAX or len(key) > DEPTH_MAX:
            raise FileProblem(self.path, "is too large or nested too deep once its aliases are followed", line=line)
        if isinstance(node, CommentedMap):
            return self._map(node, key, line)
        if isinstance(node, CommentedSeq):
            return [self.convert(item, (*key, i), _line(node, i, line)) for i, item in enumerate(node)]
        return self._scalar(node, key, line)

    def _map(self, node: CommentedMap, key: Key, line: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for name, value in node.items():
            here = _line(node, name, line)
            text = self._scalar(name, key, here)
            if not isinstance(text, str):
                what = f"holds the key {str(name)[:60]!r}, which is not text; put it in quotes"
                raise FileProblem(self.path, what, line=here, key=dotted(key) or None)
            plain[text] = self.convert(value, (*key, text), here)
        return plain

    def _scalar(self, node: object, key: Key, line: int) -> Any:
        """Return ruamel's own scalar classes as the plain ones they extend."""
        if isinstance(node, bool) or node is None:
            return node
        if isinstance(node, str):
            return self._utf8(str(node), key, line)
        if isinstance(node, int) and "Boolean" in type(node).__name__:
            return bool(node)
        if isinstance(node, int):
            if abs(int(node)) > INTEGER_MAX:
                raise FileProblem(self.path, "is too large a number", line=line, key=dotted(key) or None)
            return int(node)
        if isinstance(node, float):
            return float(node)
        if isinstance(node, datetime.date):
            return node.isoformat()
        what = "carries a tag (!…)" if isinstance(node, TaggedScalar) else "is neither map, list, text nor number"
        raise FileProblem(self.path, f"{what}; write a plain value", line=line, key=dotted(key) or None)

    def _utf8(self, text: str, key: Key, line: int) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            what = "holds half a character (a lone surrogate)"
            raise FileProblem(self.path, what, line=line, key=dotted(key) or None) from None
        return text


def _line(node: CommentedMap | CommentedSeq, name: object, above: int) -> int:
    """Return the line of a key or item; those that came with a merge (<<) have none of their own."""
    where = (node.lc.data or {}).get(name)
    return int(where[0]) + 1 if where else above
