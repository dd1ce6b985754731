"""Plain data from a file → a pydantic model, or the one FileProblem that helps most.

The text names file, line and key path, what is wrong with which value, and the nearest valid name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from drills.errors import nearest
from drills.params import FROM_FILE
from drills.units import shown
from drills.yamlfile import Document, Key, kind_of

ModelT = TypeVar("ModelT", bound=BaseModel)

_EXPECTED: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "dataclass_type": "a map",
}
_MAPS = frozenset({"dict_type", "model_type", "model_attributes_type", "dataclass_type"})

#: Errors of this type never show the value: it may be a secret.
SECRET = "secret"  # noqa: S105 - the name of an error type


def validate(model: type[ModelT], data: object, document: Document, key: Key = ()) -> ModelT:
    """Return the model of what a file holds at `key`. Raises FileProblem.

    Read as JSON and strictly, so that "1" is no number and true is no 1, while lists may become tuples.
    """
    try:
        return model.model_validate_json(json.dumps(data), strict=True, context=FROM_FILE)
    except ValidationError as exc:
        raise _problem(exc, model, data, document, key) from None


def named(document: Document, key: Key, what: str, table: Mapping[str, object]) -> tuple[str, Any, Key]:
    """Read a list item that is `name`, or a map of one `name: parameters`; return name, parameters, key."""
    item = value_at(document.data, key)
    if isinstance(item, str):
        item, inner = {item: None}, key
    elif isinstance(item, dict) and len(item) == 1:
        inner = (*key, next(iter(item)))
    else:
        found = f"a map of {len(item)} keys" if isinstance(item, dict) else kind_of(item)
        raise document.problem(key, f"one `{what}: {{parameters}}` is expected, found {found}")
    name, params = next(iter(item.items()))
    if name not in table:
        raise document.problem(key, f"unknown {what} {shown(name)}{nearest(name, table)}")
    return name, {} if params is None else params, inner


def value_at(data: Any, key: Key) -> Any:
    """Return what is at a key path that exists."""
    for part in key:
        data = data[part]
    return data


def _problem(exc: ValidationError, model: type[BaseModel], data: object, document: Document, key: Key) -> Exception:
    """Choose the error that explains most: what is missing is said last, for a misspelt key is its cause."""
    errors = exc.errors(include_url=False)
    ranked = sorted((_rank(error, data, document, key), i) for i, error in enumerate(errors))
    error = errors[ranked[0][1]]
    where, value = _locate(data, error["loc"])
    if error["type"] == "missing":
        names = [f"'{e['loc'][-1]}'" for e in errors if e["type"] == "missing" and _locate(data, e["loc"])[0] == where]
        text = f"the key {names[0]} is missing" if len(names) == 1 else f"the keys {', '.join(names)} are missing"
        return document.problem((*key, *where), text if value else f"is empty; {text}")
    return document.problem((*key, *where), _text(error, model, where, value))


def _rank(error: ErrorDetails, data: object, document: Document, key: Key) -> tuple[int, int, int, int]:
    where, _ = _locate(data, error["loc"])
    missing = error["type"] == "missing"
    # A union offers an error for each of its members: the deepest one, and our own words, tell most.
    vague = 0 if error["type"] in (SECRET, "value_error", "extra_forbidden") else 1 + (error["type"] in _EXPECTED)
    return (int(missing), document.line((*key, *where)), -len(where), vague)


def _locate(data: Any, loc: tuple[int | str, ...]) -> tuple[Key, Any]:
    """Return the part of pydantic's location that is in the file (it adds union members), and the value there."""
    where: list[str | int] = []
    for part in loc:
        in_map = isinstance(data, dict) and isinstance(part, str) and part in data
        in_list = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if in_map or in_list:
            data = data[part]
            where.append(part)
    return tuple(where), data


def _text(error: ErrorDetails, model: type[BaseModel], where: Key, value: Any) -> str:
    kind = error["type"]
    context = error.get("ctx") or {}
    if kind == SECRET:
        return error["msg"]
    if kind == "extra_forbidden":
        return f"unknown key {shown(where[-1])}{nearest(str(where[-1]), _valid_keys(model, where[:-1]))}"
    if kind == "value_error":
        return _with_value(str(context.get("error", error["msg"])), value)
    if kind == "literal_error":
        expected = str(context.get("expected", ""))
        valid = re.findall(r"'([^']*)'", expected) or [expected]
        return f"unknown value {shown(value)}{nearest(str(value), valid)}"
    if kind == "too_short":
        return "is empty; at least one is needed"
    if kind in ("too_long", "string_too_long"):
        most = context["max_length"]
        return f"the text is longer than {most} characters" if isinstance(value, str) else f"at most {most} may be"
    if kind in _EXPECTED:
        # Where a map belongs, text may be an address with a password: say only what kind of thing it is.
        found = kind_of(value) if kind in _MAPS or isinstance(value, dict | list) else _found(value)
        return f"{_EXPECTED[kind]} is expected, found {found}"
    return _with_value(_plain_words(error["msg"]), value)


def _found(value: Any) -> str:
    return "nothing" if value is None else f"{kind_of(value)} {shown(value)}"


def _plain_words(message: str) -> str:
    message = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return message[:1].lower() + message[1:]


def _with_value(text: str, value: Any) -> str:
    """Add the value where the text does not show it yet; maps and lists stay out, their line is named."""
    if isinstance(value, dict | list) or str(value) in text:
        return text
    return f"{text}; found {_found(value)}"


def _valid_keys(model: type[BaseModel], where: Key) -> set[str]:
    """Return the keys that are valid in the model at that place."""
    models = [model]
    for part in where:
        if isinstance(part, int):
            continue
        fields = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [found for annotation in fields for found in _models_in(annotation)] or models
    return {info.alias or name for m in models for name, info in m.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Find the models in an annotation such as `tuple[Host, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
