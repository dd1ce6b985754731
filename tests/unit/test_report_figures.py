"""The figures: well-formed, the same bytes again, every phase and outcome to be found, thinned when too many."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import matplotlib
import pytest

from drills.report import drawing as drawings
from drills.report import figures
from drills.report.drawing import Drawing, Mark, Point, Span, arrivals

PHASES = [Span("warmup", -60, -50), Span("baseline", -50, 0), Span("fault", 0, 60), Span("recovery", 60, 100)]
MARKS = [Mark("injection", 0), Mark("alert firing", 7.0), Mark("alert notified", 7.6), Mark("off", 60), Mark("end", 99)]


def drawing(points: list[Point] | None = None, marks: list[Mark] | None = None) -> Drawing:
    some = [Point(float(at), at + 0.9, "ok", 0.1) for at in range(-60, 100)] + [
        Point(1.0, 2.0, "error", None), Point(-0.5, 0.0, "truncated", 0.2), Point(3.0, 3.5, "degraded", 0.4),
        Point(4.0, 34.0, "hung", None), Point(5.0, 5.0, "shed", None), Point(99.0, 105.0, "cancelled", None),
    ]  # fmt: skip
    chosen = some if points is None else points
    return Drawing(arrivals(chosen), PHASES, MARKS if marks is None else marks, 1.0, 20.0)


def ids(svg: bytes) -> set[str]:
    return {element.get("id", "") for element in ElementTree.fromstring(svg).iter()}


@pytest.mark.parametrize("draw", [figures.latency, figures.outcomes])
def test_a_figure_carries_phases_marks_and_outcomes(draw: type) -> None:
    found = ids(figures.svg(draw(drawing())))
    assert {"phase-warmup", "phase-baseline", "phase-fault", "phase-recovery"} <= found
    assert {"mark-injection", "mark-alert-firing", "mark-off"} <= found
    assert {f"outcome-{name}" for name in ("ok", "degraded", "truncated", "error", "hung", "shed")} <= found


@pytest.mark.parametrize("draw", [figures.latency, figures.outcomes])
def test_the_same_drawing_gives_the_same_bytes_without_a_date(draw: type) -> None:
    first = figures.svg(draw(drawing()))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": None}):
        second = figures.svg(draw(drawing()))
    assert first == second
    assert b"dc:date" not in first


@pytest.mark.parametrize("draw", [figures.latency, figures.outcomes])
def test_nothing_to_draw_is_no_error(draw: type) -> None:
    ElementTree.fromstring(figures.svg(draw(Drawing(arrivals([]), [], [], None, None))))


@pytest.mark.parametrize("draw", [figures.latency, figures.outcomes])
def test_hostile_names_draw_plain_letters(draw: type) -> None:
    marks = [Mark("\x1b[31m$x^2$ 警报 <script>", 3.0)]
    ElementTree.fromstring(figures.svg(draw(drawing(marks=marks))))


def test_answers_that_came_late_are_told_apart() -> None:
    points = [Point(float(at), at + 0.9, "ok", 0.1) for at in range(20)]
    points += [Point(float(at), at + 5.1, "ok", 5.0) for at in range(20, 40)]
    points += [Point(float(at), at + 2.1, "degraded", 1.2) for at in range(40, 50)]
    shown = drawing(points)
    assert shown.late.to_list() == [False] * 20 + [True] * 30
    svg = figures.svg(figures.outcomes(shown))
    assert {"outcome-ok", "outcome-ok-late", "outcome-degraded-late"} <= ids(svg)
    assert "outcome-degraded" not in ids(svg)
    assert b"<pattern" in svg  # a hatch is seen without its colour
    assert not {name for name in ids(figures.svg(figures.outcomes(drawing(points[:20])))) if name.endswith("-late")}
    with matplotlib.rc_context({"hatch.linewidth": 9, "hatch.color": "red", "font.size": 30}):
        assert figures.svg(figures.outcomes(shown)) == svg


def test_without_a_promise_no_answer_is_late() -> None:
    late = Point(0.0, 9.0, "ok", 8.0)
    assert not Drawing(arrivals([late]), PHASES, [], None, None).late.any()
    assert drawing([late]).late.all()
    assert not drawing([Point(0.0, 9.0, "truncated", 8.0)]).late.any()


def test_no_line_of_a_higher_row_crosses_a_label_that_has_room() -> None:
    marks = [Mark("injection", 0), Mark("off", 60.3), Mark("unexpected alert resolved", 70.5)]
    placed = {mark.name: (row, left) for mark, _, row, left in figures._labels(drawing(marks=marks))}
    assert placed["unexpected alert resolved"] == (0, True)
    assert placed["off"] == (1, True)  # to the right the line at 70.5 would go through it
    assert placed["injection"] == (0, False)


def test_too_many_points_are_thinned_failures_last() -> None:
    good = [Point(float(n), n + 1.0, "ok", 0.1) for n in range(1000)]
    bad = [Point(n + 0.5, n + 1.0, "error", None) for n in range(50)]
    kept = [Point(*row) for row in drawings.thin(arrivals([*good, *bad]), 200).rows()]
    assert len(kept) == 200
    assert [point for point in kept if point.outcome == "error"] == bad
    assert kept == sorted(kept, key=lambda point: point.at_s)
    rest = [point.at_s for point in kept if point.outcome == "ok"]
    assert max(b - a for a, b in itertools.pairwise(rest)) <= 7  # evenly: 1000 / 150
    assert drawings.thin(arrivals(bad * 10), 200).height == 200


def test_few_points_are_all_drawn() -> None:
    points = [Point(float(n), n + 1.0, "ok", 0.1) for n in range(200)]
    assert drawings.thin(arrivals(points), 200).equals(arrivals(points))


def test_labels_of_marks_do_not_overlap() -> None:
    marks = [Mark(f"mark {n}", n * 0.7) for n in range(8)] + [Mark("late", 99.5), Mark("later", 99.9)]
    placed = figures._labels(drawing(marks=marks))
    low, high = drawing().limits
    letter = (high - low) * figures.LETTER_SHARE
    boxes = []
    for mark, text, row, left in placed:
        width = letter * (len(text) + 1)
        boxes.append((row, mark.at_s - width, mark.at_s) if left else (row, mark.at_s, mark.at_s + width))
    for n, (row, begin, end) in enumerate(boxes):
        assert low - letter <= begin
        assert end <= high + letter
        for other_row, other_begin, other_end in boxes[n + 1 :]:
            assert row != other_row or end <= other_begin or other_end <= begin
