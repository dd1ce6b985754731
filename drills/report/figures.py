"""Two figures of a run as SVG, time × latency and how the arrivals of each second ended; and what all figures share.

    drawing = Drawing(...)            plain data, seconds from the injection
    latency(drawing) → Figure         outcomes(drawing), and the others in figure_*.py
    svg(figure) → bytes               same data, same bytes: fixed hash salt, no date, letters as paths

Colours are of the Okabe-Ito set, which people with colour-blindness can tell apart; each outcome also has a marker
of its own. Groups carry ids (`phase-fault`, `outcome-ok`, `mark-injection`) for programs that read the SVG.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import matplotlib
import polars as pl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from drills.report import words
from drills.report.drawing import GOOD, Drawing, Mark, thin
from drills.report.escape import ascii_name

#: outcome → colour (Okabe-Ito), marker; also the order of the stack, good ones first.
STYLE = {
    "ok": ("#0072B2", "o"),
    "degraded": ("#009E73", "^"),
    "truncated": ("#E69F00", "d"),
    "error": ("#D55E00", "x"),
    "hung": ("#000000", "s"),
    "shed": ("#CC79A7", "v"),
    "cancelled": ("#999999", "+"),
}
#: Light tints of those, under hatches of the full colour: answered, but later than the SLA allows.
LATE = {"ok": "#a6cfe6", "degraded": "#a3dcca"}
#: What failed is hatched in white, so that a print without colours tells it apart.
HATCHES = {"truncated": "\\\\\\\\", "error": "xxxx", "shed": "....", "cancelled": "----"}
SHADES = {"warmup": "#ffffff", "baseline": "#eef2f7", "fault": "#fbe3d6", "recovery": "#e6f3ec"}
WIDTH_IN = 10.0
ROW_IN = 0.17
#: Width of a letter of the labels, as a share of the plot's width.
LETTER_SHARE = 0.0076


#: A person's own matplotlibrc must not change the bytes.
plain = matplotlib.rc_context(matplotlib.rcParamsDefault)


@plain
def latency(drawing: Drawing) -> Figure:
    """Return time × TTFT on a log axis; arrivals without a good answer are ticks in rows above it."""
    points = thin(drawing.arrivals)
    failed = [name for name in STYLE if name not in GOOD and drawing.number(name)]
    figure, (top, *strip, main) = canvas([head_in(drawing), *([0.2 * len(failed)] if failed else []), 3.4])
    for axes in (*strip, main):
        shade(axes, drawing)
    head(top, drawing)
    if failed:
        _strip(strip[0], points, failed, drawing)
    for name in (name for name in GOOD if drawing.number(name)):
        chosen = points.filter((pl.col("outcome") == name) & pl.col("ttft_s").is_not_null())
        ttft_s = chosen["ttft_s"].clip(lower_bound=1e-4).to_list()
        _scatter(main, chosen["at_s"].to_list(), ttft_s, name, drawing.number(name))
    if drawing.sla_ttft_s is not None:
        main.axhline(drawing.sla_ttft_s, color="#333333", linestyle=(0, (6, 3)), linewidth=1.0, gid="sla-ttft",
                     label=f"SLA {short_seconds(drawing.sla_ttft_s)}")  # fmt: skip
    main.set_yscale("log")
    log_seconds(main.yaxis)
    main.set_ylabel("time to first token")
    foot(main, drawing, f"{words.count(drawing.arrivals.height, 'arrival')} by intended start")
    return figure


@plain
def outcomes(drawing: Drawing) -> Figure:
    """Return how the arrivals that ended in each second ended, stacked, with the load that was offered."""
    figure, (top, main) = canvas([head_in(drawing), 2.8])
    shade(main, drawing)
    head(top, drawing)
    low, high = drawing.limits
    first, last = int(low // 1), int(high // 1) + 1  # what ended later lies outside the plot, and counts in the legend
    seconds = list(range(first, last))
    edges = [*seconds, last]
    floor = [0.0] * len(seconds)
    ended = drawing.ended()
    for name, late in ((name, late) for name in STYLE for late in (False, True)):
        heights = [float(ended.get((name, late, second), 0)) for second in seconds]
        if not any(heights):
            continue
        tops = [below + height for below, height in zip(floor, heights, strict=True)]
        _layer(main, edges, floor, tops, name, late=late, number=drawing.counts[name, late])
        floor = tops
    offered = drawing.offered()
    begun = [float(offered.get(second, 0)) for second in seconds]
    main.stairs(
        begun, edges, baseline=None, color="#000000", linewidth=1.0, gid="offered", label="offered (arrivals begun)"
    )
    if drawing.rate_per_s is not None:
        main.axhline(drawing.rate_per_s, color="#333333", linestyle=(0, (6, 3)), linewidth=1.0, gid="planned",
                     label=f"planned {drawing.rate_per_s:g}/s")  # fmt: skip
    main.set_ylim(bottom=0)
    main.set_ylabel("arrivals per second")
    foot(main, drawing, "bars: ended in that second")
    return figure


def _layer(
    axes: Axes, edges: list[int], floor: list[float], tops: list[float], name: str, *, late: bool, number: int
) -> None:
    """Draw one layer of the stack."""
    colour, word = STYLE[name][0], f"{name}, late" if late else name
    face, edge = (LATE[name], colour) if late else (colour, "#ffffff")
    axes.stairs(tops, edges, baseline=floor, fill=True, facecolor=face, edgecolor=edge, linewidth=0,
                    hatch="////" if late else HATCHES.get(name), gid=f"outcome-{word.replace(', ', '-')}",
                    label=f"{word} ({number:,})")  # fmt: skip


def svg(figure: Figure) -> bytes:
    """Return the figure as SVG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "svg.hashsalt": "drills", "svg.fonttype": "path"}):
        canvas = FigureCanvasSVG(figure)
        metadata = {"Date": None, "Creator": "drill"}
        canvas.print_svg(buffer, metadata=metadata)  # type: ignore[no-untyped-call] # matplotlib has no type for it
    return buffer.getvalue()


