"""Opens the lab as a target (`drills.opening.Kind`): uses the one that is up, else starts one and takes it down."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from drills import errors, lock, signals
from drills.access import procs
from drills.clock import Clock, utc
from drills.custody import Custody
from drills.errors import Refused, UsageError
from drills.lab import defects, keeper, manage, network, vllm_engine
from drills.lab import target as lab_target
from drills.lab.client import Lab
from drills.lab.config import LabConfig, lab_dir
from drills.lab.target import LabTarget
from drills.model import Fault, Json, Target
from drills.options import Options
from drills.target import LabOptions, TargetSpec

if TYPE_CHECKING:
    from drills.doctor.finding import Finding
    from drills.doctor.wanted import Wanted

PORT_BASES = (1024, 65000)
ENGINES = ("emulator", "vllm")
Echo = Callable[[str], None]


# ---- what is asked of it ------------------------------------------------------------------------------


def settled(spec: TargetSpec, options: Options) -> TargetSpec:
    """Return the lab with the command line's options. Raises UsageError."""
    if options.defect:
        defects.find(options.defect)
    lab = _options(spec)
    if options.port_base is not None:
        if not PORT_BASES[0] <= options.port_base <= PORT_BASES[1]:
            raise UsageError(f"--port-base {options.port_base}: a number from {PORT_BASES[0]} to {PORT_BASES[1]}")
        lab = replace(lab, port_base=options.port_base)
    if options.startup_s is not None:
        lab = replace(lab, startup_s=options.startup_s)
    return _with_engine(replace(spec, lab=lab), options)


def _options(spec: TargetSpec) -> LabOptions:
    if spec.lab is None:
        raise UsageError(f"target '{spec.name}': is no lab")
    return spec.lab


def _with_engine(spec: TargetSpec, options: Options) -> TargetSpec:
    """Return the target with the engine that is asked for, else that of the lab that is up."""
    lab, up = _options(spec), manage.find()
    engine = options.engine or (up.data.get("engine", "emulator") if up else lab.engine)
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: no such engine{errors.nearest(engine, ENGINES)}")
    if engine == "emulator":
        return spec
    limits = spec.limits
    if "max_victims" not in limits.model_fields_set:
        limits = limits.model_copy(update={"max_victims": 0.5})
    return replace(spec, lab=replace(lab, engine=engine), limits=limits, expected_replicas=vllm_engine.REPLICAS)


def client_overlay(options: Options) -> Json:
    """Return what a planted defect changes in an experiment's `load.client`."""
    return defects.client_overlay(options.defect)


def config_of(spec: TargetSpec, options: Options) -> LabConfig:
    """Return the config of the lab that this target asks for."""
    lab = _options(spec)
    base = LabConfig(port_base=lab.port_base, startup_s=lab.startup_s, entry=lab.entry)
    planted = defects.plant(options.defect, base)
    if lab.engine != "vllm":
        return planted
    if planted.engine_args or planted.restart_args:
        raise UsageError(f"--defect {options.defect}: is a switch of the emulator; leave out --engine vllm")
    return vllm_engine.settings(planted, vllm_engine.executable())


def refuse_impossible(_spec: TargetSpec, faults: Sequence[Fault]) -> None:
    """Refuse before a lab is started what the lab of this user could not do."""
    for fault in faults:
        if "HasNetwork" not in fault.needs() or manage.find() is not None:
            continue
        if why := network.why_not():
            raise Refused(f"{fault.name}: the lab has no network of its own to shape: {why}; nothing was touched")


# ---- open and closed ----------------------------------------------------------------------------------


@contextmanager
def opened(spec: TargetSpec, options: Options, echo: Echo) -> Iterator[Target]:
    """Use the lab that is up, or start one and take it down afterwards."""
    if (up := manage.find()) is not None:
        _refuse_another(up, spec, options)
        echo(f"lab: using the one that is up ({up.url})")
        if options.port_base not in (None, up.data["port_base"]) or options.startup_s is not None:
            echo("lab: note: it was started before; --port-base and --startup do not apply")
        yield _target(up, spec)
        return
    with signals.interrupting("before anything was touched"):
        lab = manage.up(config_of(spec, options), owner=run_owner(os.getpid()), echo=echo)
    try:
        yield _target(lab, spec)
    finally:
        manage.down(lab.dir)
        echo("lab: down")


