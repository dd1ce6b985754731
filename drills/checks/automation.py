"""automation: what is set up for a hot GPU did act when one got hot: load was shed, or the replica moved.

Nobody makes a GPU hot for this, so in most runs there is nothing to judge. Where one rises above the target's
`hot_above` while it is watched, its replica must get less to do (`shed`), or serve from another GPU (`move`). What the
drill itself brings about is no automation: a victim is watched until it is hit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from drills.checks.base import NO_INJECTION, Check, of_replica
from drills.checks.measures import seconds
from drills.checks.watching import GPU_GAP_S, replicas, watches_gpus
from drills.evidence import Evidence, at
from drills.lang import t
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
            return cls.unclear(t(NO_INJECTION))
        if not isinstance(declared, dict):
            return cls.result(Verdict.NOT_JUDGED, t("the target declares no automation for hot GPUs"))
        if not watches_gpus(ev):
            return cls.result(Verdict.NOT_JUDGED, t("no GPU is watched at this target"))
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
            unseen = t(
                "nobody looked at {gpu} for {seconds:.0f} s before it was hot", gpu=hot.gpu, seconds=hot.hot - hot.cool
            )
            return cls.unclear(unseen, **row)
        end = watched_until(ev, hot.replica)
        if end <= hot.cool:
            why = t("the drill had hit it before its GPU was hot, and whatever became of it since may be its doing")
            return cls.unclear(of_replica(hot.replica, why), **row)
        acted = _moved(ev, hot, end) if by == "move" else _shed(ev, hot, params.max_left, end)
        if isinstance(acted, str):
            return cls.unclear(acted, **row)
        if acted is None:
            watched_s = max(0.0, end - hot.hot)
            late = watched_s >= params.within
            said = _idle(hot, by, min(watched_s, params.within))
            if not late and end != ev.ended:
                said = t("{found}, when the drill hit it", found=said)
            return cls.result(Verdict.FAIL if late else Verdict.INCONCLUSIVE, said, **row)
        took_s = max(0.0, acted - hot.hot)
        verdict = Verdict.PASS if took_s <= params.within else Verdict.FAIL
        row |= {"value": seconds(took_s), "interval": (seconds(took_s), seconds(max(0.0, acted - hot.cool)))}
        return cls.result(verdict, _acted(hot, by, took_s), **row)


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
        return t("no GPU of a replica told its temperature")
    highest_c = max(degrees for seen in series.values() for _, degrees in seen)
    if highest_c > above_c:
        return t(
            "a GPU was above {degrees:g} C at the first look already: it did not rise in this run", degrees=above_c
        )
    return t(
        "no GPU rose above {degrees:g} C in this run, the highest was {highest:g} C", degrees=above_c, highest=highest_c
    )


def _acted(hot: Hot, by: str, took_s: float) -> str:
    if by == "move":
        return t(
            "{replica}: its GPU rose to {highest:g} C, and the replica served from another GPU after {seconds:.1f} s",
            replica=hot.replica,
            highest=hot.highest_c,
            seconds=took_s,
        )
    return t(
        "{replica}: its GPU rose to {highest:g} C, and what reached it fell after {seconds:.1f} s",
        replica=hot.replica,
        highest=hot.highest_c,
        seconds=took_s,
    )


def _idle(hot: Hot, by: str, within_s: float) -> str:
    if by == "move":
        return t(
            "{replica}: its GPU rose to {highest:g} C, and it served from no other GPU within {seconds:.0f} s",
            replica=hot.replica,
            highest=hot.highest_c,
            seconds=within_s,
        )
    return t(
        "{replica}: its GPU rose to {highest:g} C, and what reached it did not fall within {seconds:.0f} s",
        replica=hot.replica,
        highest=hot.highest_c,
        seconds=within_s,
    )


def _told(hot: Hot, by: str) -> Json:
    return {"replica": hot.replica, "gpu": hot.gpu, "highest_c": hot.highest_c, "acts_by": by}


# ---- what was done about it ----------------------------------------------------------------------------


def watched_until(ev: Evidence, replica: str) -> float:
    """Return when the drill itself hit that replica, mono seconds; the end of the load where it never did."""
    hits = [at(e) for e in ev.hits if replica in (e.data["victims"] or ev.victims)]
    return ev.ended if ev.control else min([*hits, ev.ended])


def _moved(ev: Evidence, hot: Hot, end: float) -> float | None:
    """Return when a replica in the place of the hot one first answered from another GPU; None when none did."""
    before = set(replicas(ev))
    gone = [at(e) for e in _of(ev, hot, "replica") if e.data.get("change") == "gone"]
    same = [at(e) for e in _of(ev, hot, "completion") if _good(e) and hot.gpu not in e.data["gpus"]]
    answers = [e for e in ev.of("completion") if at(e) > hot.cool and e.data.get("replica") not in before and _good(e)]
    first = {str(e.data["replica"]): at(e) for e in reversed(answers)}
    new = sorted(first.values())[_replaced(ev) :]  # whoever came first may stand in for a victim
    if gone and new:
        same.append(max(min(gone), new[0]))
    return min((mono for mono in same if mono < end), default=None)


def _replaced(ev: Evidence) -> int:
    """Return how many victims never came back under their own name: others may stand in for them."""
    back = {e.data.get("replica") for e in ev.of("completion") if e.data.get("ok") and at(e) > (ev.t_inject or 0.0)}
    return len(ev.victims.keys() - back)


def _of(ev: Evidence, hot: Hot, name: str) -> Iterator[Event]:
    return (e for e in ev.of(name) if e.data.get("replica") == hot.replica and at(e) > hot.cool)


def _good(event: Event) -> bool:
    return bool(event.data.get("ok") and event.data.get("gpus"))


def _shed(ev: Evidence, hot: Hot, max_left: float, end: float) -> float | str | None:
    """Return when what reaches the replica had fallen, as the begin of the first window in which it has.

    None when it did not fall; a sentence when that cannot be told.
    """
    began = ev.last("load.started")
    if not ev.has_ledger or began is None:
        return t("no ledger tells what reached the hot replica")
    is_hot = pl.col("replica") == hot.replica
    mine = ev.ledger.filter(is_hot)["start"].sort().to_list()
    others = ev.ledger.filter(~is_hot & (pl.col("role") == "primary"))["start"].sort().to_list()

    def usual(starts: list[Any]) -> float:
        return _count(starts, began.mono, hot.cool) * WINDOW_S / max(WINDOW_S, hot.cool - began.mono)

    def left(starts: list[Any], begin: float) -> float:
        return _count(starts, begin, begin + WINDOW_S) / usual(starts) if usual(starts) else 1.0

    if usual(mine) < MIN_N:
        return t(
            "{n:.0f} attempts in {seconds:g} s reached {replica} before its GPU was hot; "
            "{needed} are needed to see them fall",
            n=usual(mine),
            seconds=WINDOW_S,
            replica=hot.replica,
            needed=MIN_N,
        )
    if hot.cool - WINDOW_S >= began.mono and left(mine, hot.cool - WINDOW_S) <= max_left:
        return t("what reached {replica} had fallen before its GPU was hot", replica=hot.replica)
    begin, together = hot.cool, False
    while begin + WINDOW_S <= end:
        if left(mine, begin) <= max_left * min(1.0, left(others, begin)):
            return begin
        together |= left(mine, begin) <= max_left
        begin += STEP_S
    if not together:
        return None
    return t("what reached {replica} fell with what reached all others, which is no shedding", replica=hot.replica)


def _count(starts: list[Any], begin: float, end: float) -> int:
    """Return how many of them, which are sorted, are in that stretch."""
    return bisect_left(starts, end) - bisect_left(starts, begin)
