"""The figures of the reviews as SVG: how each drill went from run to run, and how old the action items are.

One panel a figure of the drill, one point a run: the interval as a bar, the verdict by marker and colour, the bound as
a dashed line. Comparable runs are joined by a line; a dotted line stands where the plan became another one.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from drills.lang import t
from drills.model import Verdict
from drills.report import figures, words
from drills.report.escape import ascii_name, prose
from drills.report.trends import METRICS, Metric, Series, Value

#: Number of panels → columns; three for all others. Number of columns → width and height of the legend.
COLUMNS: Final = {1: 1, 2: 2, 4: 2}
WIDTHS_IN: Final = {1: (4.6, 0.75), 2: (7.4, 0.6), 3: (10.0, 0.42)}
ROW_IN: Final = 2.35
#: More labels than these overlap below a panel.
LABELS_MAX: Final = 7
ALT_MAX: Final = 900

#: verdict → colour (Okabe-Ito), marker, filled
STYLE: Final = {
    str(Verdict.PASS): ("#009E73", "o", True),
    str(Verdict.FAIL): ("#D55E00", "X", True),
    str(Verdict.INCONCLUSIVE): ("#000000", "s", False),
    str(Verdict.NOT_JUDGED): ("#000000", "D", False),
}
#: How often an item was seen → colour, hatch
AGES: Final = (
    ("seen in 1 drill, or by hand", "#56B4E9", ""),
    ("seen in 2 drills", "#E69F00", "//"),
    ("escalated: seen in 3 or more", "#D55E00", "xx"),
)
#: Behind a number on a hatch.
_PAPER: Final[dict[str, Any]] = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
_plain = matplotlib.rc_context(matplotlib.rcParamsDefault)


@dataclass(frozen=True)
class Drawn:
    """A figure as a file: its name, what is said of it in Markdown, and what draws it when it is wanted."""

    name: str
    alt: str
    caption: str
    drawn: Callable[[], Figure]

    @property
    def svg(self) -> bytes:
        """Return its bytes."""
        return figures.svg(self.drawn())


@dataclass(frozen=True)
class Panel:
    """One figure of a drill, a value for each run; None where a run has none."""

    metric: Metric
    values: list[Value | None]


def of(series: Sequence[Series]) -> list[Drawn]:
    """Return the figures of the drills that have anything to draw."""
    return [drawn for one in series if (drawn := _drawn(one))]


def _drawn(series: Series) -> Drawn | None:
    panels = panels_of(series)
    if not panels:
        return None
    what = t("{drill} at {target}", drill=series.drill, target=series.target)
    runs = words.count(len(series.runs), "run")
    days = t("{first} to {last}", first=series.runs[0].day, last=series.runs[-1].day)
    latest = words.clauses(_latest(panel) for panel in panels)
    earlier = words.count(series.left_out, "earlier run")
    alt = t("{drill}, {runs} from {days}. The last one: {latest}.", drill=what, runs=runs, days=days, latest=latest)
    caption = t(
        "{drill}: {runs}, {days}.{left_out} Bars: 95 % intervals. Dashed: what is allowed. Joined runs are comparable; "
        "a dotted line stands where the plan became another one.",
        drill=prose(what),
        runs=runs,
        days=days,
        left_out=t(" {runs} not shown.", runs=earlier) if series.left_out else "",
    )
    name = f"trend-{plain(series.target, series.drill)}.svg"
    return Drawn(name, prose(alt, ALT_MAX), caption, lambda: draw(series))


def _latest(panel: Panel) -> str:
    value = panel.values[-1]
    what = t(panel.metric.title)
    if value is None:
        return t("{what}: no data", what=what)
    return t("{what}: {value}, {verdict}", what=what, value=value.told, verdict=value.verdict)


def panels_of(series: Series) -> list[Panel]:
    """Return the figures that any of the runs has a value of."""
    panels = [Panel(metric, series.panel(metric)) for metric in METRICS]
    return [panel for panel in panels if any(v and v.known for v in panel.values)]


def plain(*names: str) -> str:
    """Return a part of a file's name for names of others: letters that every system has, a hash where any was lost."""
    text = "--".join(names)
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:60]
    whole = kept == text and not any("--" in name for name in names)
    digest = hashlib.sha256("\0".join(names).encode("utf-8", "backslashreplace")).hexdigest()
    return kept if whole else f"{kept or 'unnamed'}-{digest[:6]}"


# ---- from run to run -----------------------------------------------------------------------------------


