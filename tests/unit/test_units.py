"""Quantities carry their unit, and what cannot be read says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills import units
from drills.units import UnitError

Parse = Callable[[object], float]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_duration, "250ms", 0.25),
        (units.parse_duration, "30s", 30.0),
        (units.parse_duration, "1.5s", 1.5),
        (units.parse_duration, "5m", 300.0),
        (units.parse_duration, "1h", 3600.0),
        (units.parse_duration, " 5 s ", 5.0),
        (units.parse_rate, "20/s", 20.0),
        (units.parse_rate, "600/min", 10.0),
        (units.parse_rate, "36/h", 0.01),
        (units.parse_share, "10%", 0.1),
        (units.parse_share, "0%", 0.0),
        (units.parse_share, "100%", 1.0),
        (units.parse_share, "0.5%", 0.005),
        (units.parse_size, "512B", 512),
        (units.parse_size, "1.5kB", 1500),
        (units.parse_size, "64KiB", 65536),
        (units.parse_size, "1GiB", 2**30),
        (units.parse_quantile, 0.99, 0.99),
        (units.parse_temperature, "90C", 90.0),
        (units.parse_temperature, "87.5 C", 87.5),
    ],
)
def test_reads(parse: Parse, text: object, value: float) -> None:
    assert parse(text) == pytest.approx(value)


DURATIONS, RATES = "(units: ms, s, m, h)", "(units: /s, /min, /h)"


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (units.parse_duration, 30, f"duration 30 has no unit; write for example 30s {DURATIONS}"),
        (units.parse_duration, 1.5, f"duration 1.5 has no unit; write for example 1.5s {DURATIONS}"),
        (units.parse_duration, "30", f"duration '30' has no unit; write for example 30s {DURATIONS}"),
        (units.parse_duration, "30sec", "duration '30sec' has the unknown unit 'sec'; did you mean 's'?"),
        (units.parse_duration, "-5s", "duration '-5s' is negative"),
        (units.parse_duration, "0s", "duration '0s' must be above 0"),
        (units.parse_duration, "400h", "duration '400h' is over 168h"),
        (units.parse_duration, "soon", f"'soon' is not a duration; write for example 30s {DURATIONS}"),
        (units.parse_duration, True, f"true is not a duration; write for example 30s {DURATIONS}"),
        (units.parse_duration, None, f"None is not a duration; write for example 30s {DURATIONS}"),
        (units.parse_rate, 20, f"rate 20 has no unit; write for example 20/s {RATES}"),
        (units.parse_rate, "20", f"'20' is not a rate; write for example 20/s {RATES}"),
        (units.parse_rate, "-20/s", "rate '-20/s' is negative"),
        (units.parse_rate, "0/s", "rate '0/s' must be above 0"),
        (units.parse_rate, "20/minute", "rate '20/minute' has the unknown unit 'minute'; did you mean 'min'?"),
        (units.parse_share, "150%", "percentage '150%' is over 100%"),
        (units.parse_share, 0.1, "percentage 0.1 has no unit; write for example 0.1% (units: %)"),
        (units.parse_share, "-1%", "percentage '-1%' is negative"),
        (units.parse_size, "0.5B", "size '0.5B' is not a whole number of bytes"),
        (units.parse_size, 64, "size 64 has no unit; write for example 64MiB (units: B, kB, "),
        (units.parse_quantile, 1, "quantile 1 is not between 0 and 1; write 0.99 for p99"),
        (units.parse_quantile, 0, "quantile 0 is not between 0 and 1; write 0.99 for p99"),
        (units.parse_quantile, 99, "quantile 99 is not between 0 and 1; did you mean 0.99?"),
        (units.parse_quantile, float("nan"), "quantile nan is not between 0 and 1"),
        (units.parse_quantile, "0.99", "quantile '0.99' is not a number between 0 and 1"),
        (units.parse_quantile, True, "quantile true is not a number between 0 and 1"),
    ],
)
def test_refuses(parse: Parse, value: object, message: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(value)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("seconds", "text"), [(0.25, "250ms"), (90.0, "90s"), (0.0, "0s"), (1.5, "1.5s")])
def test_formats_durations(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@given(st.integers(min_value=1, max_value=600_000))
def test_a_duration_survives_being_written_and_read(ms: int) -> None:
    # format_duration shows six digits, like every figure in a report
    assert units.parse_duration(units.format_duration(ms / 1000)) == pytest.approx(ms / 1000, rel=1e-5)


@given(st.floats(min_value=0.01, max_value=1000))
def test_a_rate_survives_being_written_and_read(rate: float) -> None:
    assert units.parse_rate(units.format_rate(rate)) == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("parse", [units.parse_duration, units.parse_rate, units.parse_share, units.parse_size])
@given(value=st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers())))
def test_anything_is_a_number_or_one_line_of_refusal(parse: Parse, value: object) -> None:
    try:
        number = parse(value)
    except UnitError as exc:
        text = str(exc)
        assert text.isprintable()
        assert len(text) < 300
    else:
        assert 0 <= number < float("inf")
