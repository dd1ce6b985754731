"""Figure: which share of each cohort had its first token by when, with exact bands and the SLA. Plain data in.

The axis of shares is stretched towards 1, since promises are made of the last per cent.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drills import stats
from drills.report.figures import WIDTH_IN, log_seconds, plain

#: A curve is drawn through at most so many of its values, denser towards its end.
RANKS_MAX = 400
#: With fewer requests than these a band says nothing.
BAND_MIN = 20
#: cohort → colour (Okabe-Ito), dash, and how thick
LINES: dict[str, tuple[str, Any, float]] = {
    "baseline": ("#0072B2", (0, (5, 2)), 1.4),
    "caught": ("#000000", (0, (1, 1.2)), 1.2),
    "fault": ("#D55E00", "-", 2.0),
}
_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)


@dataclass(frozen=True)
class Cohort:
    """Times to first token of those who got one (seconds, ascending), and the number of all of them."""

    name: str
    ordered: Sequence[float]
    n: int

    def share_by(self, bound_s: float) -> float:
        """Return the share that had its first token by then."""
        return bisect_right(self.ordered, bound_s) / self.n if self.n else 0.0


def stretched(share: float) -> float:
    """Return where a share lies on the axis: 0 at 0, 1 at 90 %, 2 at 99 %."""
    return -math.log10(max(1.0 - share, 1e-9))


def ranks(n: int, most: int = RANKS_MAX) -> list[int]:
    """Return ranks (1-based) to draw through: all of few, else evenly along the stretched axis."""
    if n <= most:
        return list(range(1, n + 1))
    end = math.log10(n)
    found = {n - round(n * 10 ** (-end * step / (most - 1))) + 1 for step in range(most)}
    return sorted(rank for rank in found | {1, n} if 1 <= rank <= n)


@plain
def ecdf(cohorts: Sequence[Cohort], sla_s: float | None, quantile: float) -> Figure:
    """Return the shares that had their first token by then, a curve for each cohort."""
    figure = Figure(figsize=(WIDTH_IN, 4.1))
    axes = figure.subplots(1, 1)
    figure.subplots_adjust(left=0.105, right=0.985, top=0.97, bottom=0.235)
    shown = [cohort for cohort in cohorts if cohort.n]
    top = max((stretched(1.0 - 1.0 / (2 * cohort.n)) for cohort in shown), default=2.0)
    for cohort in shown:
        _curve(axes, cohort, top)
    if sla_s is not None:
        axes.axvline(sla_s, color="#333333", linestyle=(0, (6, 3)), linewidth=1.0, gid="sla-ttft", zorder=3,
                     label=f"promised: {100 * quantile:.10g} % by {sla_s:g} s")  # fmt: skip
        axes.plot([sla_s], [stretched(quantile)], marker="D", color="#333333", markersize=6, linestyle="", zorder=5,
                  gid="promise")  # fmt: skip
        axes.axhline(stretched(quantile), color="#333333", linestyle=(0, (6, 3)), linewidth=0.6, zorder=1)
    _dress(axes, max(top, stretched(quantile)) * 1.06)
    return figure


def _curve(axes: Axes, cohort: Cohort, top: float) -> None:
    colour, dash, width = LINES.get(cohort.name, ("#777777", "-", 1.0))
    chosen = ranks(len(cohort.ordered))
    times = [max(float(cohort.ordered[rank - 1]), 1e-4) for rank in chosen]
    failed = cohort.n - len(cohort.ordered)
    heights = [min(stretched(rank / cohort.n), top) for rank in chosen]
    label = f"{cohort.name} ({cohort.n:,}" + (f", {failed:,} got none)" if failed else ")")
    axes.step([times[0], *times] if times else [], [0.0, *heights] if times else [], where="post", color=colour,
              linestyle=dash, linewidth=width, label=label, gid=f"cohort-{cohort.name}", zorder=4)  # fmt: skip
    if cohort.n >= BAND_MIN and times:
        bands = [stats.share_interval(rank, cohort.n) for rank in chosen]
        low, high = ([min(stretched(band[end]), top * 1.06) for band in bands] for end in (0, 1))
        axes.fill_between(times, low, high, step="post", facecolor=colour, alpha=0.16, linewidth=0,
                          gid=f"band-{cohort.name}", zorder=2)  # fmt: skip


def _dress(axes: Axes, top: float) -> None:
    axes.set_xscale("log")
    log_seconds(axes.xaxis)
    axes.set_ylim(0, top)
    shown = [share for share in _TICKS if stretched(share) <= top]
    axes.set_yticks([stretched(share) for share in shown], [f"{100 * share:.10g} %" for share in shown])
    axes.grid(axis="y", color="#d0d0d0", linewidth=0.5, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.set_ylabel("had their first token by then")
    axes.set_xlabel("time to first token from the intended start", fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, fontsize=8, frameon=False)
