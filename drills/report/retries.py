"""What retries cost, and what users got where the degradation path was expected to open."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from drills import stats
from drills.checks.amplification import HEALTH_CHECKS, PLACES, Attempts
from drills.checks.amplification import attempts_of as counted
from drills.lang import mark, t
from drills.model import Json, Outcome, Phase
from drills.report import words
from drills.report.escape import prose
from drills.report.facts import Facts
from drills.report.impact import label_of
from drills.strictjson import is_number

_PLACES = {
    "client": mark("client: sent ÷ arrivals"),
    "hop": mark("router: started ÷ requests it took"),
    "engine": mark("engines: sent to primaries ÷ arrivals"),
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
    most = t(words.NO_DATA)
    if one.worst is not None:
        most = t("{ratio} from {offset}", ratio=words.ratio(one.worst), offset=words.offset(one.worst_s))
    counted_by = prose(t(attempts.source) if attempts.source else t("nobody counted them"))
    source = "`requests.ndjson`" if one.place == "client" else counted_by
    return [t(_PLACES[one.place]), words.ratio(one.before), words.ratio(one.during), most, source]


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
    told = t("{n:,} by the client", n=found.client)
    if found.primaries is not None:
        told += t(", {n:,} at the primaries", n=found.primaries)
    if found.swallowed is not None:
        told += t(", {n:,} of them swallowed by the network", n=round(found.swallowed))
    if found.fallbacks:
        told += t("; besides, {attempts} at fallback replicas", attempts=words.count(found.fallbacks, "attempt"))
    if attempts.unknown:
        told = words.clauses([told, prose(attempts.unknown)])
    return [
        t(
            "Cost of retries, beyond one attempt for each of {arrivals} in the fault: {told}.",
            arrivals=words.count(found.arrivals, "arrival"),
            told=told,
        )
    ]


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
    in_time, late = (full.filter(kept) for kept in (pl.col("ttft") <= bound, pl.col("ttft") > bound))
    smaller, stored = answers.filter(~cached), answers.filter(cached)
    found = [
        _group(in_time, t("{answers} in time", answers=words.count(in_time.height, "full answer")), bound),
        _group(late, t("{answers} too late", answers=words.count(late.height, "full answer")), bound),
        _group(
            smaller,
            t("{answers} of a smaller model", answers=words.count(smaller.height, "answer")),
            bound,
            degraded=True,
        ),
        _group(stored, words.count(stored.height, "cached answer"), bound, degraded=True),
    ]
    rest = frame.filter(~pl.col("outcome").is_in([Outcome.OK, Outcome.DEGRADED]))
    kinds = rest.group_by("outcome", pl.col("error").fill_null("")).len().sort("outcome", "error").rows()
    for outcome, error, n in kinds:
        how = prose(label_of((str(outcome), str(error))))
        found.append(Group(n, t("{times} nothing ({how})", times=words.count(n, "time"), how=how)))
    return [group for group in found if group.n]


def _group(got: pl.DataFrame, what: str, bound_s: float, *, degraded: bool = False) -> Group:
    times = got["ttft"].sort().to_list()
    late = sum(1 for ttft_s in times if ttft_s > bound_s)
    return Group(len(times), what, stats.nearest_rank(times, 0.5), times[-1] if times else None, degraded, late)


def _instead(facts: Facts) -> list[str]:
    """Say how users fared when degradation was expected: by outcome, with how long they waited."""
    begun = facts.cohorts["fault"].height
    if not begun or not any(item["name"] == "degraded" for item in facts.planned("checks")):
        return []
    told = [_told(group) for group in groups(facts)]
    return [
        t(
            "Degradation was expected. Users got, of {total:,} begun after the injection: {groups}.",
            total=begun,
            groups=words.clauses(told),
        )
    ]


def _told(group: Group) -> str:
    if group.most_s is None:
        return group.what
    return t(
        "{group} (first token p50 {p50}, at most {most})",
        group=group.what,
        p50=words.seconds(group.p50_s),
        most=words.seconds(group.most_s),
    )
