"""One invocation of `drill run`: the target, the drills in order, then verdict and report of each."""

from __future__ import annotations

import json
import platform
import secrets
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import drills
from drills import (
    errors,
    gate,
    live,
    lock,
    opening,
    plan,
    present,
    production,
    publish,
    report,
    runfolder,
    signals,
    verdict,
)
from drills.actions import follow
from drills.clock import Clock
from drills.errors import DrillError, Refused
from drills.experiment import Experiment, find_experiment, load_experiment
from drills.model import Embedded, Json, Restored, RunVerdict, Target
from drills.options import Options
from drills.run import Drill
from drills.setting import Ended, Setting
from drills.signals import StopFlag
from drills.target import TargetSpec, load_target

#: After these the next drill of a suite is not begun.
STOPS_SUITE = frozenset({errors.EXIT_STOPPED, errors.EXIT_NOT_RESTORED, errors.EXIT_BUG})


@dataclass(frozen=True)
class Told:
    """How one drill ended: its exit code, and the lines that say so."""

    code: int
    lines: tuple[str, ...]
    folder: Path | None = None  # of the run; None when there was none


def run(
    names: Sequence[str],
    options: Options,
    echo: Callable[[str], None],
    *,
    settle_first: bool = False,
    told: Callable[[Told], None] = lambda _: None,
) -> int:
    """Run the drills in the given order; returns the worst exit code. Raises DrillError before the first.

    Between two of them, and with `settle_first` before the first, the target has time to settle. `told` hears of each
    when it has ended.
    """
    spec = target_spec(options)
    production.require_flags(spec, options)
    experiments = [experiment(name) for name in names]
    _refuse_hopeless(experiments, spec, options, echo)
    runfolder.prepare(options.reports / "runs")
    lock.refuse_taken(spec.name, opening.closed_custody(spec), Clock())
    ended: list[Told] = []
    stop = StopFlag()
    try:
        with signals.told(stop.set), opening.open_target(spec, options, echo) as target:
            spec = replace(spec, url=target.endpoint, expected_replicas=target.expected_replicas)
            for word, one in zip(names, experiments, strict=True):
                if ended or settle_first:
                    gate.settle(target, Clock(), stopping=lambda: stop.reason is not None, say=echo)
                try:
                    ended.append(_run_one(one, word, spec, target, options, stop, echo))
                except Refused as error:  # by its limits, say, which are no reason against the next one
                    if len(names) == 1:
                        raise
                    ended.append(Told(error.exit_code, (f"refused: {error}",)))
                told(ended[-1])
                _publish(ended[-1], spec, stop, echo)
                if ended[-1].code in STOPS_SUITE or stop.reason:
                    break
    finally:
        for one, end in zip(experiments, ended, strict=False):  # last, so that it is what stays on the screen
            for line in (*([f"{one.name}:"] if len(names) > 1 else []), *end.lines):
                echo(line)
    return errors.worst(end.code for end in ended)


def _publish(ended: Told, spec: TargetSpec, stop: StopFlag, echo: Callable[[str], None]) -> None:
    """Take the report where the target wants it; that this fails changes nothing but what is said."""
    if spec.publish and ended.folder:
        echo(publish.publish(spec.publish, ended.folder, stopping=lambda: stop.reason is not None))


def _refuse_hopeless(
    experiments: Sequence[Experiment], spec: TargetSpec, options: Options, echo: Callable[[str], None]
) -> None:
    """Say what is wrong with the files before anything starts; refuse when not one drill could be carried out."""
    refusals = []
    for one in experiments:
        try:
            planned = make_plan(one, spec, options, run="dry", seed=0)
            opening.refuse_impossible(spec, [made.fault for made in planned.faults])
        except Refused as error:
            refusals.append(error)
    if len(refusals) == len(experiments):
        raise refusals[0]
    for refusal in refusals:
        echo(f"will be refused: {refusal}")


def target_spec(options: Options) -> TargetSpec:
    """Return the target that is meant, with the command line's options. Raises UsageError."""
    return opening.settled(load_target(options.target, options.targets_file), options)


