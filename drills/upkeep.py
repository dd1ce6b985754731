"""What is asked between drills: what is up, what is left to put back, stop, the lab on its own."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from drills import lock, runfolder, session, signals
from drills import recover as recovering
from drills.access.local import LocalHost
from drills.clock import Clock, utc
from drills.errors import EXIT_NOT_RESTORED, EXIT_PASS, DrillError, FileProblem, Refused, UsageError
from drills.journal import read
from drills.lab import config, keeper, manage
from drills.lab.client import Lab
from drills.lab.target import LabTarget
from drills.model import Restored
from drills.target import load_target

Say = Callable[[str], None]


def status(target: str | None, targets: Path | None, reports: Path) -> list[str]:
    """Return what is up, who drills, and what is still to be put back, a line each."""
    spec = load_target(target, targets)
    spec.require_supported()
    host, state_dir = LocalHost(), _state_dir()
    lab = manage.find()
    lines = [f"target {spec.name}: lab {'up at ' + lab.url if lab else _no_lab()}"]
    held = lock.read(host, state_dir)
    if held is None:
        lines.append("no run holds it")
    elif held.dead(Clock()):
        lines.append(
            f"run {held.run} of {held.owner} was cut short (began {utc(held.taken_wall)}): run `drill recover`"
        )
    else:
        lines.append(f"run {held.run} of {held.owner} drills since {utc(held.taken_wall)} (pid {held.pid})")
    left = recovering.outstanding(host, state_dir)
    running = held is not None and not held.dead(Clock())
    lines += [f"{'on' if running else 'to be put back'}: {one.sentence()}" for one in left]
    lines += [] if left else ["nothing is to be put back"]
    return lines + [f"not finished: {folder}" for folder in unfinished(reports) if not (held and running)]


def recover(run: str | None, target: str | None, targets: Path | None, reports: Path, say: Say) -> int:
    """Put everything back; returns the exit code."""
    load_target(target, targets).require_supported()
    lab = manage.find()
    state_dir = _state_dir()
    folders = {runfolder.run_id(f): f for f in runfolder.list_runs(reports / "runs")}
    held = lock.read(LocalHost(), state_dir)
    if held is not None:
        folders.setdefault(held.run, Path(held.folder))
    if run is not None and run not in folders and not recovering.outstanding(LocalHost(), state_dir, run):
        raise UsageError(f"run {run}: not known here; `drill status` says what is to be put back")
    with signals.told(lambda name: say(f"{name}: noted; what is begun is put back to the end")):
        return _recover(lab, state_dir, run, folders, say)


def _recover(lab: Lab | None, state_dir: str, run: str | None, folders: dict[str, Path], say: Say) -> int:
    done = recovering.recover(LocalHost(), state_dir, LabTarget(lab) if lab else None, run, folders, Clock())
    for line in done.lines:
        say(line)
    for folder in done.folders:
        _conclude(folder, say)
    for command in done.manual:
        say(f"NOT RESTORED, run by hand: {command}")
    if done.restored is not Restored.CLEAN:
        return EXIT_NOT_RESTORED
    if _orphaned_lab(lab) and not _busy(state_dir):
        manage.down()
        say("lab: down (a run that was cut short had started it)")
    elif not done.lines:
        say("nothing to put back")
    return EXIT_PASS


def _conclude(folder: Path, say: Say) -> None:
    """Judge and report the run that was cut short; that it cannot be done now undoes nothing."""
    try:
        session.conclude(folder)
        say(f"postmortem: {folder / 'postmortem.md'}")
    except (OSError, DrillError) as error:
        say(f"{folder}: the verdict cannot be written: {error}; later: drill judge {folder}; drill report {folder}")


def stop(run: str, target: str | None, targets: Path | None) -> str:
    """Ask the run that holds the target to stop. Raises UsageError when it does not."""
    load_target(target, targets).require_supported()
    host, state_dir = LocalHost(), _state_dir()
    held = lock.read(host, state_dir)
    if held is None or held.run != run or held.dead(Clock()):
        now = f"run {held.run} does" if held is not None and not held.dead(Clock()) else "no run does"
        raise UsageError(f"run {run} does not drill this target now; {now}")
    host.write(f"{state_dir}/stop/{run}", f"{getpass.getuser()}@{socket.gethostname()}")
    return f"run {run}: asked to stop; it puts everything back and ends within seconds"


def stored(name: str, reports: Path) -> Path:
    """Return the folder of a run that can be judged again. Raises FileProblem; nothing is written then."""
    folder = runfolder.find_run(name, reports / "runs")
    held = lock.read(LocalHost(), _state_dir())
    if held is not None and Path(held.folder) == folder and not held.dead(Clock()):
        raise FileProblem(
            folder, f"run {held.run} is still going (pid {held.pid}); wait for its end; nothing was written"
        )
    begun = (folder / "load.json").is_file()
    missing = [n for n in ("requests.ndjson", "samples.ndjson") if begun and not (folder / n).exists()]
    if missing:
        raise FileProblem(folder, f"{' and '.join(missing)} of this run are not here, so it stays as it was judged")
    return folder


def unfinished(reports: Path) -> Iterator[Path]:
    """Yield the run folders whose journal has no end."""
    for folder in runfolder.list_runs(reports / "runs"):
        try:
            if not any(event.event == "end" for event in read(folder / "journal.jsonl")):
                yield folder
        except DrillError:
            yield folder


# ---- the lab on its own -------------------------------------------------------------------------------


def lab_up(options: session.Options, say: Say) -> None:
    """Start the lab and leave it up."""
    spec = session.target_spec(options)
    with signals.interrupting("before it was up"):
        manage.up(session.lab_config(spec, options), owner="user", echo=say)
    for line in lab_status():
        say(line)


def lab_down(*, force: bool) -> str:
    """Take the lab down. Refused while a run drills it, unless forced."""
    held = lock.read(LocalHost(), _state_dir())
    if held is not None and not held.dead(Clock()) and not force:
        raise Refused(f"lab: run {held.run} drills it; stop that with `drill stop {held.run}`, or add --force")
    for left in [] if force else recovering.outstanding(LocalHost(), _state_dir()):
        raise Refused(f"lab: not put back yet: {left.sentence()}; run `drill recover`, or add --force")
    return "lab: down" if manage.down() else "lab: none was up"


def lab_status() -> list[str]:
    """Return the lab's addresses and replicas, a line each."""
    found = manage.status()
    if found is None:
        return [f"lab: {_no_lab()}"]
    lab, net = found["lab"], found["lab"]["network"]
    lines = [
        f"users      {lab['entry'][lab['entry']['use']]}/v1   model {lab['model']}",
        f"router     {lab['entry']['router']}   network {net['subnet'] if net else 'none of its own'}",
        f"prometheus {lab['prometheus'] or 'not there'}   alertmanager {lab['alertmanager'] or 'not there'}",
        f"gpus       {lab['nvidia_smi']}   metrics {lab['dcgm']}",
        f"defect     {lab['defect'] or 'none'}   owner {lab['owner']}   folder {lab['dir']}",
    ]
    for row in found["replicas"]:
        gpus = ", ".join(row["gpus"])
        lines.append(
            f"{row['name']:10} {row['state']:12} pid {row['pid'] or '-'} engine {row['engine_pid'] or '-'} "
            f"restarts {row['restarts']} {row['engine']} {gpus}"
        )
    return lines


def _no_lab() -> str:
    if keeper.locked(config.lab_dir()):
        owner = manage.starting_owner()
        mine = owner.startswith("run:") and not session.orphaned(owner)
        whose = (
            f"a run, pid {owner.partition(':')[2].partition('-')[0]}, has it" if mine else "`drill lab down` ends it"
        )
        return f"starting or ending; {whose}"
    return "not up; a run starts it, or `drill lab up`"


def _orphaned_lab(lab: Lab | None) -> bool:
    """Whether a run that is gone left a lab, be it up or half started."""
    if lab is not None:
        return session.orphaned(str(lab.data.get("owner", "")))
    return keeper.locked(config.lab_dir()) and session.orphaned(manage.starting_owner())


def _state_dir() -> str:
    return str(config.lab_dir() / "drill")


def _busy(state_dir: str) -> bool:
    held = lock.read(LocalHost(), state_dir)
    return held is not None and not held.dead(Clock())
