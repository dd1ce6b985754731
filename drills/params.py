"""Types for the parameters of experiments, targets, faults, checks and guards.

In a file every quantity carries its unit (`within: 5s`); in a resolved plan it is a plain number
(`within: 5.0`). The same models read both: files are read with `context=FROM_FILE`, which refuses
bare numbers; without that context numbers are taken as already resolved.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema

from drills import units

#: Validation context of everything that people write.
FROM_FILE: Final = {"from_file": True}


class Params(BaseModel):
    """Base of every parameter model: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def from_file(info: ValidationInfo) -> bool:
    """Whether the value comes from a file that people write, so that units are due."""
    return bool(info.context and info.context.get("from_file"))


def _quantity(parse: Callable[[object], float]) -> BeforeValidator:
    def read(value: Any, info: ValidationInfo) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not from_file(info):
            return value
        return parse(value)

    return BeforeValidator(read)


def _text(pattern: str, example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]}, mode="validation")


_DURATION_TEXT = _text(r"^[0-9]+(\.[0-9]+)? *(ms|s|m|h)$", "30s")
_SHARE_PATTERN = r"^[0-9]+(\.[0-9]+)? *%$"

#: `250ms 30s 5m 1h` → seconds, above 0.
Duration = Annotated[
    float, _quantity(units.parse_duration), Field(gt=0, le=units.DURATION_MAX_S, allow_inf_nan=False), _DURATION_TEXT
]
#: As Duration, and 0 is allowed.
DurationOrZero = Annotated[
    float,
    _quantity(lambda value: units.parse_duration(value, zero=True)),
    Field(ge=0, le=units.DURATION_MAX_S, allow_inf_nan=False),
    _DURATION_TEXT,
]
#: `20/s 600/min` → per second, above 0.
Rate = Annotated[
    float,
    _quantity(units.parse_rate),
    Field(gt=0, le=units.RATE_MAX, allow_inf_nan=False),
    _text(r"^[0-9]+(\.[0-9]+)? */ *(s|min|h)$", "20/s"),
]
#: `10%` → share, 0..1.
Share = Annotated[
    float, _quantity(units.parse_share), Field(ge=0, le=1, allow_inf_nan=False), _text(_SHARE_PATTERN, "10%")
]
#: `64MiB` → bytes.
Size = Annotated[
    int, _quantity(units.parse_size), Field(ge=0, le=units.SIZE_MAX), _text(r"^[0-9]+(\.[0-9]+)? *[kKMGT]?i?B$", "1MiB")
]
#: `90C` → degrees Celsius, above 0.
Temperature = Annotated[
    float,
    _quantity(units.parse_temperature),
    Field(gt=0, le=units.TEMPERATURE_MAX_C, allow_inf_nan=False),
    _text(r"^[0-9]+(\.[0-9]+)? *C$", "90C"),
]
#: `none`, `1410MHz`, `210-1410MHz` → a clock lock as () or (lowest, highest) MHz.
Clocks = Annotated[
    tuple[int, ...], BeforeValidator(units.parse_clocks), _text(r"^none$|^([0-9]+ *- *)?[0-9]+ *MHz$", "1410MHz")
]
#: A plain number from 0.01 to below 1.
Quantile = Annotated[
    float,
    BeforeValidator(units.parse_quantile),
    WithJsonSchema({"type": "number", "minimum": units.QUANTILE_MIN, "exclusiveMaximum": 1}, mode="validation"),
]


def _word_or_duration(word: str, meaning: str) -> BeforeValidator:
    def read(value: Any, info: ValidationInfo) -> Any:
        if value == word:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and not from_file(info):
            return float(value)
        try:
            return units.parse_duration(value)
        except units.UnitError as exc:
            raise ValueError(f"{exc}; or write {word} for {meaning}") from None

    return BeforeValidator(read)


#: A bound in seconds, or the word `sla` for the target's own.
DurationOrSla = Annotated[
    float | Literal["sla"],
    _word_or_duration("sla", "the target's own bound"),
    _text(r"^(sla|[0-9]+(\.[0-9]+)? *(ms|s|m|h))$", "sla"),
]
#: Seconds, or the word `auto`.
DurationOrAuto = Annotated[
    float | Literal["auto"],
    _word_or_duration("auto", "as long as the checks need"),
    _text(r"^(auto|[0-9]+(\.[0-9]+)? *(ms|s|m|h))$", "auto"),
]

#: Seconds, or the word `auto` for what the target's own monitoring needs.
DurationOrAlert = Annotated[
    float | Literal["auto"],
    _word_or_duration("auto", "as long as alerts take at the target"),
    _text(r"^(auto|[0-9]+(\.[0-9]+)? *(ms|s|m|h))$", "auto"),
]


def _slug(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
        raise ValueError(f"{units.shown(value)} is not a name: small letters, digits and -, at most 63")
    return value


def _one_line(value: Any) -> Any:
    if isinstance(value, str) and not (value.strip() and value.isprintable()):
        raise ValueError("one line of text is expected" if value.strip() else "the text is empty")
    return value


#: A name that is safe in paths, labels and file names.
Slug = Annotated[str, BeforeValidator(_slug)]
#: One printable line, not empty.
Line = Annotated[str, BeforeValidator(_one_line)]