def _refuse_another(up: Lab, spec: TargetSpec, options: Options) -> None:
    """Refuse a lab that is up and is not the one that is asked for."""
    others = up.data.get("defect") != options.defect or options.engine not in (None, up.data.get("engine", "emulator"))
    if others:
        refuse_busy(spec)  # it could not be taken down either
    if up.data.get("defect") != options.defect:
        has, wanted = up.data.get("defect") or "no defect", options.defect or "none"
        raise Refused(f"lab: the one that is up has {has}, {wanted} is asked; take it down: `drill lab down`")
    if options.engine not in (None, up.data.get("engine", "emulator")):
        raise Refused(
            f"lab: the one that is up runs another engine than {options.engine}; take it down: `drill lab down`"
        )


def _target(lab: Lab, spec: TargetSpec) -> LabTarget:
    return LabTarget(lab, name=spec.name, sla=spec.sla, entry=_options(spec).entry)


def refuse_busy(spec: TargetSpec, or_else: str = "") -> None:
    """Refuse while a run that lives drills the lab, or has started it for its drills."""
    held = custody(spec).held()
    if held is not None and not lock.dead(held, Clock()):
        stop = f"wait for it, or stop it with `drill stop {held.run}`"
        raise Refused(f"lab: run {held.run} drills it (pid {held.pid}, since {utc(held.taken_wall)}); {stop}{or_else}")
    owner = manage.starting_owner() if keeper.locked(lab_dir()) else ""
    if owner.startswith("run:") and not orphaned(owner):
        raise Refused(f"lab: a run has it for its drills ({_pid(owner)}); wait for the run's end{or_else}")


def _pid(owner: str) -> str:
    return f"pid {owner.partition(':')[2].partition('-')[0]}"


def found(spec: TargetSpec) -> Target | None:
    """Return the lab that is up, None when there is none."""
    up = manage.find()
    return None if up is None else _target(up, spec)


def custody(spec: TargetSpec) -> Custody:
    """Return the custody of the lab, be it up or not."""
    return lab_target.custody(lab_dir(), spec.name)


def state(_spec: TargetSpec) -> str:
    """Say whether it is up, and where."""
    up = manage.find()
    return f"lab {'up at ' + up.url if up else absent()}"


@contextmanager
def examined(spec: TargetSpec, wanted: Wanted) -> Iterator[tuple[list[Finding], Target | None]]:
    """Look at this machine, and at the lab that is up, if there is one."""
    from drills.lab import doctor

    yield doctor.look(spec, wanted), found(spec)


def absent() -> str:
    """Say what there is instead of a lab that is up."""
    if keeper.locked(lab_dir()):
        owner = manage.starting_owner()
        mine = owner.startswith("run:") and not orphaned(owner)
        whose = f"a run, {_pid(owner)}, has it" if mine else "`drill lab down` ends it"
        return f"starting or ending; {whose}"
    return "not up; a run starts it, or `drill lab up`"


# ---- whose it is --------------------------------------------------------------------------------------


def run_owner(pid: int) -> str:
    """Return the owner of a lab that this process starts for its drills."""
    return f"run:{pid}-{procs.start(pid)}"


def orphaned(owner: str) -> bool:
    """Whether the owner of a lab is a run that is gone: it will not take it down any more."""
    kind, _, process = owner.partition(":")
    pid, _, start = process.partition("-")
    return kind == "run" and not (pid.isdigit() and start.isdigit() and procs.alive(int(pid), int(start)))


def tidied(_spec: TargetSpec) -> str | None:
    """Take down the lab that a run started which is gone, be it up or half started."""
    up = manage.find()
    if up is not None:
        left = orphaned(str(up.data.get("owner", "")))
    else:
        left = keeper.locked(lab_dir()) and orphaned(manage.starting_owner())
    if not left:
        return None
    manage.down()
    return "lab: down (a run that was cut short had started it)"
