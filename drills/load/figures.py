"""Live figures of the load, for the heartbeat. They guide and stop a run; the verdict reads the records.

Failed requests count as infinitely slow. JSON has no infinity: a quantile is null both when nothing ended
and when it is infinite, and `ended` beside it tells the two apart.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Sequence

from drills.load.record import Record
from drills.model import GOOD, Json

_WINDOW_BEATS = 10


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Return the nearest-rank quantile of ascending values; None without values."""
    return ordered[max(math.ceil(q * len(ordered)), 1) - 1] if ordered else None


def _ms(ordered: Sequence[float], q: float) -> float | None:
    value = quantile(ordered, q)
    return None if value is None or math.isinf(value) else round(value * 1e3, 2)


class Figures:
    """Counts since the begin, and quantiles of the last second and the last ten."""

    def __init__(self) -> None:
        self.drawn = self.sent = self.ended = 0
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.cpu_max = 0.0
        self._beats = 0
        self._lags = array("d")
        self._second = _Second()
        self._window: deque[_Second] = deque(maxlen=_WINDOW_BEATS)

    def draw(self) -> None:
        """Count an arrival whose time has come."""
        self.drawn += 1
        self._second.drawn += 1

    def end(self, record: Record) -> None:
        """Count the end of an arrival."""
        good = record.outcome in GOOD
        self.ended += 1
        self.outcomes[record.outcome.value] += 1
        if record.error is not None:
            self.errors[record.error] += 1
        ttft = record.ttft_s if good else None
        self._second.ttfts.append(math.inf if ttft is None else ttft)
        self._second.bad += not good
        if record.lag is not None:
            self._lags.append(record.lag)
            self._second.lags.append(record.lag)

    def beat(self, now: float, cpu: float) -> Json:
        """Close the current second and return the heartbeat; `cpu` is its share of a core."""
        second, self._second = self._second, _Second()
        second.sort()
        self._window.append(second)
        self._beats += 1
        self.cpu_max = max(self.cpu_max, cpu)
        ttfts = sorted(t for s in self._window for t in s.ttfts)
        lags = sorted(lag for s in self._window for lag in s.lags)
        return {
            "type": "beat",
            "n": self._beats,
            "mono": round(now, 6),
            "drawn": self.drawn,
            "sent": self.sent,
            "ended": self.ended,
            "open": self.drawn - self.ended,
            "outcomes": dict(self.outcomes),
            "errors": dict(self.errors),
            "lag_p99_ms": _ms(lags, 0.99),
            "cpu": round(cpu, 4),
            "second": {
                "drawn": second.drawn,
                "ended": len(second.ttfts),
                "bad": second.bad,
                "ttft_p50_ms": _ms(second.ttfts, 0.5),
                "ttft_p99_ms": _ms(second.ttfts, 0.99),
            },
            "ttft_p50_ms": _ms(ttfts, 0.5),
            "ttft_p99_ms": _ms(ttfts, 0.99),
        }

    def final(self, records: int) -> Json:
        """Return the last message; `lag_p99_ms` is over the whole load."""
        return {
            "type": "final",
            "drawn": self.drawn,
            "records": records,
            "outcomes": dict(self.outcomes),
            "errors": dict(self.errors),
            "lag_p99_ms": _ms(sorted(self._lags), 0.99),
            "cpu_max": round(self.cpu_max, 4),
        }


class _Second:
    """What happened in one second."""

    def __init__(self) -> None:
        self.drawn = self.bad = 0
        self.ttfts: list[float] = []
        self.lags: list[float] = []

    def sort(self) -> None:
        # Sorted runs make the sort over ten of them nearly free.
        self.ttfts.sort()
        self.lags.sort()
