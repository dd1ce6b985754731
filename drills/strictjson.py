"""Reads JSON that somebody may have damaged: bounded, and without numbers that are none.

Python's own reader takes `NaN`, turns 1e999 into infinity, and gives up deep inside with an error that is no
ValueError. Here a number that is none becomes null, and everything else that is no JSON is a ValueError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from drills.lang import t

#: Deeper than this nothing of ours is.
DEPTH_MAX = 40
#: What fits 64 bits; more digits than these are no count and no time of ours.
INT_MAX = 2**63 - 1

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


def loads(text: bytes) -> Any:
    """Return the value; raises ValueError, in words of its own, for anything that is no JSON."""
    if text.count(b"[") + text.count(b"{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} deep")
    try:
        return json.loads(text, parse_constant=_none, parse_float=_float, parse_int=_int)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None


def _depth(text: bytes) -> int:
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(_TEXT.sub(b"", text)):
        depth += 1 if bracket.group() in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _none(_: str) -> None:
    return None


def _float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _int(text: str) -> int | None:
    value = int(text) if len(text) < 25 else INT_MAX + 1
    return value if abs(value) <= INT_MAX else None


# ---- shapes -------------------------------------------------------------------------------------------

#: A shape: a predicate; {"key": shape, "maybe?": shape}, where `?` allows absence and null; or [shape of each item].
Shape = Callable[[Any], bool] | Mapping[str, Any] | list[Any]


def is_number(value: Any) -> bool:
    """Whether it is a finite number (true and false are none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    """Whether it is text."""
    return isinstance(value, str)


def is_bool(value: Any) -> bool:
    """Whether it is true or false."""
    return isinstance(value, bool)


def is_object(value: Any) -> bool:
    """Whether it is an object."""
    return isinstance(value, dict)


def is_list(value: Any) -> bool:
    """Whether it is a list."""
    return isinstance(value, list)


def misfit(value: Any, shape: Shape, where: str = "") -> str:
    """Say where a value is not of the shape; empty when it is."""
    if callable(shape):
        return "" if shape(value) else t("{what} is not what it should be", what=where or t("it"))
    if isinstance(shape, list):
        if not isinstance(value, list):
            return t("{what} is no list", what=where or t("it"))
        found = (misfit(item, shape[0], f"{where}[{i}]") for i, item in enumerate(value))
        return next((said for said in found if said), "")
    if not isinstance(value, dict):
        return t("{what} is no object", what=where or t("it"))
    for key, inner in shape.items():
        name, optional = key.removesuffix("?"), key.endswith("?")
        path = f"{where}.{name}" if where else name
        if value.get(name) is None:
            if optional:
                continue
            return t("{what} is missing", what=path)
        if said := misfit(value[name], inner, path):
            return said
    return ""
