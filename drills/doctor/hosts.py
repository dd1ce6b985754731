"""What only GPU hosts need: that they can be reached, systemd for timers, and units that come back by themselves."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from drills import lock
from drills.access.podprocs import ENGINE_TITLE
from drills.access.ssh import SshHost
from drills.clock import Clock, utc
from drills.custody import LockUnreadable
from drills.doctor.finding import Finding, missing, ok, unknown
from drills.doctor.wanted import Wanted
from drills.errors import DrillError
from drills.faults.engine_hang import EngineHang
from drills.faults.engine_kill import EngineKill
from drills.faults.gpu_reset import GpuReset
from drills.faults.pod_kill import PodKill
from drills.hosts import gate
from drills.hosts.custody import HostsCustody
from drills.hosts.declared import one_unit
from drills.hosts.machines import Machine, each, twins
from drills.hosts.restarts import stays_down
from drills.hosts.target import HostsTarget
from drills.hosts.units import Seen, UnitLooks
from drills.model import Fault, Target
from drills.target import TargetSpec
from drills.unitnames import whole

GROUP: Final = "host"
#: What faults do to a unit that has to come back from it (`drills.hosts.restarts`), else they are refused.
DEEDS: Final = {(PodKill.name, "kill-process"): "kill", (GpuReset.name, "crash"): "crash"}
#: Faults that must know which process is the engine.
ONE_ENGINE: Final = frozenset({EngineKill.name, EngineHang.name, GpuReset.name})


def examined(spec: TargetSpec, wanted: Wanted, machines: Sequence[Machine]) -> tuple[list[Finding], Target | None]:
    """Look at each machine; returns what was found, and the target if all of them can be looked at."""
    answers = each(machines, lambda machine: _of_machine(machine, wanted.faults))
    found = [one for machine in machines for one in answers.said.get(machine.name, [])]
    found += [missing(GROUP, name, str(error), refuses=True) for name, error in answers.failed.items()]
    identity_of = each([m for m in machines if m.name in answers.said], Machine.identity).said
    found += [missing(GROUP, "machines", why, refuses=True) for why in twins(machines, identity_of)]
    if answers.failed:
        return found, None
    keeper = HostsCustody(machines, spec.name)
    return [*found, *_custody(keeper)], HostsTarget(spec, machines, keeper)


def _of_machine(machine: Machine, faults: Sequence[Fault]) -> list[Finding]:
    gated = any(isinstance(fault, GpuReset) and fault.how == "crash" for fault in faults)
    machine.host.list(machine.state_dir)  # connects
    looks = UnitLooks(machine.host, [entry.unit for entry in machine.entries]).look()
    found = [_reached(machine), *_timer(machine)]
    same = one_unit({entry.name: looks[whole(entry.unit)].uid for entry in machine.entries})
    found += [missing(GROUP, machine.name, why, refuses=True) for why in same]
    for entry in machine.entries:
        found += _unit(machine, entry.name, looks[whole(entry.unit)], faults)
    return found + [_gate(machine, looks[whole(entry.unit)]) for entry in machine.entries if gated]


def _reached(machine: Machine) -> Finding:
    host, entry = machine.host, machine.entries[0]
    version = f", Python {host.python_version}" if isinstance(host, SshHost) else ""
    return ok(GROUP, machine.name, f"{entry.address} lets {entry.user} in and work as root{version}")


def _timer(machine: Machine) -> Iterator[Finding]:
    """Yield what would undo a fault there when nobody can reach it."""
    name = f"{machine.name} timer"
    if isinstance(machine.host, SshHost) and not machine.host.has_systemd:
        yield ok(GROUP, name, "a process of its own: systemd is not the init system there")
    else:
        yield ok(GROUP, name, "a transient unit of systemd")


def _unit(machine: Machine, replica: str, seen: Seen, faults: Sequence[Fault]) -> Iterator[Finding]:
    name = f"{machine.name} {seen.unit}"
    if seen.loaded != "loaded":
        yield missing(GROUP, name, f"is {seen.loaded}", f"mend `unit` of {replica} in drill.yaml", refuses=True)
        return
    if not seen.runs:
        look = f"on {machine.name}: systemctl status {shlex.quote(seen.unit)}"
        yield missing(GROUP, name, f"is {seen.active} ({seen.sub})", look, refuses=True)
        return
    refused = _stays_down(seen.policy, faults)
    if why := refused or stays_down(seen.policy, "engine"):
        what = f"has Restart={seen.policy}: {why}, and stays down"
        fix = (f"on {machine.name}: systemctl edit {shlex.quote(seen.unit)}", "  [Service]", "  Restart=always")
        yield missing(GROUP, name, what, *fix, refuses=bool(refused))
    else:
        yield ok(GROUP, name, f"runs, and systemd starts it again (Restart={seen.policy})")
    if seen.engine is None:
        yield from _no_engine(name, seen, faults)


def _stays_down(policy: str, faults: Sequence[Fault]) -> str:
    """Return why one of the faults that need a unit to come back by itself is refused."""
    deeds = [deed for fault in faults if (deed := DEEDS.get((fault.name, getattr(fault, "how", ""))))]
    return next((why for deed in deeds if (why := stays_down(policy, deed))), "")


def _no_engine(name: str, seen: Seen, faults: Sequence[Fault]) -> Iterator[Finding]:
    """Yield what it means that the engine is not known: most of what is done to one is refused then."""
    named = {fault.name for fault in faults}
    if seen.several:
        what = f"runs, and several processes {ENGINE_TITLE} are below its main process: which is meant cannot be said"
        yield missing(GROUP, name, what, refuses=bool(named & ONE_ENGINE))
    else:
        what = f"runs, and no process {ENGINE_TITLE} is below its main process: the engine must not be in a container"
        yield missing(GROUP, name, what, refuses=bool(named & {*ONE_ENGINE, PodKill.name}))


def _gate(machine: Machine, seen: Seen) -> Finding:
    """Return whether a restart of the unit can be held back while its GPU is reset."""
    name = f"{machine.name} {seen.unit} gate"
    if seen.gate is not None:
        return ok(GROUP, name, f"a restart waits for {seen.gate}")
    what = "a restart waits for nothing, so it would come into the reset of its GPU"
    first, *rest = gate.how_to(seen.unit)
    return missing(GROUP, name, what, f"on {machine.name}, once: {first}", *rest, refuses=True)


def _custody(keeper: HostsCustody) -> Iterator[Finding]:
    """Yield whether somebody drills it, or has left something."""
    try:
        held, found = keeper.held(), keeper.found()
    except LockUnreadable as error:
        yield missing("custody", "lock", str(error), refuses=True)
        return
    except DrillError as error:
        yield unknown("custody", "lock", str(error), refuses=True)
        return
    left = bool(found.outstanding or found.unreadable)
    if held is not None and not lock.dead(held, Clock()):
        what = f"run {held.run} of {held.owner} drills since {utc(held.taken_wall)}"
        yield missing("custody", "lock", what, f"wait for it, or: drill stop {held.run}", refuses=True)
    elif left or held is not None:
        what = "an earlier run was cut short" + (" and is not put back" if left else "")
        yield missing("custody", "leftovers", what, f"drill recover --target {keeper.target}", refuses=True)
    else:
        yield ok("custody", "lock", "nobody drills it, and nothing is to be put back")
