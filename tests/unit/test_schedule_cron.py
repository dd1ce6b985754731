"""When a schedule starts, in its zone, as cron has it and as systemd has it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drills.schedule import cron, selector

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def starts(text: str, zone: str = "UTC", count: int = 3) -> list[str]:
    return [f"{one:%a %Y-%m-%d %H:%M}" for one in islice(cron.parse(text).starts(NOW, zone), count)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 10 1 * *", ["Tue 2026-12-01 10:00", "Fri 2027-01-01 10:00", "Mon 2027-02-01 10:00"]),
        ("30 9 * * Tue", ["Tue 2026-12-01 09:30", "Tue 2026-12-08 09:30", "Tue 2026-12-15 09:30"]),
        ("0 0 29 2 *", ["Tue 2028-02-29 00:00", "Sun 2032-02-29 00:00"]),
        ("*/30 12 * * *", ["Mon 2026-11-30 12:30", "Tue 2026-12-01 12:00", "Tue 2026-12-01 12:30"]),
        ("0 6 1 1-12/6 *", ["Fri 2027-01-01 06:00", "Thu 2027-07-01 06:00", "Sat 2028-01-01 06:00"]),
        ("0 6 3 12 7", ["Thu 2026-12-03 06:00", "Sun 2026-12-06 06:00", "Sun 2026-12-13 06:00"]),  # either day will do
        ("5 4 * dec mon-tue", ["Tue 2026-12-01 04:05", "Mon 2026-12-07 04:05", "Tue 2026-12-08 04:05"]),
    ],
)
def test_it_starts_when_cron_says(text: str, expected: list[str]) -> None:
    assert starts(text, count=len(expected)) == expected


def test_the_time_is_that_of_its_zone() -> None:
    first = next(cron.parse("0 10 1 * *").starts(NOW, "Asia/Shanghai"))
    assert first.astimezone(UTC) == datetime(2026, 12, 1, 2, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "five fields"),
        ("@monthly", "five fields"),
        ("0 10 1 * * *", "five fields"),
        ("60 10 1 * *", "the minute '60' is not from 0 to 59"),
        ("0 10 0 * *", "the day of the month '0' is not from 1 to 31"),
        ("0 10 1 Fob *", "did you mean 'Feb'"),
        ("0 10 1 * Tux", "did you mean 'Tue'"),
        ("0 10 5-2 * *", "ends before it begins"),
        ("*/0 10 1 * *", "steps by nothing"),
        ("0 10 1,, * *", "is not one"),
        ("0 10 30 2 *", "never starts"),
    ],
)
def test_what_is_no_schedule_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        cron.parse(text)
    assert str(caught.value).isprintable()


@given(text=st.text(alphabet="0123456789*/-, aMonTue\x00", max_size=20))
def test_whatever_it_is_nothing_else_is_raised(text: str) -> None:
    with contextlib.suppress(ValueError):
        cron.parse(text)


FIELDS = st.tuples(
    st.sampled_from(["0", "*/20", "5,35"]),
    st.sampled_from(["0", "9-11", "23"]),
    st.sampled_from(["*", "1", "1-7", "29"]),
    st.sampled_from(["*", "3", "2-4", "*/6"]),
    st.sampled_from(["*", "Tue", "1-5", "7", "0,6"]),
)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, which comes with systemd")
@settings(max_examples=20, deadline=None)
@given(fields=FIELDS)
def test_systemd_starts_at_the_same_times(fields: tuple[str, ...]) -> None:
    schedule = cron.parse(" ".join(fields))
    lines = schedule.calendar("Asia/Tokyo")  # a zone whose clocks are never changed
    command = ["systemd-analyze", "calendar", f"--base-time={NOW:%Y-%m-%d %H:%M:%S} UTC", "--iterations=4", *lines]
    env = {**os.environ, "TZ": "UTC"}
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=True).stdout
    seen = set(re.findall(r"(?:Next elapse|Iter\. #\d+): \w+ ([0-9 :-]+) UTC", said))
    times = sorted(datetime.strptime(one, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) for one in seen)
    ours = [one.astimezone(UTC) for one in islice(schedule.starts(NOW, "Asia/Tokyo"), 4)]
    assert times[:4] == ours


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("app=vllm", {"matchLabels": {"app": "vllm"}}),
        ("app==vllm, a.b/tier!=x", {"matchLabels": {"app": "vllm"},
                                    "matchExpressions": [{"key": "a.b/tier", "operator": "NotIn", "values": ["x"]}]}),
        ("a in (b, c),d notin (e)", {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]},
                                                          {"key": "d", "operator": "NotIn", "values": ["e"]}]}),
        ("gpu,!canary", {"matchExpressions": [{"key": "gpu", "operator": "Exists"},
                                              {"key": "canary", "operator": "DoesNotExist"}]}),
    ],
)  # fmt: skip
def test_a_selector_is_the_same_as_fields(text: str, expected: object) -> None:
    assert selector.fields(text) == expected


@pytest.mark.parametrize("text", ["", "app in (", "a b", "=x", "a=b=c"])
def test_what_is_no_selector_is_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is not a label selector"):
        selector.fields(text)