@_plain
def draw(series: Series) -> Figure:
    """Return the small multiples of one drill."""
    panels = panels_of(series)
    columns = COLUMNS.get(len(panels), 3)
    rows, (width_in, foot_in) = max(math.ceil(len(panels) / columns), 1), WIDTHS_IN[columns]
    height_in = rows * ROW_IN + foot_in
    figure = Figure(figsize=(width_in, height_in))
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.75 / width_in, right=1 - 0.15 / width_in, top=1 - 0.36 / height_in,
        bottom=(foot_in + 0.6) / height_in, wspace=0.3, hspace=0.66,
    )  # fmt: skip
    cells = [part for row in axes for part in row]
    for part, panel in zip(cells, panels, strict=False):
        _panel(part, panel, series)
    for part in cells[len(panels) :]:
        part.set_axis_off()
    _legend(figure, panels, columns)
    return figure


def _panel(axes: Axes, panel: Panel, series: Series) -> None:
    axes.set_gid(f"panel-{panel.metric.name}")
    axes.set_title(f"{panel.metric.title}", fontsize=9, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    low, high = _range(panel)
    axes.set_ylim(low, high)
    axes.set_xlim(-0.6, len(series.runs) - 0.4)
    _days(axes, series)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(_percent if panel.metric.unit == "ratio" else _seconds(high)))
    axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    _breaks(axes, series)
    _bounds(axes, panel)
    _joined(axes, panel, series)
    for at, value in enumerate(panel.values):
        _point(axes, at, value)


def _range(panel: Panel) -> tuple[float, float]:
    """Return the lowest and highest value shown: seconds from zero, shares up to the whole."""
    known = [end for value in panel.values if value for end in _ends(value)]
    if panel.metric.unit == "ratio":
        low = min(known, default=0.9)
        room = max(1.0 - low, 0.002)
        return low - 0.15 * room, 1.0 + 0.12 * room
    # What was never reached stands above all the others, with its word.
    room = 1.35 if any(value and value.endless for value in panel.values) else 1.15
    return 0.0, room * max(known, default=1.0) or 1.0


def _ends(value: Value) -> list[float]:
    ends = [value.value, value.bound, *(value.interval or ())]
    return [end for end in ends if end is not None and math.isfinite(end)]


def _days(axes: Axes, series: Series) -> None:
    """Label runs by their days; of many only so many that they do not overlap, the last one always."""
    count = len(series.runs)
    step = math.ceil(count / LABELS_MAX)
    at = list(range(count - 1, -1, -step))[::-1]
    years = len({run.day[:4] for run in series.runs}) > 1
    axes.set_xticks(at, [series.runs[n].day[2 if years else 5 :] for n in at], rotation=40, ha="right", fontsize=7.5)


def _breaks(axes: Axes, series: Series) -> None:
    """Draw where a run is not comparable with the one before."""
    for at in range(1, len(series.groups)):
        if series.groups[at] != series.groups[at - 1]:
            axes.axvline(at - 0.5, color="#888888", linewidth=0.9, linestyle=(0, (1, 2)), gid="break")


def _bounds(axes: Axes, panel: Panel) -> None:
    """Draw what was allowed, run by run: an experiment may have changed."""
    for at, value in enumerate(panel.values):
        if value and value.bound is not None:
            axes.plot([at - 0.5, at + 0.5], [value.bound] * 2, color="#555555", linewidth=1.0, linestyle=(0, (4, 2)),
                      zorder=1, gid="bound")  # fmt: skip


def _joined(axes: Axes, panel: Panel, series: Series) -> None:
    """Join the values of comparable runs that follow each other."""
    for group in sorted(set(series.groups)):
        known = [
            (at, value.value)
            for at, value in enumerate(panel.values)
            if series.groups[at] == group and value and value.value is not None and not value.endless
        ]
        axes.plot([at for at, _ in known], [y for _, y in known], color="#999999", linewidth=0.9, zorder=2)


