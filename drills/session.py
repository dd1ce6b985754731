"""One invocation of `drill run`: targets and lab, the drills in order, then verdict and report of each."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import drills
from drills import errors, live, lock, plan, present, report, runfolder, signals, verdict
from drills.access import procs
from drills.access.local import LocalHost
from drills.clock import Clock
from drills.errors import DrillError, Refused, UsageError
from drills.experiment import Experiment, find_experiment, load_experiment
from drills.lab import defects, manage, network, vllm_engine
from drills.lab.client import Lab
from drills.lab.config import LabConfig, lab_dir
from drills.lab.target import LabTarget
from drills.model import Json, Restored, RunVerdict
from drills.run import Drill, Ended, Setting, StopFlag
from drills.target import TargetSpec, load_target

PORT_BASES = (1024, 65000)
ENGINES = ("emulator", "vllm")
#: After these the next drill of a suite is not begun.
STOPS_SUITE = frozenset({errors.EXIT_STOPPED, errors.EXIT_NOT_RESTORED, errors.EXIT_BUG})
KEEP_ALIVE_EVERY = 10  # looks, about one a second


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    target: str | None = None
    targets_file: Path | None = None
    seed: int | None = None
    defect: str | None = None
    reports: Path = Path("reports")
    port_base: int | None = None
    startup_s: float | None = None
    plain: bool = False
    engine: str | None = None


@dataclass(frozen=True)
class Told:
    """How one drill ended: its exit code, and the lines that say so."""

    code: int
    lines: tuple[str, ...]


def run(names: Sequence[str], options: Options, echo: Callable[[str], None]) -> int:
    """Run the drills in the given order; returns the worst exit code. Raises DrillError before the first."""
    spec = target_spec(options)
    experiments = [experiment(name) for name in names]
    for one in experiments:  # everything that can be wrong with the files is said before anything starts
        _refuse_unshapeable(make_plan(one, spec, options, run="dry", seed=0))
    runfolder.prepare(options.reports / "runs")
    lock.refuse_leftovers(LocalHost(), str(lab_dir() / "drill"), spec.name)
    ended: list[Told] = []
    stop = StopFlag()
    with signals.told(stop.set), lab_for(spec, options, echo) as lab:
        assert spec.lab is not None
        spec = replace(spec, url=f"{lab.data['entry'][spec.lab.entry]}/v1")
        for word, one in zip(names, experiments, strict=True):
            ended.append(_run_one(one, word, spec, lab, options, stop, echo))
            if ended[-1].code in STOPS_SUITE or stop.reason:
                break
    for told in ended:  # last, so that it is what stays on the screen
        for line in told.lines:
            echo(line)
    return errors.worst(told.code for told in ended)


def target_spec(options: Options) -> TargetSpec:
    """Return the target that is meant, with the command line's options for the lab. Raises UsageError."""
    spec = load_target(options.target, options.targets_file)
    spec.require_supported()
    if options.defect:
        defects.find(options.defect)
    assert spec.lab is not None
    lab = spec.lab
    if options.port_base is not None:
        if not PORT_BASES[0] <= options.port_base <= PORT_BASES[1]:
            raise UsageError(f"--port-base {options.port_base}: a number from {PORT_BASES[0]} to {PORT_BASES[1]}")
        lab = replace(lab, port_base=options.port_base)
    if options.startup_s is not None:
        lab = replace(lab, startup_s=options.startup_s)
    return _with_engine(replace(spec, lab=lab), options)


def _with_engine(spec: TargetSpec, options: Options) -> TargetSpec:
    """Return the target with the engine that is asked for, else that of the lab that is up."""
    assert spec.lab is not None
    up = manage.find()
    engine = options.engine or (up.data.get("engine", "emulator") if up else spec.lab.engine)
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: no such engine{errors.nearest(engine, ENGINES)}")
    if engine == "emulator":
        return spec
    limits = spec.limits
    if "max_victims" not in limits.model_fields_set:
        limits = limits.model_copy(update={"max_victims": 0.5})
    return replace(spec, lab=replace(spec.lab, engine=engine), limits=limits, expected_replicas=vllm_engine.REPLICAS)


