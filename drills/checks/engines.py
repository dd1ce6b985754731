"""What the engines told of themselves while the run watched: their counters by replica, restarts taken into account."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from drills.checks.watching import PROBE_GAP_S, away, blind, replicas
from drills.evidence import Evidence
from drills.lang import t
from drills.strictjson import is_number

#: A counter is read once a second; a window that begins or ends further from a reading cannot be told.
READING_GAP_S = 5.0


@dataclass(frozen=True)
class Counter:
    """One counter of one engine: how much it rose since its first reading, at each reading (mono seconds)."""

    times: Sequence[float]
    totals: Sequence[float]

    def rise(self, begin: float, end: float) -> float | None:
        """Return by how much it rose in that time; None when it was not read close to both ends, or only once."""
        first, last = max(0, bisect_right(self.times, begin) - 1), bisect_right(self.times, end) - 1
        if last <= first:
            return None
        if abs(self.times[first] - begin) > READING_GAP_S or end - self.times[last] > READING_GAP_S:
            return None
        return self.totals[last] - self.totals[first]


def counter(ev: Evidence, replica: str, name: str) -> Counter:
    """Return a counter of a replica by our name for it; without readings where it was not found.

    After a restart it counts from 0 again: what it then shows has risen since. What it counted between the last
    reading and a crash is lost.
    """
    times: list[float] = []
    totals: list[float] = []
    before: tuple[float, object] | None = None
    for sample in ev.looks("vllm", replica):
        if not sample["ok"]:
            continue
        value, started = number(sample["values"].get(name)), sample["values"].get("started")
        if value is None or value < 0:
            continue
        again = before is not None and (value < before[0] or started != before[1])
        risen = 0.0 if before is None else value if again else value - before[0]
        times.append(float(sample["mono"]))
        totals.append((totals[-1] if totals else 0.0) + risen)
        before = (value, started)
    return Counter(times, totals)


def rise(ev: Evidence, replicas: Sequence[str], name: str, begin: float, end: float) -> float | None:
    """Return by how much a counter rose in all these replicas together; None when none of them tells it.

    A replica that is not there for a part of the time counts with what it told.
    """
    found = [inside(counter(ev, replica, name), begin, end) for replica in replicas]
    known = [read[2] for read in found if read is not None]
    return sum(known) if known else None


def inside(series: Counter, begin: float, end: float) -> tuple[float, float, float] | None:
    """Return the first and the last reading's time in that stretch, and the rise between them."""
    first, last = bisect_left(series.times, begin), bisect_right(series.times, end) - 1
    if last <= first:
        return None
    return series.times[first], series.times[last], series.totals[last] - series.totals[first]


def unread(ev: Evidence, names: Sequence[str], name: str, begin: float, end: float) -> str:
    """Say whose value was not read, or not often enough, in that time; empty when all of them told it.

    While a replica is away it has nothing to tell.
    """
    for replica in names:
        read = counter(ev, replica, name).times
        low, high = blind(read, begin, end, away(ev, replica))
        if not any(begin <= mono <= end for mono in read):
            return t("{replica} never told it", replica=replica)
        if high - low > PROBE_GAP_S:
            return t(
                "{subject} did not tell it for {seconds:.0f} s, {allowed:g} s may be",
                subject=replica,
                seconds=high - low,
                allowed=PROBE_GAP_S,
            )
    return "" if names else t("there is no engine to tell it")


def primaries(ev: Evidence) -> list[str]:
    """Return the replicas that were there or were scraped, and are not fallbacks."""
    seen = {str(sample.get("subject")) for sample in ev.samples if sample["probe"] == "vllm"}
    return sorted(seen.union(replicas(ev, "primary")) - set(replicas(ev, "fallback")))


def number(value: object) -> float | None:
    """Return a finite number that a probe wrote; None for anything else."""
    return float(value) if isinstance(value, int | float) and is_number(value) else None


def found_as(ev: Evidence, *names: str) -> str:
    """Return the names by which the engines have these values, as the journal tells them; empty when it does not."""
    told = {
        event.data["names"][name] for event in ev.of("metrics.names") for name in names if name in event.data["names"]
    }
    return ", ".join(sorted(told))
