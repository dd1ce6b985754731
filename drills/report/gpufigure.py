"""Figure: temperature and clocks of the GPUs over time. Plain data in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from drills.report.drawing import Drawing
from drills.report.escape import ascii_name
from drills.report.figures import canvas, foot, head, head_in, plain, shade

#: More GPUs than these are drawn as one band from the lowest to the highest; those of victims keep their lines.
LINES_MAX = 4
#: Readings further apart than this are not joined.
GAP_S = 30.0
#: Further from all readings than this a threshold is not drawn.
NEAR_C = 15.0
#: what is drawn, its label, the least span of its axis, and its height in inches
_PANELS = (("temperature_c", "temperature, °C", 20.0, 2.0), ("clock_mhz", "SM clock, MHz", 400.0, 1.6))
_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9")
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
_VICTIMS = ("#D55E00", "#E69F00", "#000000")


@dataclass(frozen=True)
class Gpu:
    """One GPU: readings of its temperature and its SM clock; None where it told none."""

    name: str
    victim: bool
    at_s: Sequence[float]
    temperature_c: Sequence[float | None]
    clock_mhz: Sequence[float | None]


@dataclass(frozen=True)
class Limit:
    """A threshold of the temperature that somebody watches."""

    name: str
    celsius: float


@plain
def gpus(drawing: Drawing, shown: Sequence[Gpu], limits: Sequence[Limit]) -> Figure:
    """Return temperatures above and clocks below."""
    panels = [panel for panel in _PANELS if any(v is not None for gpu in shown for v in getattr(gpu, panel[0]))]
    figure, (top, *parts) = canvas([head_in(drawing), *(height_in for _, _, _, height_in in panels)])
    head(top, drawing)
    for axes, (values, word, least, _) in zip(parts, panels, strict=True):
        shade(axes, drawing)
        axes.spines["left"].set_visible(True)
        _draw(axes, shown, values)
        axes.grid(axis="y", color="#d0d0d0", linewidth=0.5, zorder=0)
        _at_least(axes, least)
        axes.set_ylabel(word, fontsize=9)
        if values == "temperature_c":
            _limits(axes, drawing, limits)
    foot(parts[-1], drawing, "thick: GPUs of victims")
    return figure


def _limits(axes: Axes, drawing: Drawing, limits: Sequence[Limit]) -> None:
    """Draw the thresholds that a reading came near to."""
    near = axes.get_ylim()[1]
    for limit in (limit for limit in limits if limit.celsius <= near + NEAR_C):
        axes.axhline(limit.celsius, color="#333333", linestyle=(0, (6, 3)), linewidth=0.9, gid="limit", zorder=3)
        axes.text(drawing.limits[0], limit.celsius, f" {ascii_name(limit.name)} {limit.celsius:g} °C", fontsize=7,
                  va="bottom", parse_math=False)  # fmt: skip


def _at_least(axes: Axes, span: float) -> None:
    """Give the axis at least that span, so that a degree more or less does not look like a jump."""
    low, high = axes.get_ylim()
    more = max(0.0, span - (high - low)) / 2
    axes.set_ylim(max(0.0, low - more), high + more)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, prune="both"))


def _draw(axes: Axes, shown: Sequence[Gpu], values: str) -> None:
    victims, others = [gpu for gpu in shown if gpu.victim], [gpu for gpu in shown if not gpu.victim]
    if len(others) > LINES_MAX:
        _band(axes, others, values)
        others = []
    for n, gpu in enumerate(others):
        _line(axes, gpu, values, _COLOURS[n % 4], _DASHES[n % 4], 1.1)
    for n, gpu in enumerate(victims):
        _line(axes, gpu, values, _VICTIMS[n % 3], _DASHES[n % 4], 2.4)


def _line(axes: Axes, gpu: Gpu, values: str, colour: str, dash: Any, width: float) -> None:
    at_s: list[float] = []
    seen: list[float] = []
    for moment, value in zip(gpu.at_s, getattr(gpu, values), strict=True):
        if value is None:
            continue
        if at_s and moment - at_s[-1] > GAP_S:  # a hole breaks the line
            at_s.append(moment)
            seen.append(float("nan"))
        at_s.append(moment)
        seen.append(float(value))
    word = "victim " if gpu.victim else ""
    marker = "o" if len(seen) == 1 else ""
    axes.plot(at_s, seen, color=colour, linestyle=dash, linewidth=width, marker=marker, markersize=3,
              label=f"{word}{ascii_name(gpu.name, 24)}", gid=f"gpu-{ascii_name(gpu.name)}", zorder=3)  # fmt: skip


def _band(axes: Axes, others: Sequence[Gpu], values: str) -> None:
    """Draw the lowest and the highest of many GPUs at each reading."""
    found: dict[float, list[float]] = {}
    for gpu in others:
        for moment, value in zip(gpu.at_s, getattr(gpu, values), strict=True):
            if value is not None:
                found.setdefault(moment, []).append(float(value))
    at_s = sorted(found)
    axes.fill_between(at_s, [min(found[m]) for m in at_s], [max(found[m]) for m in at_s], facecolor="#9ec9e2",
                      edgecolor="#0072B2", linewidth=0.8, label=f"{len(others)} others, lowest to highest",
                      gid="others", zorder=2)  # fmt: skip
