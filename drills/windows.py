"""When a target may be drilled: weekly windows and frozen dates. Pure.

Mon-Fri 10:00-16:00 Asia/Shanghai     Sat,Sun 22:00-04:00 UTC     2026-12-24..2027-01-02
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from drills.errors import nearest
from drills.units import shown

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class Window:
    """Days of the week and a time of day in a zone; an end before the start lies on the next day."""

    text: str
    days: frozenset[int]
    begin_min: int
    end_min: int
    zone: str

    def covers(self, now: datetime) -> bool:
        """Whether that moment (with a zone) is inside the window."""
        local = now.astimezone(zoneinfo.ZoneInfo(self.zone))
        minute = local.hour * 60 + local.minute
        if self.begin_min < self.end_min:
            return local.weekday() in self.days and self.begin_min <= minute < self.end_min
        begun_yesterday = (local.weekday() - 1) % 7 in self.days and minute < self.end_min
        return begun_yesterday or (local.weekday() in self.days and minute >= self.begin_min)


def parse_window(text: str) -> Window:
    """Read a window. Raises ValueError with one line."""
    match = re.fullmatch(r"(\S+)\s+(\S+)-(\S+)\s+(\S+)", text.strip())
    if match is None:
        raise ValueError(f"{shown(text)} is not a window; write for example 'Mon-Fri 10:00-16:00 Asia/Shanghai'")
    days, begin, end, zone = match.groups()
    if zone not in zoneinfo.available_timezones():
        raise ValueError(f"unknown time zone {shown(zone)}{nearest(zone, _likely_zones(zone))}")
    window = Window(text, _days(days), _minute(begin), _minute(end), zone)
    if window.begin_min == window.end_min:
        raise ValueError(f"the window {shown(text)} is empty: it ends when it begins")
    return window


@dataclass(frozen=True)
class Freeze:
    """Dates, both included, on which nothing is drilled (by UTC)."""

    text: str
    first: date
    last: date


def parse_freeze(text: str) -> Freeze:
    """Read `2026-12-24` or `2026-12-24..2027-01-02`. Raises ValueError with one line."""
    first, _, last = text.strip().partition("..")
    try:
        freeze = Freeze(text, date.fromisoformat(first), date.fromisoformat(last or first))
    except ValueError:
        raise ValueError(f"{shown(text)} is not a date; write 2026-12-24 or 2026-12-24..2027-01-02") from None
    if freeze.last < freeze.first:
        raise ValueError(f"{shown(text)} ends before it begins")
    return freeze


def refusal(now: datetime, windows: Sequence[str], freeze: Sequence[str]) -> str | None:
    """Return why that moment is not allowed, None when it is; without windows every hour is."""
    today = now.astimezone(UTC).date()
    for frozen in map(parse_freeze, freeze):
        if frozen.first <= today <= frozen.last:
            return f"{today} is frozen (limits.freeze: {frozen.text})"
    if windows and not any(parse_window(text).covers(now) for text in windows):
        return f"outside every window (limits.windows: {'; '.join(windows)})"
    return None


def _days(text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = _day(first), _day(last or first)
        days |= {day % 7 for day in range(begin, (end if end >= begin else end + 7) + 1)}
    return frozenset(days)


def _day(name: str) -> int:
    if name not in DAYS:
        raise ValueError(f"unknown day {shown(name)}{nearest(name, DAYS)}")
    return DAYS.index(name)


def _minute(text: str) -> int:
    match = re.fullmatch(r"([01]?[0-9]|2[0-4]):([0-5][0-9])", text)
    minute = int(match[1]) * 60 + int(match[2]) if match else -1
    if not 0 <= minute <= 24 * 60:
        raise ValueError(f"{shown(text)} is not a time of day; write for example 10:00")
    return minute


def _likely_zones(zone: str) -> list[str]:
    """Return the zones worth naming in an error: there are hundreds."""
    area = zone.split("/")[0]
    known = sorted(zoneinfo.available_timezones())
    return [name for name in known if name.split("/")[0] == area] or ["UTC", "Europe/Berlin", "Asia/Shanghai"]
