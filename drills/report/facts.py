"""What a run's files say before anybody words it: instants, phases, victims, cohorts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from drills.evidence import CONTROL, Evidence, at
from drills.lang import t
from drills.model import Event, Json, Phase
from drills.report import words
from drills.report.source import Source, checksums


@dataclass(frozen=True)
class Stretch:
    """A phase with its begin and end (mono, seconds)."""

    name: str
    begin: float
    end: float


class Facts:
    """Questions that several sections of a report ask about one run."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.evidence: Evidence = source.evidence
        self.verdict: Json = source.verdict

    # ---- events ---------------------------------------------------------------------------------------

    @property
    def events(self) -> tuple[Event, ...]:
        """Return the journal."""
        return self.evidence.events

    def of(self, *names: str) -> list[Event]:
        """Return the journal's events of these names, in order."""
        return self.evidence.of(*names)

    def first(self, name: str, test: Callable[[Event], bool] = lambda _event: True) -> Event | None:
        """Return the first event of a name that passes the test."""
        return next((event for event in self.of(name) if test(event)), None)

    def data(self, name: str) -> Json:
        """Return the data of the last event of a name, empty when there is none."""
        event = self.evidence.last(name)
        return event.data if event else {}

    @property
    def header(self) -> Json:
        """Return the data of the journal's header."""
        return self.evidence.header

    @property
    def experiment(self) -> Json:
        """Return the resolved experiment."""
        return dict(self.evidence.plan.get("experiment") or {})

    @property
    def target(self) -> Json:
        """Return the plan's word on the target."""
        return dict(self.evidence.plan.get("target") or {})

    def planned(self, place: str) -> list[Json]:
        """Return the planned checks, faults or guards as {name, params}, in either form of the plan."""
        items = []
        for item in self.experiment.get(place) or []:
            word = place.rstrip("s")
            name, params = (item[word], item.get("params")) if word in item else next(iter(item.items()))
            items.append({"name": str(name), "params": params or {}})
        return items

    @property
    def route(self) -> bool:
        """Return whether a fault was aimed at the whole route, so that nobody was left to fail over to."""
        return any(item.get("route") is True for item in self.experiment.get("faults") or [])

    @property
    def held(self) -> bool:
        """Return whether every fault that was seen is one that stays on until it is taken off."""
        proofs = [event for event in self.of("proof.on", "proof.off") if isinstance(event.data.get("held"), bool)]
        return bool(proofs) and all(event.data["held"] for event in proofs)

    @property
    def name(self) -> str:
        """Return the experiment's name."""
        return str(self.experiment.get("name") or self.header.get("experiment") or "unknown")

    @property
    def checks(self) -> list[Json]:
        """Return the rows of the verdict."""
        return list(self.verdict.get("checks") or [])

    # ---- time -----------------------------------------------------------------------------------------

    @property
    def hit(self) -> float | None:
        """Return the instant of the first deed."""
        return self.evidence.t_inject

    @cached_property
    def _origin(self) -> tuple[float, str]:
        if self.hit is not None:
            return self.hit, t("the injection")
        fault = self.phase(Phase.FAULT)
        if fault:
            return fault.begin, t("the begin of the fault phase")
        load = self.first("load.started")
        if load:
            return load.mono, t("the begin of the load")
        return self.events[0].mono, t("the begin of the run")

    @property
    def zero(self) -> float:
        """Return the mono that offsets count from: the injection, or what comes nearest to it in this run."""
        return self._origin[0]

    @property
    def zero_name(self) -> str:
        """Say what offsets count from."""
        return self._origin[1]

    def wall(self, mono: float) -> float:
        """Return epoch seconds of a mono instant, by the first line of the journal."""
        return words.epoch(self.events[0].time) + (mono - self.events[0].mono)

    @cached_property
    def phases(self) -> list[Stretch]:
        """Return the phases that began, in order."""
        spans = ((name, self.evidence.phase(name)) for name in Phase)
        return [Stretch(str(name), span.begin, span.end) for name, span in spans if span]

    def phase(self, name: str) -> Stretch | None:
        """Return a phase by its name."""
        return next((stretch for stretch in self.phases if stretch.name == name), None)

    # ---- the fault ------------------------------------------------------------------------------------

    @property
    def victims(self) -> dict[str, Json]:
        """Return the victims as they were pinned at aim time, by name."""
        return self.evidence.victims

    def receipt(self, fault: str) -> tuple[Event, Json] | None:
        """Return the first receipt of a fault and the event that wrote it."""
        found = ((event, event.data.get("receipt") or {}) for event in self.of("receipt"))
        return next(((event, receipt) for event, receipt in found if receipt.get("fault") == fault), None)

    @property
    def faults(self) -> list[str]:
        """Return the names of the faults that wrote a receipt."""
        return [str(receipt.get("fault")) for receipt in self.evidence.receipts]

    @property
    def control(self) -> bool:
        """Whether the run was a control, of which no effect is claimed."""
        return bool(self.faults) and all(fault == CONTROL for fault in self.faults)

    # ---- requests -------------------------------------------------------------------------------------

    @property
    def sla_ttft_s(self) -> float:
        """Return the SLA's bound of the time to first token."""
        return self.evidence.sla.ttft.value_s

    @cached_property
    def cohorts(self) -> dict[str, pl.DataFrame]:
        """Return the measured records of the baseline, caught and fault cohorts."""
        return {name: self.evidence.cohort(name) for name in ("baseline", "caught", "fault")}

    @cached_property
    def files(self) -> list[tuple[str, str]]:
        """Return name and sha256 of each file of the run that is there."""
        return checksums(self.source.folder)

    @cached_property
    def first_violation(self) -> Json | None:
        """Return the first arrival after the injection that broke the SLA."""
        if self.hit is None:
            return None
        broken = self.evidence.measured.lazy().filter((pl.col("intended") >= self.hit) & pl.col("violation"))
        rows = broken.select("arrival", "intended", "outcome", "error").sort("intended").head(1).collect().to_dicts()
        return rows[0] if rows else None

    def rebuffed(self) -> list[Json]:
        """Return the attempts of this run on victims that broke after the injection, in order of their end."""
        if self.hit is None:
            return []
        mine = pl.col("replica").is_in(list(self.victims)) & pl.col("arrival").is_not_null()
        broke = ~pl.col("close").is_in(["complete", "client_gone", "open"]) & (pl.col("end") >= self.hit)
        return self.evidence.ledger.filter(mine & broke).sort("end", maintain_order=True).to_dicts()


def lines_of(*events: Event | None) -> str:
    """Return the journal lines of events as a reference, e.g. "journal 12, 18"."""
    return references(event.n for event in events if event)


def references(numbers: Iterable[int]) -> str:
    """Return journal line numbers as a reference; a long list is cut."""
    chosen = sorted(set(numbers))
    if not chosen:
        return "—"
    shown = ", ".join(str(n) for n in chosen[:8])
    return f"journal {shown}{', …' if len(chosen) > 8 else ''}"


def earliest(events: Iterable[Event]) -> Event | None:
    """Return the event that happened first."""
    return min(events, key=at, default=None)
