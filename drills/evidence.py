"""A run folder as evidence: what happened, when, to which requests. Pure and offline; it never judges.

Everything works on any prefix of a journal: what has not happened (yet) is None or empty, never an error.
Files that are missing or damaged are named in `problems`, and validity turns those into "inconclusive".

Three cohorts, by the intended start of an arrival:
    baseline  from the begin of the phase until one E2E SLA before the injection
    caught    open at the injection, on any replica
    fault     from the injection to the end of the fault phase
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from drills import journal, records
from drills.errors import FileProblem
from drills.model import Bound, Event, Json, Outcome, Phase, Sla

#: Faults without an effect on the service: nothing is claimed about what they do to it.
CONTROL = "noop"


@dataclass(frozen=True)
class Span:
    """A stretch of time, mono seconds; `event` is the number of the journal line that began it."""

    begin: float
    end: float
    event: int

    @property
    def length_s(self) -> float:
        """Return how long it lasted, in seconds."""
        return self.end - self.begin


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
    problems: tuple[str, ...] = field(default=())

    # ---- the journal -----------------------------------------------------------------------------------

    def of(self, *names: str) -> list[Event]:
        """Return the events of these names, in order."""
        return [event for event in self.events if event.event in names]

    def last(self, name: str) -> Event | None:
        """Return the last event of that name."""
        return next((event for event in reversed(self.events) if event.event == name), None)

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
        """Return the receipts, as plain data, in the order in which they were written."""
        return [event.data["receipt"] for event in self.of("receipt")]

    @property
    def control(self) -> bool:
        """Whether the run only pretended to break something."""
        return bool(self.receipts) and all(receipt["fault"] == CONTROL for receipt in self.receipts)

    @cached_property
    def victims(self) -> dict[str, Json]:
        """Return what was pinned of each replica that was hit: name → uid, pid, pid_start, gpus, ..."""
        pinned = {str(v["name"]): v for receipt in self.receipts for v in receipt["victims"]}
        hit = sorted({str(name) for event in self.hits for name in event.data.get("victims", ())})
        return {name: pinned.get(name, {"name": name}) for name in hit}

    # ---- requests --------------------------------------------------------------------------------------

    @cached_property
    def measured(self) -> pl.DataFrame:
        """Return the records with `good`, the latencies in seconds (failed: +inf) and `violation` of the TTFT SLA."""
        return records.measured(self.requests, self.sla.ttft.value_s)

    def cohort(self, name: str) -> pl.DataFrame:
        """Return the measured records of a cohort: baseline, caught or fault."""
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
        return none if span is None else frame.filter(pl.col("intended").is_between(hit, span.end, closed="left"))

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
    def in_flight_on_victims(self) -> frozenset[int]:
        """Return the arrivals with an attempt open on a victim at the injection, by the ledger."""
        hit = self.t_inject
        if hit is None:
            return frozenset()
        still_open = pl.col("end").is_null() | (pl.col("end") > hit)
        rows = self.ledger.filter(pl.col("replica").is_in(list(self.victims)) & (pl.col("start") <= hit) & still_open)
        return frozenset(rows["arrival"].drop_nulls().to_list())


def at(event: Event) -> float:
    """Return when the thing happened, which may be earlier than when it was journalled."""
    moment = event.data.get("at_mono")
    return float(moment) if isinstance(moment, int | float) else event.mono


def read(folder: Path | str) -> Evidence:
    """Read a run folder; raises DrillError when there is no journal or plan to judge by."""
    folder = Path(folder)
    events = tuple(journal.read(folder / "journal.jsonl"))
    header = next((event.data for event in events if event.event == "header"), {})
    plan = header.get("plan") or _object(folder / "plan.json")
    if not plan:
        raise FileProblem(
            folder, "there is no plan here (neither plan.json nor a journal with a header); not a run folder"
        )
    run = str(header.get("run") or plan.get("run") or "")
    problems: list[str] = []
    requests, _ = _table(records.requests, folder / "requests.ndjson", problems)
    ledger, has_ledger = _table(records.ledger, folder / "ledger.ndjson", problems)
    return Evidence(
        header=header,
        plan=plan,
        events=events,
        requests=requests,
        ledger=records.with_arrivals(ledger, run),
        has_ledger=has_ledger,
        samples=_lines(folder / "samples.ndjson", problems),
        problems=tuple(problems),
    )


def _table(reader: Any, path: Path, problems: list[str]) -> tuple[pl.DataFrame, bool]:
    try:
        return reader(path), path.is_file()
    except pl.exceptions.PolarsError as exc:
        problems.append(f"{path.name} is damaged ({str(exc).splitlines()[0][:80]})")
        return reader(None), False


def _object(path: Path) -> Json:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise FileProblem(path, f"cannot be read as JSON ({exc})") from None


def _lines(path: Path, problems: list[str]) -> tuple[Json, ...]:
    """Return the samples; a torn last line is left out."""
    if not path.is_file():
        return ()
    found: list[Json] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                found.append(json.loads(line))
            except ValueError:
                if line.endswith(b"\n"):
                    problems.append(f"{path.name}:{number} is not JSON")
                    return ()
    return tuple(found)