def png(figure: Figure) -> bytes:
    """Return the figure as PNG, for looking at it where SVG cannot be shown."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)  # type: ignore[no-untyped-call] # matplotlib has no type for it
    return buffer.getvalue()


def canvas(heights_in: list[float], foot_in: float = 0.95) -> tuple[Figure, list[Axes]]:
    """Return a figure of axes that share time: names of phases and marks on top, the plot at the bottom."""
    air_in = 0.06
    height_in = sum(heights_in) + foot_in + air_in
    figure = Figure(figsize=(WIDTH_IN, height_in))
    axes = list(figure.subplots(len(heights_in), 1, sharex=True, height_ratios=heights_in))
    figure.subplots_adjust(left=0.105, right=0.985, top=1 - air_in / height_in, bottom=foot_in / height_in, hspace=0.0)
    for part in axes:
        part.spines[["top", "right"]].set_visible(False)
        part.tick_params(labelsize=9)
    for part in axes[:-1]:
        part.tick_params(bottom=False, labelbottom=False)
        part.spines[:].set_visible(False)
    return figure, axes


def shade(axes: Axes, drawing: Drawing) -> None:
    """Shade the phases and draw the line of each mark."""
    _shade_phases(axes, drawing)
    for mark in drawing.marks:
        axes.axvline(mark.at_s, color="#222222", linewidth=0.9, linestyle=_dash(mark), zorder=3, gid=_mark_id(mark))


def _shade_phases(axes: Axes, drawing: Drawing) -> None:
    for span in drawing.phases:
        axes.axvspan(span.begin_s, span.end_s, color=SHADES.get(span.name, "#f4f4f4"), linewidth=0, zorder=0,
                     gid=f"phase-{ascii_name(span.name)}")  # fmt: skip


def _mark_id(mark: Mark) -> str:
    return f"mark-{ascii_name(mark.name).replace(' ', '-')}"


def _dash(mark: Mark) -> Any:
    return "-" if mark.name == "injection" else (0, (1, 1.5)) if "alert" in mark.name else (0, (4, 2))


def _labels(drawing: Drawing) -> list[tuple[Mark, str, int, bool]]:
    """Return each mark's label, its row, and whether it is written to the left of its line.

    A mark that lies under another one's label goes to a lower row: its line then ends below that label. A label that
    the line of a higher row would cross is written to the other side, where it has room.
    """
    low, high = drawing.limits
    room = []
    for mark in drawing.marks:
        label = f"{ascii_name(mark.name)} {mark.at_s:+.1f} s"
        width_s = (high - low) * LETTER_SHARE * (len(label) + 2)
        room.append((mark, label, mark.at_s + width_s > high, width_s))
    # Those written to the left first, from the right; then the others from the left.
    room.sort(key=lambda item: (not item[2], -item[0].at_s if item[2] else item[0].at_s, item[1]))
    placed: list[tuple[Mark, str, int, bool]] = []
    taken: list[_Taken] = []
    for mark, label, left, width_s in room:
        space, crossed = _space(mark.at_s, width_s, left, taken)
        if crossed and not left and mark.at_s - width_s >= low:
            other, crossed = _space(mark.at_s, width_s, True, taken)
            space, left = (space, left) if crossed else (other, True)
        taken.append(space)
        placed.append((mark, label, space.row, left))
    return placed


@dataclass(frozen=True)
class _Taken:
    """Where a label lies, in seconds, and the line that comes down from its row."""

    begin_s: float
    end_s: float
    row: int
    at_s: float


def _space(at_s: float, width_s: float, left: bool, taken: list[_Taken]) -> tuple[_Taken, bool]:
    """Return where a label would lie, and whether the line of a higher row would cross it there."""
    begin_s, end_s = (at_s - width_s, at_s) if left else (at_s, at_s + width_s)
    over = [t for t in taken if t.begin_s < end_s and begin_s < t.end_s and t.begin_s <= at_s <= t.end_s]
    row = max((t.row + 1 for t in over), default=0)
    crossed = any(begin_s < t.at_s < end_s and t.row < row for t in taken)
    return _Taken(begin_s, end_s, row, at_s), crossed


def head_in(drawing: Drawing) -> float:
    """Return the height of the head: a row of phase names and the rows of labels."""
    return ROW_IN * (1.6 + max((row + 1 for _, _, row, _ in _labels(drawing)), default=0))


def head(axes: Axes, drawing: Drawing) -> None:
    """Write phase names, then the marks in as many rows as they need not to overlap."""
    _shade_phases(axes, drawing)
    rows = head_in(drawing) / ROW_IN
    axes.set_ylim(0, rows)
    axes.set_yticks([])
    low, high = drawing.limits
    for span in drawing.phases:
        if span.end_s - span.begin_s > (high - low) * LETTER_SHARE * 1.1 * len(span.name):
            axes.text((span.begin_s + span.end_s) / 2, rows - 0.6, span.name, ha="center", va="center", fontsize=9,
                      color="#444444", parse_math=False)  # fmt: skip
    for mark, label, row, left in _labels(drawing):
        height = rows - 1.75 - row
        # The line reaches up to its own label only, so that it crosses no other one.
        axes.plot([mark.at_s] * 2, [0, height + 0.35], color="#222222", linewidth=0.9, linestyle=_dash(mark), zorder=3)
        axes.text(mark.at_s, height, f"{label} " if left else f" {label}", ha="right" if left else "left",
                  va="center", fontsize=8, parse_math=False, zorder=4)  # fmt: skip


def _strip(axes: Axes, points: pl.DataFrame, failed: list[str], drawing: Drawing) -> None:
    """Draw one row of ticks for each kind of failure."""
    axes.set_ylim(len(failed) - 0.5, -0.5)
    axes.set_yticks(range(len(failed)), [f"{name} ({drawing.number(name):,})" for name in failed])
    axes.tick_params(left=False, labelsize=8)
    for row, name in enumerate(failed):
        at = points.filter(pl.col("outcome") == name)["at_s"].to_list()
        axes.get_yticklabels()[row].set_color(STYLE[name][0] if name != "cancelled" else "#666666")
        _scatter(axes, at, [float(row)] * len(at), name, len(at))


def _scatter(axes: Axes, x: list[float], y: list[float], name: str, number: int) -> None:
    colour, marker = STYLE[name]
    size = 2.6 if name == "ok" else 4.0
    axes.plot(x, y, linestyle="", marker=marker, markersize=size, color=colour, alpha=0.55 if name == "ok" else 0.9,
              markeredgewidth=0.0 if name in GOOD else 1.1, gid=f"outcome-{name}", label=f"{name} ({number:,})",
              zorder=2)  # fmt: skip


def short_seconds(value: float, _position: object = None) -> str:
    """Return seconds as a tick says them."""
    return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"


def log_seconds(axis: Axis) -> None:
    """Label a log axis of times as people say them, with a light grid."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(short_seconds))
    axis.set_minor_locator(NullLocator())
    axis.grid(True, color="#d0d0d0", linewidth=0.5, zorder=1)
    axis.axes.set_axisbelow(True)


def foot(axes: Axes, drawing: Drawing, note: str) -> None:
    """Write below the lowest plot what time counts from, and the legend."""
    axes.set_xlim(*drawing.limits)
    axes.set_xlabel(f"seconds from {drawing.origin}; {note}", fontsize=9)
    root = axes.get_figure(root=True)
    assert root is not None
    height_in = axes.get_position().height * float(root.get_size_inches()[1])
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.42 / height_in),
            ncols=5 if len(handles) <= 10 else 6,
            fontsize=8,
            frameon=False,
            markerscale=1.6,
        )
