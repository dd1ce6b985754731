"""automation: what is set up for a hot GPU did act when one got hot: load was shed, or the replica moved.

Nobody makes a GPU hot for this, so in most runs there is nothing to judge. Where one rises above the target's
`hot_above` while it is watched, its replica must get less to do (`shed`), or serve from another GPU (`move`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from drills.checks.base import NO_INJECTION, Check
from drills.checks.measures import seconds
from drills.checks.watching import GPU_GAP_S, replicas, watches_gpus
from drills.evidence import Evidence, at
from drills.model import CheckResult, Event, Json, Verdict
from drills.params import Duration, Params, Share
from drills.strictjson import is_number

#: Over which what reaches a replica is counted, and how far two such looks are apart.
WINDOW_S, STEP_S = 10.0, 1.0
#: Fewer attempts in such a window, before it got hot, swing too much to see a fall in them.
MIN_N = 20
_WORST = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)


class AutomationParams(Params):
    """within: from the look that saw it hot; max_left: of what reached the replica before, what may still reach it."""

    within: Duration = 30.0
    max_left: Share = 0.5


@dataclass(frozen=True)
class Hot:
    """A GPU that got hot: when the last look saw it cool and the first saw it hot, mono seconds, and of whom it is."""

    gpu: str
    replica: str
    cool: float
    hot: float
    highest_c: float


class Automation(Check[AutomationParams]):
    """Judged only where a temperature really rises; not judged, with the reason, everywhere else."""

    name = "automation"
    Params = AutomationParams

    @classmethod
    def judge(cls, ev: Evidence, params: AutomationParams) -> CheckResult:
        """Find the GPUs that got hot, and when something was done about each."""
        declared = ev.plan["target"].get("automation")
        if ev.t_inject is None:
            return cls.unclear(NO_INJECTION)
        if not isinstance(declared, dict):
            return cls.result(Verdict.NOT_JUDGED, "the target declares no automation for hot GPUs")
        if not watches_gpus(ev):
            return cls.result(Verdict.NOT_JUDGED, "no GPU is watched at this target")
        above_c = float(declared["hot_above"])
        series = temperatures(ev)
        found = [hot for gpu, seen in sorted(series.items()) if (hot := _rise(ev, gpu, seen, above_c)) is not None]
        if not found:
            return cls.result(Verdict.NOT_JUDGED, _never(series, above_c), bound=params.within, unit="s")
        rows = [cls._one(ev, params, str(declared["acts_by"]), hot) for hot in found]
        return min(rows, key=lambda row: (_WORST.index(row.verdict), -float(row.value or 0.0)))

    @classmethod
    def _one(cls, ev: Evidence, params: AutomationParams, by: str, hot: Hot) -> CheckResult:
        """Judge what was done about one GPU."""
        row: Json = {"bound": params.within, "unit": "s", "detail": _told(hot, by)}
        if hot.hot - hot.cool > GPU_GAP_S:
            return cls.unclear(f"nobody looked at {hot.gpu} for {hot.hot - hot.cool:.0f} s before it was hot", **row)
        acted = _moved(ev, hot) if by == "move" else _shed(ev, hot, params.max_left)
        if isinstance(acted, str):
            return cls.unclear(acted, **row)
        where = f"{hot.replica}: its GPU rose to {hot.highest_c:g} C"
        what = "the replica served from another GPU" if by == "move" else "what reached it fell"
        if acted is None:
            watched_s = ev.ended - hot.hot
            late = watched_s >= params.within
            missing = "it served from no other GPU" if by == "move" else "what reached it did not fall"
            said = f"{where}, and {missing} within {min(watched_s, params.within):.0f} s"
            return cls.result(Verdict.FAIL if late else Verdict.INCONCLUSIVE, said, **row)
        took_s = max(0.0, acted - hot.hot)
        verdict = Verdict.PASS if took_s <= params.within else Verdict.FAIL
        row |= {"value": seconds(took_s), "interval": (seconds(took_s), seconds(max(0.0, acted - hot.cool)))}
        return cls.result(verdict, f"{where}, and {what} after {took_s:.1f} s", **row)


# ---- who got hot ---------------------------------------------------------------------------------------


def temperatures(ev: Evidence) -> dict[str, list[tuple[float, float]]]:
    """Return (mono, degrees Celsius) of each look at the GPUs that replicas hold, while the load was on."""
    began, held = ev.last("load.started"), holders(ev)
    found: dict[str, list[tuple[float, float]]] = {}
    for sample in ev.samples if began else ():
        gpus = sample["values"].get("gpus") if sample["probe"] == "gpu" and sample["ok"] else None
        inside = began is not None and began.mono <= sample["mono"] <= ev.ended
        for uuid, gpu in gpus.items() if inside and isinstance(gpus, dict) else ():
            degrees: Any = gpu.get("temperature_c") if isinstance(gpu, dict) else None
            if uuid in held and is_number(degrees):
                found.setdefault(str(uuid), []).append((float(sample["mono"]), float(degrees)))
    return {uuid: sorted(seen) for uuid, seen in found.items()}


def holders(ev: Evidence) -> dict[str, str]:
    """Return by UUID the replica that held a GPU first in this run."""
    told: list[tuple[float, Json]] = [(at(e), e.data) for e in ev.of("completion", "replica")]
    told += [(0.0, {"replica": v["name"], "gpus": v.get("gpus")}) for v in ev.victims.values()]
    found: dict[str, str] = {}
    for _, data in sorted(told, key=lambda one: one[0]):
        for uuid in data.get("gpus") or ():
            found.setdefault(str(uuid), str(data["replica"]))
    return found


def _rise(ev: Evidence, gpu: str, seen: list[tuple[float, float]], above_c: float) -> Hot | None:
    """Return when it got hot; None when it never did, or was so from the first look on, which is no rise."""
    first = next((n for n, (_, degrees) in enumerate(seen) if degrees > above_c), None)
    if not first:
        return None
    highest_c = max(degrees for _, degrees in seen)
    return Hot(gpu, holders(ev)[gpu], cool=seen[first - 1][0], hot=seen[first][0], highest_c=highest_c)


def _never(series: dict[str, list[tuple[float, float]]], above_c: float) -> str:
    """Say why there was nothing to judge."""
    if not series:
        return "no GPU of a replica told its temperature"
    highest_c = max(degrees for seen in series.values() for _, degrees in seen)
    if highest_c > above_c:
        return f"a GPU was above {above_c:g} C at the first look already: it did not rise in this run"
    return f"no GPU rose above {above_c:g} C in this run, the highest was {highest_c:g} C"


def _told(hot: Hot, by: str) -> Json:
    return {"replica": hot.replica, "gpu": hot.gpu, "highest_c": hot.highest_c, "acts_by": by}


# ---- what was done about it ----------------------------------------------------------------------------


def _moved(ev: Evidence, hot: Hot) -> float | None:
    """Return when a replica in the place of the hot one first answered from another GPU; None when none did."""
    before = set(replicas(ev))
    gone = [at(e) for e in _of(ev, hot, "replica") if e.data.get("change") == "gone"]
    same = [at(e) for e in _of(ev, hot, "completion") if _good(e) and hot.gpu not in e.data["gpus"]]
    new = [at(e) for e in ev.of("completion") if at(e) > hot.cool and e.data.get("replica") not in before and _good(e)]
    if gone and new:
        same.append(max(min(gone), min(new)))
    return min(same, default=None)


def _of(ev: Evidence, hot: Hot, name: str) -> Iterator[Event]:
    return (e for e in ev.of(name) if e.data.get("replica") == hot.replica and at(e) > hot.cool)


def _good(event: Event) -> bool:
    return bool(event.data.get("ok") and event.data.get("gpus"))


def _shed(ev: Evidence, hot: Hot, max_left: float) -> float | str | None:
    """Return when what reaches the replica had fallen, as the begin of the first window in which it has.

    None when it did not fall; a sentence when that cannot be told.
    """
    began = ev.last("load.started")
    if not ev.has_ledger or began is None:
        return "no ledger tells what reached the hot replica"
    mine = ev.ledger.filter(pl.col("replica") == hot.replica)["start"].to_list()
    usual = _count(mine, began.mono, hot.cool) * WINDOW_S / max(WINDOW_S, hot.cool - began.mono)
    if usual < MIN_N:
        few = f"{usual:.0f} attempts in {WINDOW_S:g} s reached {hot.replica} before its GPU was hot"
        return f"{few}; {MIN_N} are needed to see them fall"
    begin = hot.cool
    while begin + WINDOW_S <= ev.ended:
        if _count(mine, begin, begin + WINDOW_S) <= max_left * usual:
            return begin
        begin += STEP_S
    return None


def _count(starts: list[Any], begin: float, end: float) -> int:
    return sum(begin <= start < end for start in starts)
