"""Opening a service on GPU hosts: it is there already, so connecting and looking at it is all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from drills.access.ssh import SshHost
from drills.errors import Refused
from drills.hosts.custody import HostsCustody
from drills.hosts.declared import one_unit
from drills.hosts.machines import Machine, each, grouped, twins
from drills.hosts.target import HostsTarget
from drills.model import Fault, Json, Target
from drills.options import Options
from drills.target import TargetSpec

if TYPE_CHECKING:
    from drills.doctor.finding import Finding
    from drills.doctor.wanted import Wanted

Echo = Callable[[str], None]


def settled(spec: TargetSpec, _options: Options) -> TargetSpec:
    """Return the target as it is declared."""
    return spec


def client_overlay(_options: Options) -> Json:
    """Return no change of the client."""
    return {}


def refuse_impossible(_spec: TargetSpec, _faults: Sequence[Fault]) -> None:
    """Refuse nothing: what this target can do is known from what is declared."""


@contextmanager
def opened(spec: TargetSpec, _options: Options, echo: Echo) -> Iterator[Target]:
    """Connect to all machines and look at their units; nothing is changed by that but the connections."""
    spec.require_secrets()
    machines = _machines(spec)
    try:
        _connect(spec, machines)
        target = HostsTarget(spec, machines, HostsCustody(machines, spec.name))
        _refuse_unknown(target)
        echo(f"{len(machines)} hosts: {state_of(target)}")
        yield target
    finally:
        _close(machines)


def found(spec: TargetSpec) -> Target | None:
    """Return the target, to put things back on it: a machine that does not answer now keeps nobody from the others."""
    machines = _machines(spec)
    return HostsTarget(spec, machines, HostsCustody(machines, spec.name))


def custody(spec: TargetSpec) -> HostsCustody:
    """Return the target's custody."""
    return HostsCustody(_machines(spec), spec.name)


def state(spec: TargetSpec) -> str:
    """Say how many of its units run and answer, and which machines cannot be looked at."""
    machines = _machines(spec)
    try:
        return state_of(HostsTarget(spec, machines, HostsCustody(machines, spec.name)))
    finally:
        _close(machines)


@contextmanager
def examined(spec: TargetSpec, wanted: Wanted) -> Iterator[tuple[list[Finding], Target | None]]:
    """Look at the machines and their units."""
    from drills.doctor import hosts

    machines = _machines(spec)
    try:
        yield hosts.examined(spec, wanted, machines)
    finally:
        _close(machines)


def tidied(_spec: TargetSpec) -> str | None:
    """Return None: no run starts a host."""
    return None


def state_of(target: HostsTarget) -> str:
    """Say how many of a target's units run and answer."""
    looks = each(target.machines, target.on)
    primaries = [one for here in looks.said.values() for one in here if one.role == "primary"]
    ready = sum(one.ready for one in primaries)
    return "; ".join([f"{ready} of {target.expected_replicas} units are ready", *map(str, looks.failed.values())])


def _machines(spec: TargetSpec) -> tuple[Machine, ...]:
    """Return the machines; each is connected to when it is first asked for something."""
    return grouped(spec.hosts, SshHost)


def _connect(spec: TargetSpec, machines: Sequence[Machine]) -> None:
    """Connect to all at once. Refused with what each of those said to which that failed, or that are one machine."""
    answers = each(machines, Machine.identity)
    reasons = [str(error) for error in answers.failed.values()] or twins(machines, answers.said)
    if reasons:
        raise Refused(f"target {spec.name}: {'; '.join(reasons)}")


def _refuse_unknown(target: HostsTarget) -> None:
    replicas = target.replicas()
    if same := one_unit({replica.name: replica.uid for replica in replicas}):
        raise Refused(f"target {target.name}: {'; '.join(same)}")
    for replica in replicas:
        if replica.state in ("not-found", "masked", "bad-setting", "error"):
            unit = replica.labels["unit"]
            raise Refused(f"target {target.name}: {replica.host}: unit {unit} is {replica.state}; mend hosts.unit")


def _close(machines: Sequence[Machine]) -> None:
    for machine in machines:
        if isinstance(machine.host, SshHost):
            machine.host.close()
