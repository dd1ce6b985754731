"""health_honest: the endpoint by which a router judges a replica says what completions of that replica say.

Where a controller tells everybody who is ready (Kubernetes), that is a word to be held to as well: Ready, and not one
completion works. The other way round it only waits for its next look, which costs no request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drills.checks.base import NO_INJECTION, Check, allowed, several
from drills.checks.measures import seconds
from drills.checks.watching import Stretch, blind, looks, replicas
from drills.evidence import Evidence
from drills.lang import mark, t
from drills.model import CheckResult, Json, Verdict
from drills.params import Duration, Params

#: Without a look for longer, nothing is known of what was said meanwhile.
LOOK_GAP_S = 5.0
#: Both are asked once a second and answer, or do not, within two: looks further apart have one missing between them.
LOOK_S = 3.5
#: What its controller says of a replica; there is none in the lab.
READINESS = "readiness"


class HealthHonestParams(Params):
    """within: for how long the two may disagree."""

    within: Duration = 5.0


@dataclass(frozen=True)
class _Lie:
    """For how long an endpoint said one thing while completions said the other."""

    replica: str
    said: str  # with whose word it is and how long it was, marked for `t`
    length_s: float
    begin: float

    def told(self) -> str:
        """Return it as a sentence."""
        return t(self.said, replica=self.replica, seconds=self.length_s)


#: Which endpoint of a replica contradicts its completions, and how.
_HEALTHY = mark("{replica}: its health endpoint said 200 while no completion of it worked for {seconds:.1f} s")
_SICK = mark("{replica}: its health endpoint said no while completions of it worked for {seconds:.1f} s")
_READY = mark("{replica}: its readiness probe said Ready while no completion of it worked for {seconds:.1f} s")
#: That one of them was not asked.
_UNASKED = {
    "health": mark("{replica}: its health endpoint was not asked for {seconds:.1f} s"),
    "completion": mark("{replica}: its completions were not asked for {seconds:.1f} s"),
    READINESS: mark("{replica}: its readiness was not asked for {seconds:.1f} s"),
}


class HealthHonest(Check[HealthHonestParams]):
    """The longest disagreement of any replica, in either direction."""

    name = "health_honest"
    Params = HealthHonestParams

    @classmethod
    def window_s(cls, params: HealthHonestParams) -> float:
        """Return `within`."""
        return params.within

    @classmethod
    def judge(cls, ev: Evidence, params: HealthHonestParams) -> CheckResult:
        """Compare the probes `health` and `completion` of each replica from the injection on."""
        hit = ev.t_inject
        if hit is None:
            return cls.unclear(t(NO_INJECTION))
        if not any(s["probe"] == "health" for s in ev.samples):
            return cls.unclear(t("no health endpoint was asked"))
        names = sorted({str(s.get("subject")) for s in ev.samples if s["probe"] == "health"}.union(replicas(ev)))
        stopped = {name: silent for name in names if (silent := _longest(_failing(ev, name)))}
        lies = [lie for name in names for lie in _lies(ev, name)]
        worst = max(lies, key=lambda lie: lie.length_s, default=None)
        value = seconds(worst.length_s) if worst else 0.0
        detail: Json = {
            "replicas": {name: _told(ev, name) for name in names},
            "not_completing_s": {name: seconds(silent) for name, silent in sorted(stopped.items())},
            "endpoints": sorted(
                {
                    e
                    for probe in ("health", READINESS)
                    for s in _samples(ev, probe)
                    if isinstance(e := s["values"].get("endpoint"), str)
                }
            ),
        }
        row = {"bound": params.within, "unit": "s", "n": len(names), "value": value, "detail": detail}
        if worst and worst.length_s > params.within:
            return cls.result(Verdict.FAIL, allowed(worst.told(), params.within), **row)
        if unseen := next(filter(None, (_unseen(ev, name, hit, params.within) for name in names)), ""):
            return cls.unclear(unseen, **row)
        proven = [name for name, silent in stopped.items() if silent > params.within]
        if not proven:
            return cls.unclear(t("no replica stopped answering for as long as that: nothing could lie"), **row)
        agreed = t(
            "{names} stopped answering, and the health endpoints said so; at most {seconds:.1f} s of disagreement",
            names=several(sorted(proven)),
            seconds=value,
        )
        return cls.result(Verdict.PASS, agreed, **row)


def _unseen(ev: Evidence, name: str, hit: float, within: float) -> str:
    """Say where a disagreement could hide because one of the two was not asked; empty where none could."""
    asked = {"health": looks(ev, "health", name), "completion": looks(ev, "completion", name, ok=False)}
    if told := looks(ev, READINESS, name):
        asked[READINESS] = told
    for probe, times in asked.items():
        low, high = blind(times, hit, ev.ended)
        if high - low > min(LOOK_GAP_S, max(within, LOOK_S)):
            return t(_UNASKED[probe], replica=name, seconds=high - low)
    for lie in _lies(ev, name):
        longest = max(_with_gaps(lie, times, ev.ended) for times in asked.values())
        if longest > within:
            said = t(
                "{found}, and nobody looked right beside it: it may have been {seconds:.1f} s",
                found=lie.told(),
                seconds=longest,
            )
            return allowed(said, within)
    return ""


def _with_gaps(lie: _Lie, times: Sequence[float], ended: float) -> float:
    """Return how long a disagreement may have been: a look that is missing next to it counts against honesty."""
    begin, end = lie.begin, lie.begin + lie.length_s
    before = max((mono for mono in times if mono < begin), default=begin)
    first = min((mono for mono in times if mono >= begin), default=ended)
    last = max((mono for mono in times if mono <= end), default=begin)
    after = min((mono for mono in times if mono > end), default=ended)
    return (after if after - last > LOOK_S else end) - (before if first - before > LOOK_S else begin)


def _samples(ev: Evidence, probe: str, subject: str | None = None) -> list[Json]:
    """Return what a probe measured from the injection on; of completions also the failures, which are what counts."""
    return [
        s
        for s in ev.looks(probe, subject)
        if (s["ok"] or probe == "completion") and (ev.t_inject or 0.0) <= s["mono"] <= ev.ended
    ]


def _failing(ev: Evidence, name: str) -> list[Stretch]:
    return list(_runs([(s["mono"], not s["ok"]) for s in _samples(ev, "completion", name)]))


def _longest(stretches: Sequence[Stretch]) -> float:
    return max((end - begin for begin, end in stretches), default=0.0)


def _lies(ev: Evidence, name: str) -> Iterator[_Lie]:
    """Yield each time in which endpoint and completions contradict each other."""
    said = [(float(s["mono"]), s["values"].get("status") == 200) for s in _samples(ev, "health", name)]
    healthy, sick = list(_runs(said)), list(_runs([(mono, not good) for mono, good in said]))
    working = list(_runs([(s["mono"], s["ok"]) for s in _samples(ev, "completion", name)]))
    for begin, end in _both(healthy, _failing(ev, name)):
        yield _Lie(name, _HEALTHY, end - begin, begin)
    for begin, end in _both(sick, working):
        yield _Lie(name, _SICK, end - begin, begin)
    ready = [(float(s["mono"]), bool(s["values"].get("ready"))) for s in _samples(ev, READINESS, name)]
    for begin, end in _both(list(_runs(ready)), _failing(ev, name)):
        yield _Lie(name, _READY, end - begin, begin)


def _runs(seen: Sequence[tuple[float, bool]]) -> Iterator[Stretch]:
    """Yield from the first to the last look of each unbroken row of looks that are true."""
    begin = last = None
    for mono, true in seen:
        if true and begin is not None and last is not None and mono - last > LOOK_GAP_S:
            yield begin, last
            begin = None
        if true:
            begin, last = (mono if begin is None else begin), mono
        elif begin is not None and last is not None:
            yield begin, last
            begin = last = None
    if begin is not None and last is not None:
        yield begin, last


def _both(left: Sequence[Stretch], right: Sequence[Stretch]) -> Iterator[Stretch]:
    for a, b in left:
        for c, d in right:
            if max(a, c) < min(b, d):
                yield max(a, c), min(b, d)


def _told(ev: Evidence, name: str) -> dict[str, int]:
    """Return how often the endpoint gave each answer; `none` is no answer."""
    counts: dict[str, int] = {}
    for sample in _samples(ev, "health", name):
        status = sample["values"].get("status")
        word = "none" if status is None else str(status)
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items()))
