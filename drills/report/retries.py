"""What retries cost, and what users got where the degradation path was expected to open."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from drills import stats
from drills.checks.amplification import HEALTH_CHECKS, PLACES, Attempts
from drills.checks.amplification import attempts_of as counted
from drills.model import Json, Outcome, Phase
from drills.report import words
from drills.report.escape import prose
from drills.report.facts import Facts
from drills.report.impact import label_of
from drills.strictjson import is_number

_PLACES = {
    "client": "client: sent ÷ arrivals",
    "hop": "router: started ÷ requests it took",
    "engine": "engines: sent to primaries ÷ arrivals",
}


def attempts_of(facts: Facts) -> Attempts:
    """Return the run's attempts, counted as the checks of this run count them."""
    params: Json = next((item["params"] for item in facts.planned("checks") if item["name"] == "retry_storm"), {})
    rate = params.get("health_checks", HEALTH_CHECKS)
    return counted(facts.evidence, float(rate) if is_number(rate) and rate >= 0 else None)


@dataclass(frozen=True)
class Ratio:
    """Attempts per request at a place: in the baseline, in the fault, in the worst ten seconds (from `worst_s` on)."""

    place: str
    before: float | None
    during: float | None
    worst: float | None
    worst_s: float | None  # from the injection


def ratios(facts: Facts, attempts: Attempts) -> list[Ratio]:
    """Return attempts per request at each place; nothing without an injection."""
    span, hit = facts.phase(Phase.FAULT), facts.hit
    if hit is None or span is None:
        return []
    during = attempts.count(hit, max(hit, span.end))
    windows = attempts.windows(hit, facts.evidence.ended, facts.evidence.ended)
    found = []
    for place in PLACES:
        before = attempts.baseline.ratio(place) if attempts.baseline else None
        known = [(ratio, count.begin - hit) for count in windows if (ratio := count.ratio(place)) is not None]
        worst, since = max(known, key=lambda one: one[0], default=(None, None))
        found.append(Ratio(place, before, during.ratio(place), worst, since))
    return found


def rows(facts: Facts, attempts: Attempts) -> list[list[str]]:
    """Return attempts per request at each place as a table."""
    return [_row(attempts, one) for one in ratios(facts, attempts)]


def _row(attempts: Attempts, one: Ratio) -> list[str]:
    most = words.NO_DATA if one.worst is None else f"{words.ratio(one.worst)} from {words.offset(one.worst_s)}"
    source = "`requests.ndjson`" if one.place == "client" else prose(attempts.source or "nobody counted them")
    return [_PLACES[one.place], words.ratio(one.before), words.ratio(one.during), most, source]


def lines(facts: Facts, attempts: Attempts) -> list[str]:
    """Return what retries cost in the fault, and what users got instead of a full answer."""
    return [*_cost(facts, attempts), *_instead(facts)]


@dataclass(frozen=True)
class Cost:
    """Attempts beyond one for each arrival of the fault; None where nobody counted them."""

    arrivals: int
    client: int
    primaries: int | None
    fallbacks: int
    swallowed: float | None  # by a rule in the network, of those at the primaries


def cost(facts: Facts, attempts: Attempts) -> Cost | None:
    """Return what retries cost in attempts; None without an injection."""
    span, hit = facts.phase(Phase.FAULT), facts.hit
    if hit is None or span is None:
        return None
    during = attempts.count(hit, max(hit, span.end))
    return Cost(
        arrivals=during.arrivals,
        client=during.client - during.arrivals,
        primaries=None if during.engine is None else max(0, round(during.engine) - during.arrivals),
        fallbacks=during.fallback,
        swallowed=during.swallowed if attempts.rules else None,
    )


def _cost(facts: Facts, attempts: Attempts) -> list[str]:
    found = cost(facts, attempts)
    if found is None:
        return []
    told = f"{found.client:,} by the client"
    if found.primaries is not None:
        told += f", {found.primaries:,} at the primaries"
    swallowed = "" if found.swallowed is None else f", {round(found.swallowed):,} of them swallowed by the network"
    beside = f"; besides, {words.count(found.fallbacks, 'attempt')} at fallback replicas" if found.fallbacks else ""
    unknown = f"; {prose(attempts.unknown)}" if attempts.unknown else ""
    beyond = f"beyond one attempt for each of {words.count(found.arrivals, 'arrival')} in the fault"
    return [f"Cost of retries, {beyond}: {told}{swallowed}{beside}{unknown}."]


@dataclass(frozen=True)
class Group:
    """Users who fared alike: what they got (inert Markdown with their number), and how long they waited (seconds)."""

    n: int
    what: str
    p50_s: float | None = None  # None: in vain
    most_s: float | None = None
    degraded: bool = False
    n_late: int = 0


def groups(facts: Facts) -> list[Group]:
    """Return how those fared whose requests began after the injection; groups of nobody are left out."""
    frame = facts.cohorts["fault"]
    bound, full = facts.sla_ttft_s, frame.filter(pl.col("outcome") == Outcome.OK)
    answers, cached = frame.filter(pl.col("outcome") == Outcome.DEGRADED), pl.col("cached").fill_null(value=False)
    found = [
        _group("full answer", " in time", full.filter(pl.col("ttft") <= bound), bound),
        _group("full answer", " too late", full.filter(pl.col("ttft") > bound), bound),
        _group("answer", " of a smaller model", answers.filter(~cached), bound, degraded=True),
        _group("cached answer", "", answers.filter(cached), bound, degraded=True),
    ]
    rest = frame.filter(~pl.col("outcome").is_in([Outcome.OK, Outcome.DEGRADED]))
    kinds = rest.group_by("outcome", pl.col("error").fill_null("")).len().sort("outcome", "error").rows()
    for outcome, error, n in kinds:
        found.append(Group(n, f"{words.count(n, 'time')} nothing ({prose(label_of((str(outcome), str(error))))})"))
    return [group for group in found if group.n]


def _group(noun: str, how: str, got: pl.DataFrame, bound_s: float, *, degraded: bool = False) -> Group:
    times, what = got["ttft"].sort().to_list(), words.count(got.height, noun) + how
    late = sum(1 for ttft_s in times if ttft_s > bound_s)
    return Group(len(times), what, stats.nearest_rank(times, 0.5), times[-1] if times else None, degraded, late)


def _instead(facts: Facts) -> list[str]:
    """Say how users fared when degradation was expected: by outcome, with how long they waited."""
    begun = facts.cohorts["fault"].height
    if not begun or not any(item["name"] == "degraded" for item in facts.planned("checks")):
        return []
    told = [_told(group) for group in groups(facts)]
    return [f"Degradation was expected. Users got, of {begun:,} begun after the injection: {'; '.join(told)}."]


def _told(group: Group) -> str:
    if group.most_s is None:
        return group.what
    return f"{group.what} (first token p50 {words.seconds(group.p50_s)}, at most {words.seconds(group.most_s)})"