def experiment(name: str) -> Experiment:
    """Return an experiment by name or by the path of its file. Raises FileProblem."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return load_experiment(Path(name))
    return find_experiment(name)


def make_plan(one: Experiment, spec: TargetSpec, options: Options, *, run: str, seed: int) -> plan.Plan:
    """Return the plan of one drill. Raises FileProblem or Refused."""
    client = opening.client_overlay(spec, options)
    return plan.make_plan(one, spec, run=run, seed=seed, defect=options.defect, client=client)


# ---- one drill ----------------------------------------------------------------------------------------


def _run_one(
    one: Experiment,
    word: str,
    spec: TargetSpec,
    target: Target,
    options: Options,
    stop: StopFlag,
    echo: Callable[[str], None],
) -> Told:
    run_id = runfolder.new_run_id()
    seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
    planned = make_plan(one, spec, options, run=run_id, seed=seed)
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
            planned,
            records=str((folder / "requests.ndjson").absolute()),
            cpu=target.load_core() if isinstance(target, Embedded) else None,
        ),
    )
    with view:
        ended = Drill(setting).go(header(planned, word, target, options))
    said: list[str] = []
    try:
        judged = conclude(folder, said.append)
    except (OSError, DrillError) as error:
        return _unjudged(ended, folder, error)
    return _told(ended, judged, folder, said)


def _new_folder(reports: Path, name: str, planned: plan.Plan) -> Path:
    try:
        folder = runfolder.create(datetime.now(UTC), name, planned.run, reports / "runs")
        (folder / "plan.json").write_text(json.dumps(planned.to_json(), indent=2, sort_keys=True) + "\n")
    except OSError as error:
        where = error.filename or reports
        raise Refused(f"{where}: {error.strerror}; nothing was touched; choose another folder with --reports") from None
    return folder


def conclude(folder: Path, say: Callable[[str], None]) -> RunVerdict:
    """Write verdict.json, then the action items of its reports, then the postmortem, which shows them."""
    judged, seen = verdict.written(folder)
    for line in follow.followed(folder, seen):
        say(line)
    report.write(folder, seen)
    return judged


def _told(ended: Ended, judged: RunVerdict, folder: Path, said: Sequence[str] = ()) -> Told:
    if ended.status == "refused":
        refused = (f"refused: {ended.reason}", f"journal: {_near(folder / 'journal.jsonl')}")
        return Told(judged.exit_code, refused, folder)
    lines = present.checks(judged.checks)
    lines += [f"{ended.status}: {ended.reason}"] if ended.reason else []
    known = ended.reason and ended.reason in judged.reason
    lines += [f"reason: {judged.reason}"] if judged.reason and not known else []
    lines += [f"NOT RESTORED, run by hand: {command}" for command in ended.manual]
    lines.append(f"verdict: {judged.verdict}   left: {judged.left}   restored: {judged.restored}")
    lines += [*said, f"postmortem: {_near(folder / 'postmortem.md')}"]
    return Told(judged.exit_code, tuple(lines), folder)


def _unjudged(ended: Ended, folder: Path, error: OSError | DrillError) -> Told:
    """Say that the run is over but its verdict could not be written, and how to get it later."""
    lines = [f"{ended.status}: {ended.reason}" if ended.reason else ended.status]
    lines += [f"NOT RESTORED, run by hand: {command}" for command in ended.manual]
    lines.append(f"restored: {ended.restored}; {folder}: the verdict cannot be written: {error}")
    lines.append(f"mend that, then: drill judge {folder}; drill report {folder}")
    code = errors.EXIT_INCONCLUSIVE if ended.restored is Restored.CLEAN else errors.EXIT_NOT_RESTORED
    return Told(code, tuple(lines), folder)


def _near(path: Path) -> Path:
    """Return the path as seen from here, when it is below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def header(planned: plan.Plan, word: str, target: Target, options: Options) -> Json:
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
        "oncall": options.oncall or None,
        "command": _command(planned, word, options),
        "plan": content,
        "versions": facts.pop("versions", {}),
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
        ("--confirm", options.confirm or None),
        ("--oncall", options.oncall or None),
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
