"""Numbers as people read them: rounded, with their unit. No value is "no data", never zero."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import Final

from drills.lang import ENGLISH, mark, spoken, t

NO_DATA: Final = mark("no data")
NEVER: Final = mark("∞ (no answer)")


def seconds(value: float | None) -> str:
    """Return a duration of `value` seconds with three figures that count."""
    if value is None or math.isnan(value):
        return t(NO_DATA)
    if math.isinf(value):
        return t(NEVER)
    if value == 0:
        return "0 s"
    size = abs(value)
    if size < 0.0005:
        return "< 1 ms"
    if size < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if size < 10 else f"{value:.1f} s" if size < 100 else f"{value:.0f} s"


def offset(value: float | None) -> str:
    """Return seconds from the injection with their sign."""
    return t(NO_DATA) if value is None else f"{value:+.2f} s"


def share(value: float | None) -> str:
    """Return a share of 1 as a percentage."""
    if value is None or math.isnan(value):
        return t(NO_DATA)
    percent = value * 100
    if percent in (0, 100):
        return f"{percent:.0f} %"
    # 99.97 % must not read as 100 %, nor 0.03 % as 0 %.
    return f"{percent:.2f} %" if percent < 1 or percent > 99 else f"{percent:.1f} %"


def ratio(value: float | None) -> str:
    """Return a ratio such as attempts per arrival."""
    return t(NO_DATA) if value is None or math.isnan(value) else f"{value:.3f}"


def quantity(value: object, unit: str) -> str:
    """Return a check's value or bound in its unit (s, ratio, count or none)."""
    if value is None:
        return t(NO_DATA)
    if value == "inf":  # JSON has no infinity
        return t(NEVER)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value} s" if unit == "s" and str(value).startswith(">") else str(value)
    if unit == "s":
        return seconds(float(value))
    if unit == "ratio":
        return ratio(float(value)) if abs(value) > 1 else share(float(value))
    if math.isinf(value):
        return "∞"
    return f"{value:g}" if float(value).is_integer() else f"{value:.3g}"


def between(low: float | None, high: float | None, unit: str) -> str:
    """Return an interval; an open end is said in words."""
    if low is None and high is None:
        return t(NO_DATA)
    if low is not None and math.isinf(low):
        return t(NEVER)
    if low is None:
        return t("at most {bound}", bound=quantity(high, unit))
    if high is None or math.isinf(high):
        return t("at least {bound}", bound=quantity(low, unit))
    return t("{low} to {high}", low=quantity(low, unit), high=quantity(high, unit))


def clock(wall: float | None, zone: tzinfo = UTC) -> str:
    """Return wall time (epoch seconds) as hh:mm:ss with milliseconds, in UTC or in another zone."""
    return t(NO_DATA) if wall is None else datetime.fromtimestamp(wall, zone).strftime("%H:%M:%S.%f")[:-3]


def epoch(time: str) -> float:
    """Return epoch seconds of the journal's ISO 8601 UTC time."""
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: 1 request, 2 requests. Another language has one form, told by the singular."""
    if spoken() == ENGLISH:
        return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
    return t("{number} {noun}", number=f"{number:,}", noun=t(noun))


def listed(items: list[str]) -> str:
    """Return items as a list in a sentence."""
    if len(items) <= 1:
        return "".join(items)
    return t("{items} and {last}", items=t(", ").join(items[:-1]), last=items[-1])


def clauses(items: Iterable[str]) -> str:
    """Return clauses one after the other, parted more than the items of a list are."""
    return t("; ").join(items)


def one_clause(items: Iterable[str]) -> str:
    """Return what belongs together and is no list of its kind, in one clause."""
    told, *more = items
    for item in more:
        told = t("{told}, {more}", told=told, more=item)
    return told


def in_brackets(text: str) -> str:
    """Return a remark that stands behind a word; nothing for none."""
    return t(" ({remark})", remark=text) if text else ""


def anchor(heading: str) -> str:
    """Return where a heading of the same page is linked to, as GitHub and GitLab make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
