"""Times that several checks and the report need: failover, restart, recovery, and the split of a downtime."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from drills import stats
from drills.evidence import Evidence, at
from drills.lang import spoken, t
from drills.model import Event, Json, Outcome
from drills.strictjson import is_number

WINDOW_S = 10.0  # of the band; one window holds enough requests for a rate
STEP_S = 1.0
SERVED_SHARE = 0.95
#: Below this many arrivals a window cannot tell a violation rate of some per cent.
WINDOW_MIN_N = 30


# ---- failover -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failover:
    """How long arrivals were still hurt by the victims, in seconds from the injection."""

    value_s: float
    affected: int
    n: int
    last_arrival: int | None


def failover(ev: Evidence) -> Failover | None:
    """Measure from the injection to the last later arrival that the fault hurt: late, failed, or answered degraded.

    Degraded is good enough for availability, but that traffic did not move to another replica. Because of the
    fault: an attempt of it is in the ledger of a victim, or none is in any primary's, or the first one starts later
    than the TTFT SLA after it was sent (a cut link lies in front of the ledger).
    """
    return ev.once("failover", lambda: _failover(ev))


def _failover(ev: Evidence) -> Failover | None:
    hit = ev.t_inject
    if hit is None:
        return None
    worse = ev.watched.filter(pl.col("violation") | (pl.col("outcome") == Outcome.DEGRADED.value))
    attempts = (
        ev.ledger.filter(pl.col("role") == "primary")
        .join(worse, on="arrival", how="semi")
        .group_by("arrival")
        .agg(
            pl.col("start").min().alias("first_attempt"),
            pl.col("replica").is_in(list(ev.victims)).any().alias("on_victim"),
        )
    )
    late = pl.col("first_attempt") - pl.col("sent") > ev.sla.ttft.value_s
    affected = (
        worse.join(attempts, on="arrival", how="left")
        .filter(pl.col("on_victim").fill_null(value=False) | pl.col("first_attempt").is_null() | late)
        .sort("intended", "arrival")
    )
    if affected.is_empty():
        return Failover(0.0, 0, ev.watched.height, None)
    last = affected.row(-1, named=True)
    return Failover(last["intended"] - hit, affected.height, ev.watched.height, last["arrival"])


# ---- restart ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restart:
    """One incarnation of a victim after the injection, as far as it came."""

    started: Event
    ready: Event | None
    completion: Event | None
    gone: Event | None  # it did not stay

    @property
    def by(self) -> str | None:
        """Return who started it: supervisor, controller, drill, or None where nobody said."""
        return self.started.data.get("by")

    @property
    def complete(self) -> bool:
        """Whether it is ready, has answered a real completion, and stayed."""
        return self.ready is not None and self.completion is not None and self.gone is None

    @property
    def served(self) -> float | None:
        """Return when it was both ready and had answered (mono), None before."""
        return max(at(self.ready), at(self.completion)) if self.ready and self.completion else None

    def events(self) -> tuple[int, ...]:
        """Return the journal lines it rests on."""
        return tuple(e.n for e in (self.started, self.ready, self.completion, self.gone) if e is not None)


def restart(ev: Evidence, victim: str) -> Restart | None:
    """Return the first new incarnation of a victim that is complete, else the one that came last; None without any."""
    found = list(_restarts(ev, victim))
    whole = next((incarnation for incarnation in found if incarnation.complete), None)
    return whole or (found[-1] if found else None)


def _restarts(ev: Evidence, victim: str) -> Iterator[Restart]:
    hit, pinned = ev.t_inject, ev.victims.get(victim, {})
    if hit is None:
        return
    seen: set[tuple[object, ...]] = {_identity(pinned, start="pid_start")}
    life = [e for e in ev.of("replica", "completion") if e.data.get("replica") == victim and at(e) >= hit]
    for event in life:
        identity = _identity(event.data)
        if event.event != "replica" or event.data.get("change") != "started" or identity in seen:
            continue
        seen.add(identity)
        mine = [e for e in life if at(e) >= at(event) and _same(e.data, event.data)]
        ready = (e for e in mine if e.event == "replica" and e.data.get("change") == "ready")
        served = (e for e in mine if e.event == "completion" and e.data.get("ok"))
        gone = (e for e in mine if e.event == "replica" and e.data.get("change") == "gone" and at(e) <= ev.ended)
        yield Restart(event, next(ready, None), next(served, None), next(gone, None))


def _identity(data: Json, start: str = "start") -> tuple[object, ...]:
    return data.get("uid"), data.get("pid"), data.get(start)


def _same(data: Json, started: Json) -> bool:
    """Whether an event is of that very incarnation; a completion says it by `served_by_uid` (and pid)."""
    uid = data.get("served_by_uid") if "served_by_uid" in data else data.get("uid")
    pids = {pid for pid in (data.get("pid"), started.get("pid")) if pid is not None}
    return uid is not None and uid == started.get("uid") and len(pids) <= 1


# ---- recovery -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recovery:
    """When traffic came back into its band, in seconds from `since` (mono)."""

    since: float
    value_s: float | None  # None: not as long as was watched
    watched_s: float
    band: float  # largest violation rate in band
    windows: int
    reason: str = ""  # why nothing can be said


def recovery(ev: Evidence) -> Recovery | None:
    """Find the first time after which every window stays in band for as long as was watched."""
    return ev.once(f"recovery {spoken()}", lambda: _recovery(ev))


def _recovery(ev: Evidence) -> Recovery | None:
    since = ev.t_off
    if since is None:
        return None
    baseline = ev.cohort("baseline")
    bad_before = int(baseline["violation"].sum())
    band = max(ev.sla.errors, stats.upper_bound(bad_before, baseline.height))
    windows = list(_windows(ev, since, band))
    return Recovery(
        since,
        _last_bad_step(windows),
        max(0.0, ev.ended - since),
        band,
        len(windows),
        t("there is no baseline to come back to") if baseline.is_empty() else _too_thin(windows),
    )


def never_out(ev: Evidence) -> bool:
    """Whether every window from the injection to the end of the load was in band, so that nothing had to come back."""
    return ev.once("never out", lambda: _never_out(ev))


def _never_out(ev: Evidence) -> bool:
    back, hit = recovery(ev), ev.t_inject
    if back is None or back.reason or hit is None:
        return False
    windows = list(_windows(ev, hit, back.band))
    return bool(windows) and all(window.in_band for window in windows)


@dataclass(frozen=True)
class _Window:
    offset_s: float
    n: int
    in_band: bool


def _windows(ev: Evidence, since: float, band: float) -> Iterator[_Window]:
    """Slide over arrivals by intended start, from `since` to the end of the load."""
    times, bad, good = ev.once("watched, summed", lambda: _summed(ev))
    step = 0
    while since + step * STEP_S + WINDOW_S <= ev.ended:
        offset = step * STEP_S
        low, high = bisect_left(times, since + offset), bisect_left(times, since + offset + WINDOW_S)
        n = high - low
        steady = n > 0 and (bad[high] - bad[low]) / n <= band and (good[high] - good[low]) / n >= SERVED_SHARE
        yield _Window(offset, n, steady)
        step += 1


def _summed(ev: Evidence) -> tuple[Sequence[float], Sequence[int], Sequence[int]]:
    """Return the intended starts in order, and how many violations and good answers there were before each."""
    frame = ev.watched.select("intended", "violation", "good").sort("intended")
    bad, good = (array("q", [0, *frame[name].cast(pl.Int64).cum_sum()]) for name in ("violation", "good"))
    return array("d", frame["intended"]), bad, good


def _last_bad_step(windows: list[_Window]) -> float | None:
    """Return the offset of the first window of the steady tail; None when the last one is not in band."""
    offset: float | None = None
    for window in reversed(windows):
        if not window.in_band:
            break
        offset = window.offset_s
    return offset


def _too_thin(windows: list[_Window]) -> str:
    if not windows:
        return t("watched for less than one window of {seconds:g} s", seconds=WINDOW_S)
    mean = sum(window.n for window in windows) / len(windows)
    if mean < WINDOW_MIN_N or not all(window.n for window in windows):
        return t(
            "too few arrivals to see a rate: {n:.0f} in {seconds:g} s, {needed} are needed in each",
            n=mean,
            seconds=WINDOW_S,
            needed=WINDOW_MIN_N,
        )
    return ""


# ---- the split ----------------------------------------------------------------------------------------


def split(ev: Evidence) -> Json:
    """Return detect → reroute → reschedule → ready → first good completion → back in band, seconds from the injection.

    The slowest victim counts; None where it was not seen.
    """
    hit = ev.t_inject
    if hit is None:
        return {}
    restarts = [restart(ev, victim) for victim in ev.victims]
    moved, back = failover(ev), recovery(ev)

    def slowest(moments: list[float | None]) -> float | None:
        known = [m for m in moments if m is not None]
        return seconds(max(known) - hit) if known and len(known) == len(ev.victims) else None

    in_band = back.since + back.value_s if back and back.value_s is not None and not back.reason else None
    return {
        "detect_s": _detected(ev),
        "reroute_s": seconds(moved.value_s) if moved else None,
        "reschedule_s": slowest([at(r.started) if r else None for r in restarts]),
        "ready_s": slowest([at(r.ready) if r and r.ready else None for r in restarts]),
        "first_completion_s": slowest([at(r.completion) if r and r.completion else None for r in restarts]),
        "in_band_s": seconds(in_band - hit) if in_band is not None else None,
    }


def seconds(value: float) -> float:
    """Return seconds to the microsecond, so that the same files give the same digits."""
    return round(value, 6)


def _detected(ev: Evidence) -> float | None:
    """Return when the router first counted fewer healthy workers than before the injection."""
    hit = ev.t_inject
    counts = [
        (sample["mono"], healthy)
        for sample in ev.samples
        if sample.get("probe") == "router" and sample.get("ok") and (healthy := _healthy(sample["values"])) is not None
    ]
    before = [healthy for mono, healthy in counts if hit is not None and mono < hit]
    if hit is None or not before:
        return None
    fewer = next((mono for mono, healthy in counts if mono >= hit and healthy < before[-1]), None)
    return None if fewer is None else seconds(fewer - hit)


def _healthy(values: Json) -> float | None:
    """Return how many workers the router holds for healthy, from whichever of its gauges is there."""
    values = {name: value for name, value in values.items() if is_number(value)}
    if "healthy" in values:
        return float(values["healthy"])
    for suffix in ("_worker_health", "_active_workers"):
        gauges = [float(v) for name, v in values.items() if name.split("{")[0].endswith(suffix)]
        if gauges:
            return sum(gauges)
    return None
