"""When a schedule starts: a cron expression of five fields, in a time zone. Pure.

    0 10 1 * *       at 10:00 on the first of each month
    30 9 * * Tue     each Tuesday at 09:30
As in every cron: when both days are restricted, the day of the month and that of the week, either of them will do.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from drills.errors import nearest
from drills.units import shown

MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DAYS: Final = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
#: Name, first and last value, and the words for them, of each field.
FIELDS: Final = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, MONTHS),
    ("day of the week", 0, 7, DAYS),
)
LOOK_AHEAD: Final = timedelta(days=366 * 8)  # 29 February


@dataclass(frozen=True)
class Cron:
    """A schedule; `days` are those of the month, `weekdays` count from Sunday. None: every one."""

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...] | None
    months: tuple[int, ...] | None
    weekdays: tuple[int, ...] | None

    def on(self, day: date) -> bool:
        """Whether it starts on that day."""
        if self.months is not None and day.month not in self.months:
            return False
        by_date = self.days is not None and day.day in self.days
        by_week = self.weekdays is not None and day.isoweekday() % 7 in self.weekdays
        if self.days is None or self.weekdays is None:
            return (self.days is None or by_date) and (self.weekdays is None or by_week)
        return by_date or by_week

    def starts(self, after: datetime, zone: str) -> Iterator[datetime]:
        """Yield the starts after a moment; those within some years, so that it ends for 31 February, too."""
        local = zoneinfo.ZoneInfo(zone)
        day = after.astimezone(local).date()
        last = day + LOOK_AHEAD
        while day <= last:
            for hour in self.hours if self.on(day) else ():
                for minute in self.minutes:
                    start = datetime.combine(day, time(hour, minute), local)
                    if start > after:
                        yield start
            day += timedelta(days=1)

    def calendar(self, zone: str) -> list[str]:
        """Return the same as OnCalendar= of systemd, which wants all of a line to be true: two lines for either day."""
        clock = f"{_listed(self.hours, 2)}:{_listed(self.minutes, 2)}:00 {zone}"
        month = "*" if self.months is None else _listed(self.months, 2)
        week = "" if self.weekdays is None else ",".join(DAYS[day] for day in self.weekdays) + " "
        by_date = "" if self.days is None else f"*-{month}-{_listed(self.days, 2)} {clock}"
        if by_date and week:
            return [by_date, f"{week}*-{month}-* {clock}"]
        return [by_date or f"{week}*-{month}-* {clock}"]


def parse(text: str) -> Cron:
    """Read a cron expression. Raises ValueError with one line."""
    parts = text.split()
    if len(parts) != len(FIELDS):
        raise ValueError(f"{shown(text)} is not a schedule of five fields; write for example '0 10 1 * *'")
    minutes, hours, days, months, weekdays = (_field(part, *of) for part, of in zip(parts, FIELDS, strict=True))
    if weekdays is not None:
        weekdays = tuple(sorted({day % 7 for day in weekdays}))  # 7 is Sunday, too
    cron = Cron(" ".join(parts), minutes or tuple(range(60)), hours or tuple(range(24)), days, months, weekdays)
    if next(cron.starts(datetime.now(UTC), "UTC"), None) is None:
        raise ValueError(f"the schedule {shown(text)} never starts: no month has such a day")
    return cron


def check_zone(zone: str) -> str:
    """Return a time zone that there is. Raises ValueError with one line."""
    known = zoneinfo.available_timezones()
    if zone not in known:
        raise ValueError(f"unknown time zone {shown(zone)}{nearest(zone, known)}")
    return zone


def _field(text: str, name: str, first: int, last: int, words: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the values of a field, None for all of them."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\*|([A-Za-z0-9]+)(?:-([A-Za-z0-9]+))?)(?:/([0-9]{1,4}))?", part)
        if match is None:
            raise ValueError(f"the {name} {shown(text)} is not one; write *, 5, 1-5, 1,15 or */15")
        every, begin, end, step = match.groups()
        if every == "*":
            if step is None:
                return None
            low, high = first, min(last, 6) if words is DAYS else last
        else:
            low = _value(begin, name, first, last, words)
            high = _value(end, name, first, last, words) if end else last if step else low
        if low > high or step == "0":
            raise ValueError(f"the {name} {shown(part)} is empty: it ends before it begins, or steps by nothing")
        found |= set(range(low, high + 1, int(step or 1)))
    return tuple(sorted(found))


def _value(text: str, name: str, first: int, last: int, words: tuple[str, ...]) -> int:
    if text.isdecimal():
        if not first <= int(text) <= last:
            raise ValueError(f"the {name} {shown(text)} is not from {first} to {last}")
        return int(text)
    if text.capitalize() in words:
        return words.index(text.capitalize()) + first
    raise ValueError(f"unknown {name} {shown(text)}{nearest(text, words)}")


def _listed(values: tuple[int, ...], width: int) -> str:
    return ",".join(f"{value:0{width}}" for value in values)
