"""A run folder as evidence: what happened, when, to which requests. Pure and offline; it never judges.

Everything works on any prefix of a journal: what has not happened (yet) is None or empty, never an error.
Files that are missing or damaged are named in `problems`, and validity turns those into "inconclusive".

Three cohorts, by the intended start of an arrival:
    baseline  from the begin of the phase until one E2E SLA before the injection
    caught    open at the injection, on any replica
    fault     from the injection to the end of the fault phase
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from drills import files, journal, records, sampled, shapes, strictjson
from drills.errors import FileProblem, first_line
from drills.lang import mark, t
from drills.model import Bound, Event, Json, Outcome, Phase, Sla
from drills.sampled import Said

T = TypeVar("T")
#: No run lasts longer than this, seconds; a time further away is damaged.
RUN_MAX_S = 14 * 86400.0
#: Faults without an effect on the service: nothing is claimed about what they do to it.
CONTROL = "noop"
#: How a ledger says that an engine ended in the middle of an answer.
BROKE_OFF = ("upstream_fin", "upstream_reset", "cut")


@dataclass(frozen=True)
class Span:
    """A stretch of time, mono seconds; `event` is the number of the journal line that began it."""

    begin: float
    end: float
    event: int


@dataclass(frozen=True)
class Evidence:
    """One run's files, read. Times are mono seconds."""

    header: Json
    plan: Json
    events: tuple[Event, ...]
    requests: pl.DataFrame
    ledger: pl.DataFrame
    has_ledger: bool
    samples: tuple[Json, ...] = ()
    damage: tuple[Said, ...] = field(default=())
    damaged: frozenset[str] = field(default=frozenset())  # names of events that could not be used

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what is missing or damaged, said in the language that is spoken now."""
        return tuple(say() for say in self.damage)

    # ---- the journal -----------------------------------------------------------------------------------

    def of(self, *names: str) -> list[Event]:
        """Return the events of these names, in order."""
        return [event for event in self.events if event.event in names]

    def last(self, name: str) -> Event | None:
        """Return the last event of that name."""
        return next((event for event in reversed(self.events) if event.event == name), None)

    @property
    def numbered(self) -> bool:
        """Whether no line is missing from the journal."""
        return [event.n for event in self.events] == list(range(1, len(self.events) + 1))

    @cached_property
    def kept(self) -> dict[str, Any]:
        """Return what was found out once and is asked for again, by a name of its own."""
        return {}

    def once(self, name: str, find: Callable[[], T]) -> T:
        """Return what `find` finds, found once for this evidence under this name."""
        if name not in self.kept:
            self.kept[name] = find()
        found: T = self.kept[name]
        return found

    @cached_property
    def _looks(self) -> dict[tuple[str, str | None], list[Json]]:
        found: dict[tuple[str, str | None], list[Json]] = {}
        for sample in self.samples:
            found.setdefault((str(sample["probe"]), None), []).append(sample)
            if sample.get("subject") is not None:
                found.setdefault((str(sample["probe"]), str(sample["subject"])), []).append(sample)
        return found

    def looks(self, probe: str, subject: str | None = None) -> list[Json]:
        """Return the samples of a probe, of one subject or of all, in order."""
        return self._looks.get((probe, subject), [])

    @property
    def run(self) -> str:
        """Return the run's id."""
        return str(self.header.get("run") or self.plan.get("run") or "")

    @cached_property
    def sla(self) -> Sla:
        """Return what users were promised."""
        raw = self.plan["target"]["sla"]
        ttft, e2e, gap = (
            Bound(float(raw[m]["quantile"]), float(raw[m]["value_s"])) for m in ("ttft", "e2e", "max_gap")
        )
        return Sla(ttft=ttft, e2e=e2e, max_gap=gap, errors=float(raw["errors"]))

    @property
    def expected_replicas(self) -> int | None:
        """Return how many primaries the target should have."""
        count = self.plan.get("target", {}).get("expected_replicas")
        return int(count) if count else None

    # ---- time ------------------------------------------------------------------------------------------

    @cached_property
    def ended(self) -> float:
        """Return when the offered load ended, or the last thing journalled."""
        stop = self.last("load.stopping") or self.last("load.stopped")
        last = max((event.mono for event in self.events), default=0.0)
        return stop.mono if stop else last

    def phase(self, phase: Phase) -> Span | None:
        """Return when a phase was; None when it did not begin."""
        changes = self.of("phase")
        for i, event in enumerate(changes):
            if event.data.get("phase") == phase:
                end = changes[i + 1].mono if i + 1 < len(changes) else self.ended
                return Span(event.mono, max(event.mono, end), event.n)
        return None

    @cached_property
    def hits(self) -> list[Event]:
        """Return the deeds, the first one first."""
        return self.of("inject.hit")

    @property
    def t_inject(self) -> float | None:
        """Return the instant of the (first) deed."""
        return at(self.hits[0]) if self.hits else None

    @property
    def held(self) -> bool:
        """Whether any fault of the run stays on until it is reverted."""
        return any(event.data.get("held") for event in self.of("proof.on", "proof.off"))

    @cached_property
    def t_off(self) -> float | None:
        """Return when the fault was proven off: for a held fault that instant, for a one-shot one the injection."""
        if not self.held:
            return self.t_inject
        proven = [event.mono for event in self.of("proof.off") if event.data.get("held") and event.data.get("ok")]
        return max(proven, default=None)

    # ---- who was hit -----------------------------------------------------------------------------------

    @cached_property
    def receipts(self) -> list[Json]:
        """Return the receipts of faults, as plain data, in the order in which they were written."""
        return [event.data["receipt"] for event in self.of("receipt") if event.data.get("beside") is not True]

    @cached_property
    def all_receipts(self) -> list[Json]:
        """Return all receipts, those of what was put on beside the faults too."""
        return [event.data["receipt"] for event in self.of("receipt")]

    @property
    def control(self) -> bool:
        """Whether the run only pretended to break something."""
        return bool(self.receipts) and all(receipt["fault"] == CONTROL for receipt in self.receipts)

    @cached_property
    def victims(self) -> dict[str, Json]:
        """Return what was pinned of each replica that was hit: name → uid, pid, pid_start, gpus, ..."""
        pinned = {str(v["name"]): v for receipt in self.receipts for v in receipt["victims"]}
        hit = sorted({str(name) for event in self.hits for name in event.data["victims"]})
        # A deed that does not tell its victims had those that were aimed at.
        return {name: pinned.get(name, {"name": name}) for name in hit} if hit or not self.hits else pinned

    # ---- requests --------------------------------------------------------------------------------------

    @cached_property
    def measured(self) -> pl.DataFrame:
        """Return the records with `good`, the latencies in seconds (failed: +inf) and `violation` of the TTFT SLA."""
        return records.measured(self.requests, self.sla.ttft.value_s)

    def cohort(self, name: str) -> pl.DataFrame:
        """Return the measured records of a cohort: baseline, caught or fault."""
        return self.once(f"cohort {name}", lambda: self._cohort(name))

    def _cohort(self, name: str) -> pl.DataFrame:
        frame, none = self.measured, self.measured.clear()
        span, hit = self.phase(Phase.BASELINE if name == "baseline" else Phase.FAULT), self.t_inject
        if name == "baseline":
            if span is None:
                return none
            end = span.end if hit is None else min(span.end, hit - self.sla.e2e.value_s)
            return frame.filter(pl.col("intended").is_between(span.begin, end, closed="left"))
        if hit is None:
            return none
        if name == "caught":
            still_open = pl.col("end").is_null() | (pl.col("end") > hit)
            return frame.filter((pl.col("intended") < hit) & pl.col("sent").is_not_null() & still_open)
        if name != "fault":
            raise ValueError(f"no cohort {name}")
        if span is None:
            return none
        return self.watched.filter(pl.col("intended").is_between(hit, span.end, closed="left"))

    @cached_property
    def watched(self) -> pl.DataFrame:
        """Return the records from the injection on whose answer the run waited for.

        What the run itself cut off at its end, before one E2E SLA had passed, says nothing about the service.
        """
        hit = self.t_inject
        if hit is None:
            return self.measured.clear()
        cut_by_us = (pl.col("outcome") == Outcome.CANCELLED) & (pl.col("intended") > self.ended - self.sla.e2e.value_s)
        return self.measured.filter((pl.col("intended") >= hit) & ~cut_by_us)

    @cached_property
    def ledger_error_s(self) -> float:
        """Return by how much the ledger's times may be wrong: another machine has another clock."""
        said = [e.data.get("clock_error_s") for e in self.of("collected") if e.data["file"] == "ledger.ndjson"]
        return float(said[-1] or 0.0) if said else 0.0

    @cached_property
    def in_flight_on_victims(self) -> frozenset[int]:
        """Return the arrivals with an attempt open on a victim at the injection, by the ledger.

        A fault that is held comes on in steps, and what reached the victim between the first and the last of them
        is caught by it as well. So is what broke off right before by the clock of the ledger's machine, as far as that
        may be wrong.
        """
        hit = self.t_inject
        if hit is None:
            return frozenset()
        done = max([hit, *(event.mono for event in self.of("inject.end"))]) if self.held else hit
        broke_off = pl.col("close").is_in(BROKE_OFF) & (pl.col("end") > hit - self.ledger_error_s)
        still_open = pl.col("end").is_null() | (pl.col("end") > hit) | broke_off
        rows = self.ledger.filter(pl.col("replica").is_in(list(self.victims)) & (pl.col("start") <= done) & still_open)
        return frozenset(rows["arrival"].drop_nulls().to_list())


