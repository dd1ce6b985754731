"""Quantities as people write them: `30s`, `20/s`, `10%`, `512MiB`, `90C`, `1410MHz`. A bare number is refused.

Every parser returns a plain number (seconds, per second, share 0..1, bytes, degrees Celsius, MHz) and raises UnitError,
whose one-line text names the value and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from drills.errors import nearest

DURATION_UNITS: Mapping[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
RATE_UNITS: Mapping[str, float] = {"s": 1.0, "min": 60.0, "h": 3600.0}
SIZE_UNITS: Mapping[str, float] = {
    "B": 1,
    **{f"{p}B": 1000**n for n, p in enumerate("kMGT", 1)},
    **{f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)},
}

TEMPERATURE_UNITS: Mapping[str, float] = {"C": 1.0}

#: Below p1 a quantile is a word about single requests.
QUANTILE_MIN = 0.01
#: Bounds that no honest file reaches; a typing slip of three zeros does.
DURATION_MAX_S = 7 * 24 * 3600.0
RATE_MAX = 1e6
SIZE_MAX = 2**60
TEMPERATURE_MAX_C = 150.0

_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)"
_SHOWN_MAX = 60


class UnitError(ValueError):
    """A quantity that cannot be read; the text is one line."""


def shown(value: object) -> str:
    """Return a value for an error text: one line, cut at 60 characters."""
    text = "true" if value is True else "false" if value is False else repr(value)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def parse_duration(value: object, *, zero: bool = False) -> float:
    """Return seconds of `250ms`, `30s`, `5m`, `1h`; 0 only where `zero` allows it."""
    seconds = _parse(value, "duration", "30s", "", DURATION_UNITS)
    return _bounded(value, "duration", seconds, DURATION_MAX_S, "168h", zero=zero)


def parse_rate(value: object) -> float:
    """Return events per second of `20/s`, `600/min`, `100/h`; always above 0."""
    number, unit = _split(value, "rate", "20/s", "/", RATE_UNITS)
    return _bounded(value, "rate", number / RATE_UNITS[unit], RATE_MAX, "1000000/s", zero=False)


def parse_share(value: object) -> float:
    """Return the share 0..1 of `10%`; over 100% is refused."""
    percent = _parse(value, "percentage", "10%", "", {"%": 1.0})
    return _bounded(value, "percentage", percent, 100.0, "100%", zero=True) / 100.0


def parse_size(value: object) -> int:
    """Return whole bytes of `512B`, `4kB`, `64KiB`, `1GiB`."""
    size = _bounded(value, "size", _parse(value, "size", "64MiB", "", SIZE_UNITS), SIZE_MAX, "1EiB", zero=True)
    if size != int(size):
        raise UnitError(f"size {shown(value)} is not a whole number of bytes")
    return int(size)


def parse_quantile(value: object) -> float:
    """Return a quantile, a plain number strictly between 0 and 1 (no unit)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnitError(f"quantile {shown(value)} is not a number between 0 and 1; write 0.99 for p99")
    if QUANTILE_MIN <= value < 1:
        return float(value)
    if 0 < value < QUANTILE_MIN:
        raise UnitError(f"quantile {shown(value)} is below {QUANTILE_MIN:g}; write 0.99 for p99")
    hint = f"; did you mean {value / 100:g}?" if 1 < value < 100 else "; write 0.99 for p99"
    raise UnitError(f"quantile {shown(value)} is not between 0 and 1{hint}")


def parse_temperature(value: object) -> float:
    """Return degrees Celsius of `90C`, above 0."""
    number = _parse(value, "temperature", "90C", "", TEMPERATURE_UNITS)
    return _bounded(value, "temperature", number, TEMPERATURE_MAX_C, "150C", zero=False)


def parse_clocks(value: object) -> tuple[int, ...]:
    """Return lowest and highest MHz of a clock lock, `1410MHz` or `210-1410MHz`; nothing of `none`."""
    if value == "none":
        return ()
    match = re.fullmatch(r"(?:([0-9]{2,5})\s*-\s*)?([0-9]{2,5})\s*MHz", value.strip() if isinstance(value, str) else "")
    if match is None:
        raise UnitError(f"{shown(value)} is no clock lock; write none, or for example 1410MHz or 210-1410MHz")
    low, high = int(match[1] or match[2]), int(match[2])
    if not 0 < low <= high:
        raise UnitError(f"clock lock {shown(value)} begins above its end, or at 0")
    return low, high


def format_duration(seconds: float) -> str:
    """Return seconds as people write them: `250ms`, `90s`."""
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


def format_rate(per_s: float) -> str:
    """Return a rate as people write it: `20/s`, or per minute or hour where that is a rounder number."""
    for unit, seconds in RATE_UNITS.items():
        if per_s * seconds >= 1:
            return f"{per_s * seconds:g}/{unit}"
    return f"{per_s:g}/s"


def format_share(share: float) -> str:
    """Return a share as a percentage: `10%`."""
    return f"{share * 100:g}%"


def _parse(value: object, what: str, example: str, joint: str, units: Mapping[str, float]) -> float:
    number, unit = _split(value, what, example, joint, units)
    return number * units[unit]


def _split(value: object, what: str, example: str, joint: str, units: Mapping[str, float]) -> tuple[float, str]:
    """Split number and unit; say precisely which of the two is wrong."""
    names = ", ".join(joint + unit for unit in units)
    if isinstance(value, int | float) and not isinstance(value, bool):
        unit = re.sub(r"^[0-9.]+", "", example)
        raise UnitError(f"{what} {shown(value)} has no unit; write for example {shown(value)}{unit} (units: {names})")
    if not isinstance(value, str):
        raise UnitError(f"{shown(value)} is not a {what}; write for example {example} (units: {names})")
    match = re.fullmatch(rf"(-?){_NUMBER}\s*{joint}\s*(\S*)", value.strip())
    if match is None or (joint and not match[3]):
        raise UnitError(f"{shown(value)} is not a {what}; write for example {example} (units: {names})")
    sign, number, unit = match.groups()
    if not unit:
        raise UnitError(f"{what} {shown(value)} has no unit; write for example {example} (units: {names})")
    if unit not in units:
        raise UnitError(f"{what} {shown(value)} has the unknown unit {shown(unit)}{nearest(unit, units)}")
    if sign:
        raise UnitError(f"{what} {shown(value)} is negative")
    return float(number), unit


def _bounded(value: object, what: str, number: float, most: float, most_shown: str, *, zero: bool) -> float:
    if number > most:
        raise UnitError(f"{what} {shown(value)} is over {most_shown}")
    if number == 0 and not zero:
        raise UnitError(f"{what} {shown(value)} must be above 0")
    return number
