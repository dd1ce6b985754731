"""Whether the probes and the ledger tell all that they should: what is not there would have told something."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from drills.checks.watching import (
    GPU_GAP_S,
    PROBE_GAP_S,
    Stretch,
    away,
    blind,
    deeds,
    failing,
    has_prometheus,
    on,
    replicas,
    watches_gpus,
)
from drills.evidence import Evidence
from drills.lang import mark, t

#: Of these a look that failed is an answer: of the service, not of the probe.
ANSWERS = frozenset({"completion", "health", "router", "promql", "events", "stop_if", "others", "notifications"})
#: Probes that few checks read; in a run without one of them they are there for people.
READ_BY = {"gpu": frozenset({"metrics", "automation"})}


_SILENT = mark(
    "samples.ndjson: probe {probe} of {subject} is silent for {seconds:.1f} s from {since:.1f} s after the begin of "
    "the load, {allowed:g} s may be"
)
_IN_ERROR = mark(
    "samples.ndjson: probe {probe} of {subject} is silent or in error for {seconds:.1f} s from {since:.1f} s after "
    "the begin of the load, {allowed:g} s may be"
)


@dataclass(frozen=True)
class _Series:
    """The looks of a probe at a subject: all of them, and those that measured."""

    all: list[float]
    good: list[float]


def samples(ev: Evidence) -> str:
    """Say which probe was silent as long as the load was on, that of a fault's counters while the fault was."""
    began = ev.last("load.started")
    if began is None:
        return ""
    if not ev.samples:
        return t("samples.ndjson is missing or empty, though the load was on")
    series = _by_subject(ev)
    if missing := _absent(ev, series):
        return missing
    on_while = {str(receipt["id"]): on(ev, receipt) for receipt in ev.receipts}
    asked = _asked(ev)
    for (probe, subject), seen in sorted(series.items()):
        if not READ_BY.get(probe, asked) & asked:
            continue
        begin, end = (began.mono, ev.ended) if probe != "fault" else on_while.get(subject, (began.mono, ev.ended))
        good = seen.all if probe in ANSWERS else seen.good
        low, high = blind(good, begin, end, [*deeds(ev), *_excused(ev, probe, subject)])
        may_s = GPU_GAP_S if probe == "gpu" else PROBE_GAP_S
        if high - low > may_s:
            return t(
                _SILENT if len(good) == len(seen.all) else _IN_ERROR,
                probe=probe,
                subject=subject,
                seconds=high - low,
                since=low - began.mono,
                allowed=may_s,
            )
    return ""


def _by_subject(ev: Evidence) -> dict[tuple[str, str], _Series]:
    series: dict[tuple[str, str], _Series] = {}
    for sample in ev.samples:
        mine = series.setdefault((sample["probe"], str(sample.get("subject"))), _Series([], []))
        mine.all.append(float(sample["mono"]))
        if sample["ok"]:
            mine.good.append(float(sample["mono"]))
    return series


def _asked(ev: Evidence) -> set[str]:
    """Return the names of the plan's checks."""
    return {str(item.get("check", next(iter(item)))) for item in ev.plan["experiment"].get("checks") or ()}


def _excused(ev: Evidence, probe: str, subject: str) -> list[Stretch]:
    """An engine whose process is gone, or that answers no completion either, has no counters to read."""
    return [*away(ev, subject), *failing(ev, subject)] if probe == "vllm" else []


def _absent(ev: Evidence, series: dict[tuple[str, str], _Series]) -> str:
    """Say which probe left nothing at all, though it was there by the plan."""
    if not (names := replicas(ev)):
        return t("the journal does not tell which replicas there were before the load")
    probes = {probe for probe, _ in series}
    for probe, subject in _expected(ev, names):
        if subject is None and probe not in probes:
            return t("samples.ndjson: probe {probe} never looked", probe=probe)
        if subject is not None and (probe, subject) not in series:
            return t("samples.ndjson: probe {probe} of {subject} never looked", probe=probe, subject=subject)
    return ""


def _expected(ev: Evidence, names: list[str]) -> Iterator[tuple[str, str | None]]:
    asked = _asked(ev)
    yield from (("replicas", None), ("load", None))
    yield from ((probe, name) for name in names for probe in ("completion", "vllm"))
    if has_prometheus(ev):
        yield "alerts", None
    automated = "automation" in asked and ev.plan["target"].get("automation")
    if ("metrics" in asked or automated) and watches_gpus(ev):
        yield "gpu", None
    if "health_honest" in asked:
        yield from (("health", name) for name in names)


# ---- the ledger ----------------------------------------------------------------------------------------