def at(event: Event) -> float:
    """Return when the thing happened, which may be earlier than when it was journalled."""
    moment = event.data.get("at_mono")
    return float(moment) if isinstance(moment, int | float) else event.mono


def read(folder: Path | str) -> Evidence:
    """Read a run folder; raises DrillError when there is no journal or plan to judge by.

    What else is missing or damaged is left out and named in `problems`.
    """
    folder = Path(folder)
    problems: list[Said] = []
    told = journal.read(folder / "journal.jsonl")
    events, damaged = _sound(told, problems)
    header = next((event.data for event in events if event.event == "header"), {})
    plan = _plan(folder, header, problems)
    if not events:
        raise FileProblem(folder / "journal.jsonl", "the journal is empty; there is nothing to judge")
    run = str(header.get("run") or plan.get("run") or "")
    requests, _ = _table(records.requests, folder / "requests.ndjson", problems)
    ledger, has_ledger = _table(records.ledger, folder / "ledger.ndjson", problems)
    return Evidence(
        header=header,
        plan=plan,
        events=events,
        requests=records.within(requests, events[0].mono, RUN_MAX_S),
        ledger=records.with_arrivals(records.within(ledger, events[0].mono, RUN_MAX_S), run),
        has_ledger=has_ledger,
        samples=sampled.read(folder / "samples.ndjson", problems),
        damage=tuple(problems),
        damaged=damaged,
    )


