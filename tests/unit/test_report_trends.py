"""Trends: between comparable runs only, beyond chance only, each run for itself; and their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest

from drills.comparable import Change
from drills.report import figures, trend_figures, trends
from drills.report.digest import Digest
from drills.report.trend_figures import Standing, burn_down, plain
from drills.report.trends import compare, series, value
from tests.unit.digests import availability, digest, row, ttft


def month(number: int, *rows: Any, **more: Any) -> Digest:
    return digest(number, f"2026{number:02}01T020000Z", *rows, **more)


GOOD, BAD = ttft(0.11, 0.09, 0.15), ttft(0.31, 0.25, 0.4)
FINE, POOR = availability(0.999, 0.995, 1.0), availability(0.95, 0.93, 0.965, "fail")


# ---- against the last comparable run ---------------------------------------------------------------------


def test_worse_and_better_take_intervals_that_do_not_overlap() -> None:
    worse = compare(month(2, BAD, FINE), [month(1, GOOD, FINE)])
    assert (worse.trend, worse.within, [one.change for one in worse.moved]) == (Change.WORSE, 1, [Change.WORSE])
    assert compare(month(2, GOOD, FINE), [month(1, BAD, FINE)]).trend is Change.BETTER
    assert compare(month(2, ttft(0.14, 0.12, 0.2)), [month(1, GOOD)]).trend is Change.CHANCE


def test_worse_outweighs_better() -> None:
    assert compare(month(2, BAD, FINE), [month(1, GOOD, POOR)]).trend is Change.WORSE


def test_without_an_interval_nothing_is_claimed() -> None:
    found = compare(month(2, row("failover", value=9.0)), [month(1, row("failover", value=1.0))])
    assert (found.trend, found.moved) == (None, ())
    assert found.before is not None


def test_the_last_comparable_run_is_the_one_that_counts() -> None:
    runs = [month(1, GOOD), month(2, BAD), month(3, GOOD, rate=30.0), month(4, GOOD, verdict="inconclusive"),
            month(5, GOOD, status="stopped"), month(6, GOOD, defect="a-thing"), month(7, GOOD, drill="gpu-reset"),
            month(8, GOOD, target="staging")]  # fmt: skip
    found = compare(month(9, GOOD), [*runs, month(9, GOOD), month(10, GOOD)])
    assert found.before is runs[1]
    assert found.trend is Change.BETTER


def test_a_run_of_another_plan_alone_is_no_measure_and_the_difference_is_told() -> None:
    found = compare(month(2, GOOD, rate=30.0), [month(1, GOOD)])
    assert (found.before, found.trend) == (None, None)
    assert found.other is not None
    assert found.why == ("load.arrivals.rate: 20.0, 30.0",)


def test_what_was_not_judged_is_compared_with_nothing() -> None:
    assert compare(month(2, GOOD, verdict="inconclusive"), [month(1, GOOD)]).before is None
    assert compare(month(2, GOOD, status="crashed"), [month(1, GOOD)]).before is None


# ---- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ttft(0.113, 0.095, 0.148), "113 ms (95 ms to 148 ms)"),
        (ttft("inf", None, None, "fail"), "∞ (no answer)"),
        (ttft(None, None, None, "inconclusive"), "no data"),
    ],
)
def test_a_value_is_told_with_its_interval(said: Any, told: str) -> None:
    found = value(month(1, said), trends.TTFT)
    assert found is not None
    assert found.told == told


def test_what_was_never_reached_is_no_number() -> None:
    found = value(month(1, row("recovery", "fail", "> 79.4", 40.0)), trends.RECOVERY)
    assert found is not None
    assert (found.told, found.endless) == ("> 79.4 s", True)


@pytest.mark.parametrize("said", ["soon", "> x", ">", "> ٣", True, [], {}, float("nan")])
def test_what_is_no_value_is_none(said: Any) -> None:
    found = value(month(1, row("recovery", "fail", said, 40.0)), trends.RECOVERY)
    assert found is not None
    assert (found.value, found.endless) == (None, False)


def test_another_row_of_the_same_check_is_another_figure() -> None:
    other = row("latency", value=3.0, params={"metric": "e2e", "quantile": 0.99, "cohort": "fault"})
    run = month(1, other, ttft(0.1, 0.09, 0.2))
    found = value(run, trends.TTFT)
    assert found is not None
    assert found.value == 0.1
    assert value(month(1, other), trends.TTFT) is None


def test_a_pass_in_a_run_that_is_not_to_be_trusted_is_none() -> None:
    found = value(month(1, GOOD, verdict="inconclusive"), trends.TTFT)
    assert found is not None
    assert found.verdict == "inconclusive"


def test_series_know_which_runs_are_comparable_and_leave_out_the_oldest() -> None:
    runs = [month(n % 12 + 1, GOOD, rate=20.0 if n < 10 else 30.0) for n in range(12)]
    [one] = series([*runs, month(1, GOOD, defect="x"), month(2, GOOD, status="refused")])
    assert len(one.runs) == 12
    assert len(set(one.groups)) == 2
    assert len(set(one.groups[:10])) == 1
    [many] = series([digest(n, f"2026{n // 28 + 1:02}{n % 28 + 1:02}T020000Z", GOOD) for n in range(30)])
    assert (len(many.runs), many.left_out) == (trends.RUNS_MAX, 10)


# ---- figures ---------------------------------------------------------------------------------------------


def drawn(count: int, **more: Any) -> trend_figures.Drawn:
    kinds = [GOOD, BAD, ttft("inf", None, None, "fail"), ttft(None, None, None, "inconclusive")]
    rest = [FINE, row("failover", "pass", 0.0, 5.0), row("recovery", "fail", "> 79.4", 40.0), row("alert", "fail")]
    runs = [month(n % 12 + 1, kinds[n % 4], *rest, rate=20.0 if n < 3 else 30.0, **more) for n in range(count)]
    [one] = trend_figures.of(series(runs))
    return one


def ids(svg: bytes) -> list[str]:
    return [element.get("id", "") for element in ElementTree.fromstring(svg).iter()]


def test_a_figure_has_a_panel_for_each_figure_that_any_run_has() -> None:
    found = ids(drawn(4).svg)
    panels = {name for name in found if name.startswith("panel-")}
    assert panels == {"panel-ttft", "panel-availability", "panel-failover", "panel-recovery"}
    for gid in ("interval", "bound", "break", "none", "verdict-pass", "verdict-fail"):
        assert any(name.startswith(gid) for name in found), gid


@pytest.mark.parametrize("count", [1, 2, 3, 14, 25])
def test_figures_of_any_number_of_runs_are_the_same_bytes_again(count: int) -> None:
    first = drawn(count).svg
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": None}):
        assert drawn(count).svg == first
    assert b"dc:date" not in first


def test_what_has_no_figure_has_no_file() -> None:
    assert trend_figures.of(series([month(1), month(2, row("untouched"))])) == []


def test_hostile_names_make_plain_files_and_figures() -> None:
    name = "../../x$y^2$\x1b[31m警报<script>"
    one = drawn(3, drill=name)
    ElementTree.fromstring(one.svg)
    assert one.name.isascii()
    assert "/" not in one.name
    assert "\x1b" not in one.alt
    assert "<script>" not in one.alt + one.caption


def test_names_that_look_alike_get_files_of_their_own() -> None:
    pairs = [
        ("a", "b--c"),
        ("a--b", "c"),
        ("a", "b c"),
        ("a", "b_c"),
        ("a", "b-c"),
        ("", ""),
        ("x" * 90, "y"),
        ("x" * 90, ""),
    ]
    names = [plain(*pair) for pair in pairs]
    assert len(set(names)) == len(names)
    assert all(0 < len(name) < 80 for name in names)


def test_the_burn_down_says_what_it_draws() -> None:
    months = [Standing("2026-10", (2, 1, 0), 1), Standing("2026-11", (0, 1, 3), 0)]
    one = burn_down(months)
    assert "2026-11: 4 open, 3 of them escalated, 0 ended" in one.alt
    assert burn_down(months).svg == one.svg
    ElementTree.fromstring(burn_down([Standing("2026-10", (0, 0, 0), 0)]).svg)


def test_every_figure_can_be_looked_at(tmp_path: Path) -> None:
    [one] = series([month(1, GOOD)])
    assert figures.png(trend_figures.draw(one)).startswith(b"\x89PNG")
