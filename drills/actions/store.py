"""Reading and writing `actions.yaml`. It is people's file: comments, order and their words stay as they are.

It is written in one step, only when something changes, and by one writer at a time.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from drills import files, yamlfile
from drills.actions.items import FILE, Book, Item
from drills.errors import FileProblem
from drills.model import Json
from drills.validate import validate

LOCK: Final = ".actions.lock"
LOCK_TIMEOUT_S: Final = 10.0
LOCK_POLL_S: Final = 0.05
_PLAIN: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9 _./()-]*[A-Za-z0-9_./()-])?")
#: What a new file begins with.
BEGIN: Final = """\
# Action items of the drills in this folder; `drill actions list` shows them.
# Yours to edit: what, type, priority, owner, due, link and note. Drills add items and keep seen, status and closed:
# an item is done when the check under proof passes in a later run.
actions: []
"""


def read(reports: Path) -> tuple[Item, ...]:
    """Return all items, none where there is no file. Raises FileProblem, with the line."""
    path = reports / FILE
    return _items(path, yamlfile.text_of(path)) if _there(path) else ()


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return True  # and whoever reads it says why not


def _items(path: Path, text: str) -> tuple[Item, ...]:
    document = yamlfile.parse(path, text)
    items = validate(Book, document.data, document).actions or ()
    seen: set[str] = set()
    for i, item in enumerate(items):
        if item.id in seen:
            raise document.problem(("actions", i, "id"), f"'{item.id}' is there twice; give one of both another id")
        seen.add(item.id)
    return items


class Editor:
    """The file while it is changed: the items as they are, and what is to be written into them."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises FileProblem."""
        self._path = path
        self._text = yamlfile.text_of(path) if _there(path) else BEGIN
        self.items = {item.id: item for item in _items(path, self._text)}
        self._root = _loaded(self._text)
        self.changed = False

    def add(self, item: Json) -> None:
        """Add an item at the end; values as in the file, days as dates."""
        self.items[str(item["id"])] = Item.model_validate(_plain(item))
        listed = self._root.get("actions")
        if listed is None:
            listed = self._root["actions"] = CommentedSeq()
        listed.fa.set_block_style()
        listed.append(_node(item))
        self.changed = True

    def change(self, name: str, values: Mapping[str, Any]) -> None:
        """Write values into an item; one that is so already is left alone."""
        before = self.items[name].model_dump(mode="json")
        item = Item.model_validate(before | _plain(values))
        after = item.model_dump(mode="json")
        new = {key: value for key, value in values.items() if after[key] != before[key]}
        if not new:
            return
        self.items[name] = item
        entry = next(one for one in self._root["actions"] if str(one["id"]) == name)
        for key, value in new.items():
            entry[key] = _into(entry.get(key), value)
        self.changed = True

    def text(self) -> str:
        """Return the new content. Raises FileProblem for what could not be read again."""
        out = io.StringIO()
        _yaml().dump(self._root, out)
        text = out.getvalue()
        _items(self._path, text)
        return text


@contextmanager
def editing(reports: Path) -> Iterator[Editor]:
    """Hold the file, and write it at the end when something was changed. Raises FileProblem."""
    with _held(reports / LOCK):
        editor = Editor(reports / FILE)
        yield editor
        if editor.changed:
            files.write(reports / FILE, editor.text().encode())


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a lock that no other process has; it ends with ours. Raises FileProblem after some seconds without it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise FileProblem(path, f"cannot be made: {error.strerror or error}") from None
    try:
        _lock(fd, path)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise FileProblem(path, f"somebody else has held it for {LOCK_TIMEOUT_S:g} s; try again") from None
            time.sleep(LOCK_POLL_S)
        except OSError as error:
            raise FileProblem(path, f"cannot be locked: {error.strerror or error}") from None


# ---- YAML -------------------------------------------------------------------------------------------------


def _yaml() -> YAML:
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 1 << 20  # long lines stay lines
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _loaded(text: str) -> CommentedMap:
    """Return the nodes of a text that was found to be one of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root: CommentedMap = _yaml().load(text)
    return root


def _node(value: Any) -> Any:
    """Return plain data as nodes: items and their parts as lines, run ids and parameters in one line."""
    if isinstance(value, Mapping):
        node = CommentedMap((_node(str(key)), _node(one)) for key, one in value.items())
        if "id" not in value:
            node.fa.set_flow_style()
        return node
    if isinstance(value, list | tuple):
        listed = CommentedSeq([_node(one) for one in value])
        listed.fa.set_flow_style()
        return listed
    # Which other texts YAML would take for something else is hard to say: `?0` in braces is one.
    return DoubleQuotedScalarString(value) if isinstance(value, str) and not _PLAIN.fullmatch(value) else value


def _into(old: Any, value: Any) -> Any:
    """Return what to put in the place of a node: the same list where only items come in, for the comments in it."""
    if not isinstance(old, CommentedSeq) or not isinstance(value, list | tuple):
        return _node(value)
    kept = [one for one in old if one in value]
    if len(kept) != len(old) or kept != [one for one in value if one in kept]:
        return _node(value)
    for i, one in enumerate(value):
        if i >= len(old) or old[i] != one:
            old.insert(i, _node(one))
    return old


def _plain(value: Any) -> Any:
    """Return data with days as text, as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, date) else value
