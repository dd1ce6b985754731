"""Figures with a lane for each replica: the attempts that reached it, and what it had in hand. Plain data in.

The victims' lanes are drawn in vermilion with a thick edge, fallback replicas hatched, so that neither needs colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drills.report.drawing import Drawing
from drills.report.escape import ascii_name
from drills.report.figures import canvas, foot, head, head_in, plain, shade

#: More replicas than these share one lane: victims and fallbacks come first, the others by name.
LANES_MAX = 12
LANE_IN = 0.42
PRIMARY, VICTIM, FALLBACK = "#0072B2", "#D55E00", "#009E73"
#: place → how its line is drawn
LINES = {"client": ("#000000", "-"), "hop": ("#0072B2", (0, (4, 2))), "engine": ("#D55E00", (0, (1, 1)))}
NAMES = {"client": "client: sent / arrivals", "hop": "router: started / taken", "engine": "engines: reached / arrivals"}


@dataclass(frozen=True)
class Lane:
    """One replica: its name, and whether it was hit or is a fallback."""

    name: str
    victim: bool = False
    fallback: bool = False

    @property
    def colour(self) -> str:
        """Return the colour of its bars."""
        return VICTIM if self.victim else FALLBACK if self.fallback else PRIMARY


@dataclass(frozen=True)
class Attempts:
    """Attempts at a replica by the second in which they came, and those of them that broke."""

    lane: Lane
    came: Mapping[int, int]
    broke: Mapping[int, int]


@dataclass(frozen=True)
class Ratio:
    """Attempts per request at a place, over windows that end at `at_s`."""

    place: str
    at_s: Sequence[float]
    ratios: Sequence[float]


@dataclass(frozen=True)
class Queue:
    """Requests running and waiting at a replica when it was asked; `silent_s`: when it told nothing."""

    lane: Lane
    at_s: Sequence[float]
    running: Sequence[float]
    waiting: Sequence[float]
    silent_s: Sequence[float] = field(default=())


@plain
def attempts(drawing: Drawing, rows: Sequence[Attempts], ratios: Sequence[Ratio], window_s: float) -> Figure:
    """Return attempts per second at each replica, and below them what one request cost."""
    below = [1.5] if ratios else []
    figure, (top, *parts) = canvas([head_in(drawing), *[LANE_IN] * len(rows), *below])
    head(top, drawing)
    first, last = _seconds(drawing)
    most = max((n for row in rows for n in row.came.values()), default=1)
    for axes, row in zip(parts, rows, strict=False):
        _lane(axes, drawing, row.lane, most)
        edges = [*range(first, last), last]
        for counts, colour, hatch, name in (
            (row.came, row.lane.colour, "////" if row.lane.fallback else None, "came"),
            (row.broke, "#000000", None, "broke"),
        ):
            heights = [float(counts.get(second, 0)) for second in range(first, last)]
            if any(heights):
                axes.stairs(heights, edges, fill=True, facecolor=colour, edgecolor="#ffffff", hatch=hatch, linewidth=0,
                            gid=f"{name}-{ascii_name(row.lane.name)}", zorder=2)  # fmt: skip
        _peak(axes, drawing, f"most {max(row.came.values(), default=0)}/s")
    if ratios:
        _ratios(parts[-1], drawing, ratios)
    note = "bars: attempts by second, black those that broke"
    foot(parts[-1], drawing, f"{note}; lines: over the {window_s:g} s before" if ratios else note)
    return figure


def _ratios(axes: Axes, drawing: Drawing, ratios: Sequence[Ratio]) -> None:
    shade(axes, drawing)
    axes.spines["left"].set_visible(True)
    for line in ratios:
        colour, dash = LINES[line.place]
        axes.plot(line.at_s, line.ratios, color=colour, linestyle=dash, linewidth=1.4, gid=f"ratio-{line.place}",
                  label=NAMES[line.place], zorder=3)  # fmt: skip
    axes.axhline(1.0, color="#999999", linewidth=0.8, zorder=1)
    axes.set_ylim(0.9, max(1.25, 1.05 * max((max(line.ratios, default=1.0) for line in ratios), default=1.2)))
    axes.set_ylabel("attempts\nper request", fontsize=8)


@plain
def queue(drawing: Drawing, rows: Sequence[Queue]) -> Figure:
    """Return for each replica the requests that it ran, and on top of them those that waited."""
    figure, (top, *parts) = canvas([head_in(drawing), *[LANE_IN] * len(rows)], foot_in=0.55)
    head(top, drawing)
    most = max((r + w for row in rows for r, w in zip(row.running, row.waiting, strict=True)), default=1.0)
    for axes, row in zip(parts, rows, strict=True):
        _lane(axes, drawing, row.lane, most)
        name = ascii_name(row.lane.name)
        both = [r + w for r, w in zip(row.running, row.waiting, strict=True)]
        for at_s, floor, tops in _runs(row, both):
            axes.fill_between(at_s, 0, floor, step="post", facecolor=row.lane.colour, alpha=0.55, linewidth=0,
                              gid=f"running-{name}", zorder=2)  # fmt: skip
            axes.fill_between(at_s, floor, tops, step="post", facecolor="#000000", linewidth=0, gid=f"waiting-{name}",
                              zorder=3)  # fmt: skip
        if row.silent_s:
            axes.plot(row.silent_s, [0.06 * most] * len(row.silent_s), linestyle="", marker="x", markersize=3,
                      color="#555555", gid=f"silent-{name}", zorder=3)  # fmt: skip
        running, waiting = max(row.running, default=0), max(row.waiting, default=0)
        _peak(axes, drawing, f"most {running:g} running, {waiting:g} waiting")
    foot(parts[-1], drawing, "colour: requests running; black on top: waiting; x: it told nothing")
    return figure


#: Readings further apart than this are not joined.
GAP_S = 5.0


def _runs(row: Queue, both: Sequence[float]) -> list[tuple[list[float], list[float], list[float]]]:
    """Return the stretches in which readings came one after another."""
    found: list[tuple[list[float], list[float], list[float]]] = []
    for moment, running, total in zip(row.at_s, row.running, both, strict=True):
        if not found or moment - found[-1][0][-1] > GAP_S:
            found.append(([], [], []))
        times, floors, tops = found[-1]
        times.append(moment)
        floors.append(running)
        tops.append(total)
    for times, floors, tops in found:  # a reading holds until the next one, the last one for a second
        times.append(times[-1] + 1.0)
        floors.append(floors[-1])
        tops.append(tops[-1])
    return found


def _seconds(drawing: Drawing) -> tuple[int, int]:
    low, high = drawing.limits
    return int(low // 1), int(high // 1) + 1


def _lane(axes: Axes, drawing: Drawing, lane: Lane, most: float) -> None:
    shade(axes, drawing)
    axes.set_ylim(0, most * 1.4)
    name = _short(ascii_name(lane.name, 80))
    word = f"{name}\n(victim)" if lane.victim else f"{name}\n(fallback)" if lane.fallback else name
    axes.set_yticks([most * 0.6], [word])
    axes.tick_params(axis="y", left=False, labelsize=7.5)
    axes.get_yticklabels()[0].set_fontweight("bold" if lane.victim else "normal")
    axes.get_yticklabels()[0].set_parse_math(False)
    axes.axhline(0, color="#666666", linewidth=0.6, zorder=4)


def _short(name: str) -> str:
    """Cut a long name in its middle: replicas differ in their ends."""
    return name if len(name) <= 14 else f"{name[:5]}~{name[-8:]}"


def _peak(axes: Axes, drawing: Drawing, text: str) -> None:
    low, high = drawing.limits
    axes.text(low + (high - low) * 0.004, axes.get_ylim()[1] * 0.94, text, fontsize=6.5, color="#333333", va="top",
              zorder=5, parse_math=False)  # fmt: skip