def _point(axes: Axes, at: int, value: Value | None) -> None:
    low, high = axes.get_ylim()
    if value is None or not value.known:
        axes.plot(
            [at], [low + 0.03 * (high - low)], marker="|", color="#888888", markersize=6, linestyle="", gid="none"
        )
        return
    colour, marker, filled = STYLE.get(value.verdict, STYLE[str(Verdict.INCONCLUSIVE)])
    y = value.value if value.value is not None else low + 0.85 * (high - low)
    if value.interval and value.value is not None:
        ends = [_inside(end, default, low, high) for end, default in zip(value.interval, (low, high), strict=True)]
        axes.plot([at, at], ends, color=colour, linewidth=1.3, alpha=0.75, zorder=3, gid="interval")
    face = colour if filled else "white"
    axes.plot([at], [y], marker=marker, color=colour, markersize=6, linestyle="", zorder=4, markeredgewidth=1.2,
              markerfacecolor=face, clip_on=False, gid=f"verdict-{ascii_name(value.verdict)}")  # fmt: skip
    if value.endless:
        axes.annotate("not reached" if value.value is not None else "no answer", (at, y), xytext=(0, 6),
                      textcoords="offset points", ha="center", fontsize=6.5, color=colour)  # fmt: skip
        axes.plot([at], [y + 0.045 * (high - low)], marker="^", color=colour, markersize=3, linestyle="", zorder=4)


def _inside(end: float | None, default: float, low: float, high: float) -> float:
    return min(max(default if end is None else end, low), high)


def _legend(figure: Figure, panels: Sequence[Panel], columns: int) -> None:
    there = {value.verdict for panel in panels for value in panel.values if value}
    handles = [
        Line2D([], [], marker=marker, color=colour, linestyle="", markerfacecolor=colour if filled else "white",
               markeredgewidth=1.2, label=word)
        for word, (colour, marker, filled) in STYLE.items() if word in there
    ]  # fmt: skip
    handles.append(Line2D([], [], color="#555555", linewidth=1.0, linestyle=(0, (4, 2)), label="allowed"))
    handles.append(Line2D([], [], color="#000000", linewidth=1.3, label="95 % interval"))
    if any(v is None or not v.known for panel in panels for v in panel.values):
        handles.append(Line2D([], [], marker="|", color="#888888", linestyle="", label="no value"))
    ncols = {1: 3, 2: 5}.get(columns, len(handles))
    figure.legend(handles=handles, loc="lower center", ncols=ncols, fontsize=8, frameon=False, columnspacing=1.4)


def _percent(value: float, _position: object = None) -> str:
    return f"{100 * value:.6g} %"


def _seconds(high: float) -> Any:
    """Return how seconds are written on an axis that reaches so high."""
    if high < 1.0:
        return lambda value, _position=None: f"{1000 * value:.6g} ms"
    return lambda value, _position=None: f"{value:.6g} s"


# ---- action items --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """The open items at the end of a month, by how often they were seen, and how many ended in it."""

    month: str
    open: tuple[int, int, int]
    ended: int


def burn_down(standings: Sequence[Standing]) -> Drawn:
    """Return how many action items were open at the end of each month, by age."""
    last = standings[-1]
    alt = words.clauses(
        t(
            "{month}: {n} open, {escalated} of them escalated, {ended} ended",
            month=one.month,
            n=sum(one.open),
            escalated=one.open[2],
            ended=one.ended,
        )
        for one in standings
    )
    caption = t(
        "Open action items at the end of each month, by the number of drills that saw them. Open at the end: {n}. "
        "Diamonds: items that were done or closed in that month.",
        n=sum(last.open),
    )
    told = prose(t("Open action items by month. {months}.", months=alt), ALT_MAX)
    return Drawn("actions.svg", told, caption, lambda: _burn_down(standings))


@_plain
def _burn_down(standings: Sequence[Standing]) -> Figure:
    figure = Figure(figsize=(7.0, 2.9))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.09, right=0.985, top=0.95, bottom=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    at, floor = list(range(len(standings))), [0] * len(standings)
    for n, (label, colour, hatch) in enumerate(AGES):
        heights = [one.open[n] for one in standings]
        axes.bar(
            at, heights, 0.6, bottom=floor, color=colour, hatch=hatch, edgecolor="white", linewidth=0.6, label=label
        )
        for x, height, below in zip(at, heights, floor, strict=True):
            if height:
                axes.text(x, below + height / 2, str(height), ha="center", va="center", fontsize=8, bbox=_PAPER)
        floor = [below + height for below, height in zip(floor, heights, strict=True)]
    ended = [(x + 0.39, one.ended) for x, one in zip(at, standings, strict=True) if one.ended]
    axes.plot([x for x, _ in ended], [n for _, n in ended], marker="D", color="#000000", markersize=5, linestyle="",
              label="done or closed in the month")  # fmt: skip
    axes.set_xlim(-0.6, len(standings) - 0.4)
    axes.set_ylim(0, max(*floor, *(one.ended for one in standings), 1) * 1.15)
    axes.set_xticks(at, [one.month for one in standings])
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_ylabel("action items", fontsize=9)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=8, frameon=False)
    return figure
