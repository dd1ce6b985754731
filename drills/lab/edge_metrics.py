"""What users saw, counted where they stand: the edge's /metrics in the Prometheus text format.

A request without a first token counts in the +Inf bucket of `edge_ttft_seconds`, one without a complete answer in
that of `edge_e2e_seconds`; neither adds to `_sum`. A user who left early is counted there only when the SLA had
passed already: before that nobody knows how long it would have taken.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

_TTFT_S = (0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_E2E_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 15.0, 30.0, 60.0)

#: (outcome, answer) of every way a request can end; all are there from the start, at 0.
ENDS = (("ok", "primary"), ("degraded", "fallback"), ("degraded", "cached"), ("error", "none"), ("cancelled", "none"))


class Histogram:
    """A histogram with cumulative buckets."""

    def __init__(self, name: str, about: str, edges_s: Iterable[float]) -> None:
        self.name, self.about = name, about
        self.edges_s: Sequence[float] = sorted(set(edges_s))
        self.counts = [0] * (len(self.edges_s) + 1)
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count one value; inf is a failure."""
        self.counts[bisect_left(self.edges_s, value_s)] += 1
        if value_s < math.inf:
            self.sum_s += value_s

    def lines(self) -> list[str]:
        """Return the exposition."""
        lines, total = _about(self.name, "histogram", self.about), 0
        for edge, count in zip([*(repr(float(edge)) for edge in self.edges_s), "+Inf"], self.counts, strict=True):
            total += count
            lines.append(f'{self.name}_bucket{{le="{edge}"}} {total}')
        return [*lines, f"{self.name}_sum {self.sum_s!r}", f"{self.name}_count {total}"]


class Metrics:
    """All metrics of one edge."""

    def __init__(self, sla_ttft_s: float) -> None:
        self.sla_ttft_s = sla_ttft_s
        self.in_flight = 0
        self.requests: Counter[tuple[str, ...]] = Counter()
        self.errors: Counter[tuple[str, ...]] = Counter()
        self.client_errors: Counter[tuple[str, ...]] = Counter()
        self.abandoned: Counter[tuple[str, ...]] = Counter()
        edges_s = (*_TTFT_S, sla_ttft_s, round(1.5 * sla_ttft_s, 6))
        self.ttft = Histogram("edge_ttft_seconds", "Time to first token as users see it; failures in +Inf.", edges_s)
        self.e2e = Histogram("edge_e2e_seconds", "Time to the complete answer; failures in +Inf.", _E2E_S)
        for end in ENDS:
            self.requests[end] = 0

    def text(self) -> str:
        """Return the exposition."""
        lines = [
            *_counter("edge_requests_total", "Requests by how they ended.", ("outcome", "answer"), self.requests),
            *_counter("edge_errors_total", "Requests that ended in error, by reason.", ("reason",), self.errors),
            *_counter(
                "edge_client_errors_total",
                "Requests refused for what was asked; not in edge_requests_total.",
                ("status",),
                self.client_errors,
            ),
            *_counter(
                "edge_abandoned_total",
                "Answers given up before their first token.",
                ("answer", "reason"),
                self.abandoned,
            ),
            *self.ttft.lines(),
            *self.e2e.lines(),
            *_about("edge_in_flight", "gauge", "Requests that are open."),
            f"edge_in_flight {self.in_flight}",
        ]
        return "\n".join(lines) + "\n"


def _about(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _counter(name: str, about: str, labels: tuple[str, ...], counts: Counter[tuple[str, ...]]) -> list[str]:
    lines = _about(name, "counter", about)
    for values, count in sorted(counts.items()):
        pairs = ",".join(f'{label}="{value}"' for label, value in zip(labels, values, strict=True))
        lines.append(f"{name}{{{pairs}}} {count}")
    return lines