def experiment(name: str) -> Experiment:
    """Return an experiment by name or by the path of its file. Raises FileProblem."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return load_experiment(Path(name))
    return find_experiment(name)


def make_plan(one: Experiment, spec: TargetSpec, options: Options, *, run: str, seed: int) -> plan.Plan:
    """Return the plan of one drill. Raises FileProblem or Refused."""
    client = defects.client_overlay(options.defect)
    return plan.make_plan(one, spec, run=run, seed=seed, defect=options.defect, client=client)


def _refuse_unshapeable(planned: plan.Plan) -> None:
    """Refuse before a lab is started what the lab of this user could not do."""
    for made in planned.faults:
        if "HasNetwork" not in made.fault.needs() or manage.find() is not None:
            continue
        if why := network.why_not():
            raise Refused(f"{made.fault.name}: the lab has no network of its own to shape: {why}; nothing was touched")


# ---- the lab ------------------------------------------------------------------------------------------


@contextmanager
def lab_for(spec: TargetSpec, options: Options, echo: Callable[[str], None]) -> Iterator[Lab]:
    """Use the lab that is up, or start one and take it down afterwards."""
    if (found := manage.find()) is not None:
        if found.data.get("defect") != options.defect:
            has = found.data.get("defect") or "no defect"
            wanted = options.defect or "none"
            raise Refused(f"lab: the one that is up has {has}, {wanted} is asked; take it down: `drill lab down`")
        if options.engine not in (None, found.data.get("engine", "emulator")):
            raise Refused(
                f"lab: the one that is up runs another engine than {options.engine}; take it down: `drill lab down`"
            )
        echo(f"lab: using the one that is up ({found.url})")
        if options.port_base not in (None, found.data["port_base"]) or options.startup_s is not None:
            echo("lab: note: it was started before; --port-base and --startup do not apply")
        yield found
        return
    with signals.interrupting("before anything was touched"):
        lab = manage.up(lab_config(spec, options), owner=run_owner(os.getpid()), echo=echo)
    try:
        yield lab
    finally:
        manage.down(lab.dir)
        echo("lab: down")


def run_owner(pid: int) -> str:
    """Return the owner of a lab that this process starts for its drills."""
    return f"run:{pid}-{procs.start(pid)}"


def orphaned(owner: str) -> bool:
    """Whether the owner of a lab is a run that is gone: it will not take it down any more."""
    kind, _, process = owner.partition(":")
    pid, _, start = process.partition("-")
    return kind == "run" and not (pid.isdigit() and start.isdigit() and procs.alive(int(pid), int(start)))


def lab_config(spec: TargetSpec, options: Options) -> LabConfig:
    """Return the config of the lab that this target asks for."""
    assert spec.lab is not None
    base = LabConfig(port_base=spec.lab.port_base, startup_s=spec.lab.startup_s, entry=spec.lab.entry)
    planted = defects.plant(options.defect, base)
    if spec.lab.engine != "vllm":
        return planted
    if planted.engine_args or planted.restart_args:
        raise UsageError(f"--defect {options.defect}: is a switch of the emulator; leave out --engine vllm")
    return vllm_engine.settings(planted, vllm_engine.executable())


# ---- one drill ----------------------------------------------------------------------------------------


def _run_one(
    one: Experiment,
    word: str,
    spec: TargetSpec,
    lab: Lab,
    options: Options,
    stop: StopFlag,
    echo: Callable[[str], None],
) -> Told:
    run_id = runfolder.new_run_id()
    seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
    planned = make_plan(one, spec, options, run=run_id, seed=seed)
    target = LabTarget(lab, name=spec.name, sla=spec.sla)
    folder = _new_folder(options.reports, one.name, planned)
    echo(f"run {run_id}: {one.title} (seed {seed}), {_near(folder)}")
    view = live.view(f"drill {one.name}, run {run_id}", plain=options.plain)
    setting = Setting(
        plan=planned.to_json(),
        faults=[f.fault for f in planned.faults],
        target=target,
        folder=folder,
        view=view,
        stop=stop,
        clock=Clock(),
        load_plan=plan.load_json(
            planned, records=str((folder / "requests.ndjson").absolute()), cpu=lab.data.get("client_cpu")
        ),
        keep_alive=_now_and_then(target.keep_alive),
    )
    with view:
        ended = Drill(setting).go(header(planned, word, target, options))
    try:
        judged = conclude(folder)
    except (OSError, DrillError) as error:
        return _unjudged(ended, folder, error)
    return _told(ended, judged, folder)


def _new_folder(reports: Path, name: str, planned: plan.Plan) -> Path:
    try:
        folder = runfolder.create(datetime.now(UTC), name, planned.run, reports / "runs")
        (folder / "plan.json").write_text(json.dumps(planned.to_json(), indent=2, sort_keys=True) + "\n")
    except OSError as error:
        where = error.filename or reports
        raise Refused(f"{where}: {error.strerror}; nothing was touched; choose another folder with --reports") from None
    return folder


def _now_and_then(act: Callable[[], None]) -> Callable[[], None]:
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks % KEEP_ALIVE_EVERY == 1:
            act()

    return look


def conclude(folder: Path) -> RunVerdict:
    """Write verdict.json and the postmortem of a run folder."""
    judged = verdict.write(folder)
    report.write(folder)
    return judged


def _told(ended: Ended, judged: RunVerdict, folder: Path) -> Told:
    if ended.status == "refused":
        return Told(judged.exit_code, (f"refused: {ended.reason}", f"journal: {_near(folder / 'journal.jsonl')}"))
    lines = present.checks(judged.checks)
    lines += [f"{ended.status}: {ended.reason}"] if ended.reason else []
    lines += [f"reason: {judged.reason}"] if judged.reason and ended.reason not in judged.reason else []
    lines += [f"NOT RESTORED, run by hand: {command}" for command in ended.manual]
    lines.append(f"verdict: {judged.verdict}   left: {judged.left}   restored: {judged.restored}")
    lines.append(f"postmortem: {_near(folder / 'postmortem.md')}")
    return Told(judged.exit_code, tuple(lines))


def _unjudged(ended: Ended, folder: Path, error: OSError | DrillError) -> Told:
    """Say that the run is over but its verdict could not be written, and how to get it later."""
    lines = [f"{ended.status}: {ended.reason}" if ended.reason else ended.status]
    lines += [f"NOT RESTORED, run by hand: {command}" for command in ended.manual]
    lines.append(f"restored: {ended.restored}; {folder}: the verdict cannot be written: {error}")
    lines.append(f"mend that, then: drill judge {folder}; drill report {folder}")
    return Told(
        errors.EXIT_INCONCLUSIVE if ended.restored is Restored.CLEAN else errors.EXIT_NOT_RESTORED, tuple(lines)
    )


def _near(path: Path) -> Path:
    """Return the path as seen from here, when it is below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def header(planned: plan.Plan, word: str, target: LabTarget, options: Options) -> Json:
    """Return the journal's header: everything needed to understand and repeat the run.

    `word` is how the experiment was named on the command line.
    """
    content, facts = planned.to_json(), target.facts()
    return {
        "run": planned.run,
        "experiment": planned.experiment.name,
        "tool": {"version": drills.__version__, **_git()},
        "python": platform.python_version(),
        "seed": planned.seed,
        "target": planned.target.name,
        "command": _command(planned, word, options),
        "plan": content,
        "versions": facts.pop("versions"),
        "facts": facts,
        "clock": {"offsets": {}},
    }


def _command(planned: plan.Plan, word: str, options: Options) -> str:
    words = ["drill", "run", word, "--seed", str(planned.seed)]
    for flag, value in (
        ("--target", options.target),
        ("--targets", options.targets_file),
        ("--defect", options.defect),
        ("--startup", None if options.startup_s is None else f"{options.startup_s:g}s"),
        ("--port-base", options.port_base),
        ("--engine", options.engine),
    ):
        words += [flag, str(value)] if value is not None else []
    return shlex.join(words)


def _git() -> Json:
    """Return the revision of the source this runs from, when it is a checkout."""
    root = Path(drills.__file__).parent.parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=5, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    if not (root / ".git").exists():
        return {"git": None, "dirty": None}
    return {"git": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