def _sound(told: list[Event], problems: list[Said]) -> tuple[tuple[Event, ...], frozenset[str]]:
    """Return the events that can be used, and the names of the others."""
    first = next((event.mono for event in told if event.mono >= 0), 0.0)
    unusable = {event.n for event in told if _unusable(event, first)}
    bad = [event for event in told if event.n in unusable]
    problems += [partial(_why_unusable, event, first) for event in bad[:5]]
    return tuple(event for event in told if event.n not in unusable), frozenset(event.event for event in bad)


def _why_unusable(event: Event, first: float) -> str:
    return t(
        "journal.jsonl: event {n} ({event}): {reason}",
        n=event.n,
        event=event.event[:20],
        reason=_unusable(event, first),
    )


def _unusable(event: Event, first: float) -> str:
    """Say why an event tells nothing; empty when it does. Times count from the `first` one."""
    for time in (event.mono, event.data.get("at_mono", event.mono)):
        if not (strictjson.is_number(time) and time >= 0 and abs(time - first) <= RUN_MAX_S):
            return t("its time is no time of the run")
    try:
        datetime.fromisoformat(event.time)
    except ValueError:
        return t("its time is no time of the run")
    return strictjson.misfit(event.data, shapes.EVENTS.get(event.event, strictjson.is_object))


def _plan(folder: Path, header: Json, problems: list[Said]) -> Json:
    """Return the plan: the journal's own, else plan.json. Both must be the same."""
    path = folder / "plan.json"
    written, begun = _object(path), header.get("plan")
    plan = dict(begun or written)
    if not plan:
        raise FileProblem(
            folder, "there is no plan here (neither plan.json nor a journal with a header); not a run folder"
        )
    where = folder / "journal.jsonl" if begun else path
    if said := strictjson.misfit(plan, shapes.PLAN):
        raise FileProblem(where, f"the plan was changed or damaged: {said}")
    if begun and written and begun != written:
        problems.append(partial(t, mark("plan.json is not the plan that the journal begins with")))
    if "hash" in plan and plan["hash"] != plan_hash(plan):
        problems.append(partial(t, mark("the plan was changed after the run began: its hash is another one")))
    return plan


def plan_hash(plan: Json) -> str:
    """Return the hash of a plan's content: of all but run, seed and wording."""
    core = {k: v for k, v in plan.items() if k not in ("run", "seed", "hash", "notes", "steps")}
    return hashlib.sha256(json.dumps(core, sort_keys=True).encode()).hexdigest()


def _table(
    reader: Callable[[Path | None], pl.DataFrame], path: Path, problems: list[Said]
) -> tuple[pl.DataFrame, bool]:
    if sampled.no_file(path):
        problems.append(partial(t, sampled.NO_FILE, file=path.name))
        return reader(None), False
    try:
        return reader(path), path.is_file()
    except (pl.exceptions.PolarsError, OSError) as exc:
        problems.append(partial(t, mark("{file} is damaged ({error})"), file=path.name, error=first_line(exc)[:80]))
        return reader(None), False


def _object(path: Path) -> Json:
    try:
        found = strictjson.loads(files.read(path))
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise FileProblem(path, f"cannot be read ({exc.strerror or exc})") from None
    except ValueError as exc:
        raise FileProblem(path, f"cannot be read as JSON ({exc})") from None
    if not isinstance(found, dict):
        raise FileProblem(path, "is no JSON object")
    return found
