"""The figures of replicas, cohorts and GPUs: drawn only from data, well-formed, the same bytes again, at any size."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure

from drills import stats
from drills.report import ecdf, figures, gpufigure, lanes, pictures
from drills.report.drawing import Drawing, Mark, Point, Span, arrivals
from drills.report.facts import Facts
from drills.report.source import read
from tests.unit import report_runs, runs

PHASES = [Span("baseline", -50, 0), Span("fault", 0, 60)]
HOSTILE = "\x1b[31m$x^2$ 警报 <script>|`"


def drawing(points: list[Point] | None = None) -> Drawing:
    return Drawing(arrivals(points or []), PHASES, [Mark("injection", 0)], 1.0, 20.0)


def ids(svg: bytes) -> set[str]:
    return {element.get("id", "") for element in ElementTree.fromstring(svg).iter()}


def attempts(lane: lanes.Lane, n: int = 60) -> lanes.Attempts:
    return lanes.Attempts(lane, dict.fromkeys(range(n), 7), {0: 3} if lane.victim else {})


LANES = [lanes.Lane("r-0"), lanes.Lane("r-1", victim=True), lanes.Lane("small", fallback=True)]
RATIOS = [lanes.Ratio(place, [0.0, 1.0], [1.0, 3.0]) for place in ("client", "hop", "engine")]
QUEUE = [lanes.Queue(lane, [0.0, 1.0, 20.0], [3.0, 4.0, 5.0], [0.0, 2.0, 0.0], [10.0]) for lane in LANES]
GPUS = [
    gpufigure.Gpu(f"GPU {n}", n == 1, [0.0, 5.0, 90.0], [60.0, 61.0, None], [1980.0, None, 990.0]) for n in range(8)
]
COHORTS = [ecdf.Cohort("baseline", array("d", [0.1, 0.2]), 2), ecdf.Cohort("fault", array("d", [0.1] * 400), 500)]
DRAWN: dict[str, Callable[[], Figure]] = {
    "attempts": lambda: lanes.attempts(drawing(), [attempts(lane) for lane in LANES], RATIOS, 10.0),
    "attempts, no ratios": lambda: lanes.attempts(drawing(), [attempts(LANES[0], 1)], [], 10.0),
    "attempts, many": lambda: lanes.attempts(drawing(), [attempts(lanes.Lane(f"r-{n}" * 9)) for n in range(12)], [], 1),
    "queue": lambda: lanes.queue(drawing(), QUEUE),
    "queue, silent": lambda: lanes.queue(drawing(), [lanes.Queue(LANES[0], [], [], [], [1.0, 2.0])]),
    "ecdf": lambda: ecdf.ecdf(COHORTS, 1.0, 0.99),
    "ecdf, all failed": lambda: ecdf.ecdf([ecdf.Cohort("fault", array("d"), 300)], None, 0.99),
    "gpus": lambda: gpufigure.gpus(drawing(), GPUS, [gpufigure.Limit("warn", 70.0), gpufigure.Limit("fail", 200.0)]),
    "gpus, one": lambda: gpufigure.gpus(drawing(), GPUS[1:2], []),
    "hostile lane": lambda: lanes.attempts(drawing(), [attempts(lanes.Lane(HOSTILE, victim=True))], [], 10.0),
    "hostile gpu": lambda: gpufigure.gpus(drawing(), [gpufigure.Gpu(HOSTILE, True, [0.0], [1.0], [2.0])], []),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN.keys())
def test_the_same_data_give_the_same_bytes(draw: Callable[[], Figure]) -> None:
    first = figures.svg(draw())
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": None}):
        assert figures.svg(draw()) == first
    ElementTree.fromstring(first)
    assert b"dc:date" not in first


def test_lanes_tell_victims_and_what_broke() -> None:
    found = ids(figures.svg(DRAWN["attempts"]()))
    assert {"came-r-0", "came-r-1", "broke-r-1", "came-small"} <= found
    assert "broke-r-0" not in found
    assert {"ratio-client", "ratio-hop", "ratio-engine"} <= found
    assert {"running-r-0", "waiting-r-1", "silent-small"} <= ids(figures.svg(DRAWN["queue"]()))


def test_a_hole_in_the_readings_is_left_open() -> None:
    row = lanes.Queue(LANES[0], [0.0, 1.0, 20.0, 21.0], [3.0] * 4, [0.0] * 4)
    stretches = lanes._runs(row, list(row.running))
    assert [times for times, _, _ in stretches] == [[0.0, 1.0, 2.0], [20.0, 21.0, 22.0]]


def test_many_gpus_are_a_band_and_those_of_victims_lines() -> None:
    found = ids(figures.svg(DRAWN["gpus"]()))
    assert "others" in found
    assert "gpu-GPU 1" in found
    assert "gpu-GPU 2" not in found
    assert "limit" in found  # of 70 degrees; 200 are out of sight


@pytest.mark.parametrize("n", [1, 2, 399, 400, 401, 5000, 1_000_000])
def test_a_curve_is_drawn_through_few_values_and_ends_at_the_last(n: int) -> None:
    found = ecdf.ranks(n)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (1, n)
    assert len(found) <= ecdf.RANKS_MAX + 2
    if n > 5000:  # of the last per cent a good share is drawn
        assert sum(1 for rank in found if rank > 0.99 * n) > ecdf.RANKS_MAX / 3


def test_failures_keep_a_curve_below_one_hundred_per_cent() -> None:
    cohort = COHORTS[1]
    assert cohort.share_by(1.0) == 0.8
    assert ecdf.stretched(0.9) == pytest.approx(1.0)
    assert math.isclose(ecdf.stretched(0.999), 3.0)
    low, high = stats.share_interval(400, 500)
    assert low < cohort.share_by(1.0) < high


# ---- from a run ----------------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, pictures.Picture]:
    facts = Facts(read(folder))
    drawn = pictures.drawn(facts)
    return {picture.file: picture for picture in [*pictures.impact(facts, drawn), *pictures.replicas(facts, drawn)]}


def test_a_run_has_the_figures_of_what_it_measured(tmp_path: Path) -> None:
    run = runs.healthy()
    for sample in run.samples:
        if sample["probe"] == "gpu":
            sample["values"]["gpus"][runs.GPU] |= {"index": 3, "sm_clock_mhz": 1980}
    found = files(run.write(tmp_path))
    assert list(found) == ["latency.svg", "outcomes.svg", "ecdf.svg", "attempts.svg", "queue.svg", "gpus.svg"]
    assert "replica-1" in found["attempts.svg"].alt
    assert "the hottest reading is 60 °C" in found["gpus.svg"].alt
    for picture in found.values():
        assert figures.svg(picture.draw()) == figures.svg(picture.draw())


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    folder = report_runs.build(tmp_path / "run", rate=2.0)  # its probes ask neither engines nor GPUs
    assert set(files(folder)) == {"latency.svg", "outcomes.svg", "ecdf.svg", "attempts.svg"}
    for name in ("ledger.ndjson", "requests.ndjson", "samples.ndjson"):
        (folder / name).unlink()
    found = files(folder)
    assert set(found) == {"latency.svg", "outcomes.svg"}
    for picture in found.values():
        ElementTree.fromstring(figures.svg(picture.draw()))


def test_more_replicas_than_lanes_share_one(tmp_path: Path) -> None:
    run = runs.healthy()
    for n, line in enumerate(run.ledger):
        if line["replica"] != runs.VICTIM:
            line["replica"] = f"replica-{n % 40:02}"
    facts = Facts(read(run.write(tmp_path)))
    found = pictures._lanes(facts, {line["replica"] for line in run.ledger})
    assert len(found) == lanes.LANES_MAX
    assert found[""].name == "32 others"
    assert found[runs.VICTIM].victim


def test_the_caption_says_when_a_scatter_is_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "POINTS_MAX", 100)
    found = files(report_runs.build(tmp_path / "run", rate=2.0))
    assert " Thinned: 100 of 3" in found["latency.svg"].caption
