"""Opening a target: from what is declared to what can be drilled. The one place that knows all kinds.

Each kind is a module with the functions of `Kind`, imported only when a target of that kind is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from drills.custody import Custody
from drills.errors import UsageError
from drills.model import Fault, Json, Target
from drills.options import Options
from drills.target import LAB, TargetSpec

if TYPE_CHECKING:
    from drills.doctor.finding import Finding
    from drills.doctor.wanted import Wanted

Echo = Callable[[str], None]


class Kind(Protocol):
    """What a kind of target must know to be opened."""

    def settled(self, spec: TargetSpec, options: Options) -> TargetSpec:
        """Return the target with the command line's options. Raises UsageError."""

    def client_overlay(self, options: Options) -> Json:
        """Return what the options change in an experiment's `load.client`."""

    def refuse_impossible(self, spec: TargetSpec, faults: Sequence[Fault]) -> None:
        """Refuse, before anything is started, what could not be done there."""

    def opened(self, spec: TargetSpec, options: Options, echo: Echo) -> AbstractContextManager[Target]:
        """Use the target, started if need be; what was started ends with the block. Raises Refused."""

    def found(self, spec: TargetSpec) -> Target | None:
        """Return the target as it is, starting nothing; None when it is not there."""

    def custody(self, spec: TargetSpec) -> Custody:
        """Return the target's custody, starting nothing: it is there even when the target is not."""

    def state(self, spec: TargetSpec) -> str:
        """Say in a few words whether it is up, and where."""

    def examined(self, spec: TargetSpec, wanted: Wanted) -> AbstractContextManager[tuple[list[Finding], Target | None]]:
        """Look at what only this kind has; yields what was found, and the target where there is one to look at."""

    def tidied(self, spec: TargetSpec) -> str | None:
        """Take down what a run that is gone had started; returns a line about it, None when there was nothing."""


def _kind(spec: TargetSpec) -> Kind:
    if spec.kind == LAB:
        from drills.lab import opening

        return opening
    if spec.kind == "kubernetes":
        from drills.cluster import opening as cluster

        return cluster
    if spec.kind == "hosts":
        from drills.hosts import opening as hosts

        return hosts
    raise UsageError(f"target '{spec.name}': kind {spec.kind} is not in this version; use --target {LAB}")


def settled(spec: TargetSpec, options: Options) -> TargetSpec:
    """Return the target with the command line's options. Raises UsageError."""
    if spec.kind != LAB and (given := options.for_the_lab()):
        raise UsageError(f"target '{spec.name}': {', '.join(given)}: for the lab only; leave out, or --target {LAB}")
    return _kind(spec).settled(spec, options)


def client_overlay(spec: TargetSpec, options: Options) -> Json:
    """Return what the options change in an experiment's `load.client`."""
    return _kind(spec).client_overlay(options)


def refuse_impossible(spec: TargetSpec, faults: Sequence[Fault]) -> None:
    """Refuse, before anything is started, what could not be done there."""
    _kind(spec).refuse_impossible(spec, faults)


def open_target(spec: TargetSpec, options: Options, echo: Echo) -> AbstractContextManager[Target]:
    """Use the target, started if need be; what was started ends with the block. Raises Refused."""
    return _kind(spec).opened(spec, options, echo)


def found_target(spec: TargetSpec) -> Target | None:
    """Return the target as it is, starting nothing; None when it is not there."""
    return _kind(spec).found(spec)


def closed_custody(spec: TargetSpec) -> Custody:
    """Return the target's custody, starting nothing: it is there even when the target is not."""
    return _kind(spec).custody(spec)


def state(spec: TargetSpec) -> str:
    """Say in a few words whether the target is up, and where."""
    return _kind(spec).state(spec)


def examined(spec: TargetSpec, wanted: Wanted) -> AbstractContextManager[tuple[list[Finding], Target | None]]:
    """Look at what only its kind has; yields what was found, and the target where there is one to look at."""
    return _kind(spec).examined(spec, wanted)


def tidied(spec: TargetSpec) -> str | None:
    """Take down what a run that is gone had started; returns a line about it, None when there was nothing."""
    return _kind(spec).tidied(spec)
