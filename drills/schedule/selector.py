"""Label selectors as text, `app=vllm,tier in (a,b),!canary`, and as the fields of a manifest."""

from __future__ import annotations

import re

from drills.model import Json
from drills.units import shown

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9._-]*"
_EQUAL = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s+\(([^()]*)\)")
_THERE = re.compile(rf"(!?)\s*({_KEY})")


def fields(text: str) -> Json:
    """Return a selector as matchLabels and matchExpressions. Raises ValueError with one line."""
    labels: dict[str, str] = {}
    expressions: list[Json] = []
    for part in re.split(r",(?![^()]*\))", text):
        requirement = part.strip()
        if match := _EQUAL.fullmatch(requirement):
            key, operator, value = match.groups()
            if operator != "!=":
                labels[key] = value
            else:
                expressions.append({"key": key, "operator": "NotIn", "values": [value]})
        elif match := _SET.fullmatch(requirement):
            operator = "In" if match[2] == "in" else "NotIn"
            values = [value.strip() for value in match[3].split(",")]
            expressions.append({"key": match[1], "operator": operator, "values": values})
        elif match := _THERE.fullmatch(requirement):
            expressions.append({"key": match[2], "operator": "DoesNotExist" if match[1] else "Exists"})
        else:
            raise ValueError(f"{shown(text)} is not a label selector; write for example app=vllm")
    return ({"matchLabels": labels} if labels else {}) | ({"matchExpressions": expressions} if expressions else {})