ROLES = ("primary", "fallback")
CLOSES = ("complete", "client_gone", "upstream_fin", "upstream_reset", "refused", "cut", "open")
#: Stamps of a line of which the second is never before the first.
_IN_ORDER = (("start", "first_byte"), ("first_byte", "last_byte"), ("last_byte", "end"), ("start", "end"))
_SLACK_S = 0.002  # stamps are rounded
#: The share of a lab's attempts that may be somebody's who tries it out meanwhile.
OTHERS_IN_LAB = 0.01


def ledger(ev: Evidence) -> str:
    """Say what in the ledger cannot be true of this run; empty where it can, or where there is none."""
    if ev.ledger.is_empty():
        return ""
    for words, test in (_misshapen(ev) | _unknown(ev)).items():
        if count := ev.ledger.filter(test.fill_null(value=True)).height:
            return _said(count, t(words))
    if count := int(
        ev.ledger.filter(pl.col("id").is_not_null()).select("replica", "id", "start").is_duplicated().sum()
    ):
        return _said(count, t("are there more than once"))
    slack_s = _SLACK_S + ev.ledger_error_s
    early = _attempts(ev).join(ev.ledger, on="id", how="inner").filter(pl.col("start") < pl.col("sent") - slack_s)
    if early.height:
        return _said(early.height, t("begin before the client sent their request"))
    if said := _foreign(ev):
        return said
    unseen = _seeable(ev).join(ev.ledger.drop_nulls("arrival"), on="arrival", how="anti").height
    return t("ledger.ndjson: {n} answered arrivals have no attempt in it", n=unseen) if unseen else ""


def _seeable(ev: Evidence) -> pl.DataFrame:
    """Return the answered arrivals that a ledger could see: not those of a time when a new replica had no proxy yet."""
    found = _answered(ev)
    for event in ev.of("ledger.gap"):
        since, until = event.data["since_mono"], event.data.get("until_mono")
        inside = (pl.col("end") >= since) & (pl.lit(value=True) if until is None else pl.col("sent") <= until)
        found = found.filter(~inside.fill_null(value=False))
    return found


def _said(count: int, words: str) -> str:
    if count == 1:
        return t("ledger.ndjson: 1 line: {reason}", reason=words)
    return t("ledger.ndjson: {n} lines: {reason}", n=count, reason=words)


def _misshapen(ev: Evidence) -> dict[str, pl.Expr]:
    """Return what no line of a ledger is, each in words that `t` says."""
    begin, end = ev.events[0].mono, max(event.mono for event in ev.events)
    status, names = pl.col("status"), replicas(ev, "primary")
    backwards = [(pl.col(b) - pl.col(a) < -_SLACK_S).fill_null(value=False) for a, b in _IN_ORDER]
    return {
        mark("the role is none that there is"): ~pl.col("role").is_in(ROLES),
        mark("the replica is none that there was"): (pl.col("role") == "primary") & ~pl.col("replica").is_in(names),
        mark("the begin is no time of the run"): ~pl.col("start").is_between(begin, end),
        mark("the end is none that there is"): ~pl.col("close").is_in(CLOSES),
        mark("the status is none that there is"): status.is_not_null() & ~status.is_between(100, 599),
        mark("ended and open at once"): (pl.col("close") == "open") != pl.col("end").is_null(),
        mark("the times run backwards"): pl.any_horizontal(*backwards),
    }


def _unknown(ev: Evidence) -> dict[str, pl.Expr]:
    """Return what says that it is the run's and is of no request of it, in words that `t` says."""
    known = pl.col("id").is_in(_attempts(ev)["id"].implode()).fill_null(value=False)
    return {mark("the id is of no attempt that the client made"): pl.col("arrival").is_not_null() & ~known}


def _foreign(ev: Evidence) -> str:
    """Say that there are requests of others than the run; a service has users, a lab at most somebody who tries it."""
    others = ev.ledger["arrival"].null_count()
    if ev.plan["target"].get("kind") != "lab" or others <= OTHERS_IN_LAB * ev.ledger.height:
        return ""
    return _said(others, t("no request of the run, though in a lab there are no others"))


def _attempts(ev: Evidence) -> pl.DataFrame:
    """Return id and begin of every attempt that the client made."""
    made = ev.requests.select(pl.col("attempts").alias("one")).explode("one").unnest("one")
    return made.select("id", "sent").drop_nulls("id")


def _answered(ev: Evidence) -> pl.DataFrame:
    """Return the arrivals that a replica answered."""
    return ev.measured.filter(pl.col("good") & ~pl.col("cached").fill_null(value=False)).select(
        "arrival", "sent", "end"
    )
