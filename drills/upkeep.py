"""What is asked between drills: what is up, what is left to put back, stop, the lab on its own."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from drills import lock, opening, runfolder, session, signals
from drills import recover as recovering
from drills.clock import Clock, utc
from drills.custody import Custody, Lock
from drills.errors import EXIT_NOT_RESTORED, EXIT_PASS, DrillError, FileProblem, NotRestored, Refused, UsageError
from drills.journal import being_written, read
from drills.lab import manage
from drills.lab import opening as lab
from drills.model import Restored
from drills.options import Options
from drills.recover import Recovered
from drills.target import TargetSpec, lab_target, load_target

Say = Callable[[str], None]


def status(target: str | None, targets: Path | None, reports: Path) -> list[str]:
    """Return what is up, who drills, and what is still to be put back, a line each."""
    spec = _spec(target, targets)
    custody = opening.closed_custody(spec)
    lines = [f"target {spec.name}: {opening.state(spec)}"]
    held, running = custody.held(), _running(custody)
    if held is None:
        lines.append("no run holds it")
    elif running is None:
        lines.append(
            f"run {held.run} of {held.owner} was cut short (began {utc(held.taken_wall)}): run `drill recover`"
        )
    else:
        lines.append(f"run {held.run} of {held.owner} drills since {utc(held.taken_wall)} (pid {held.pid})")
    left = custody.outstanding()
    lines += [f"{'on' if running else 'to be put back'}: {one.sentence()}" for one in left]
    lines += [] if left else ["nothing is to be put back"]
    return lines + [f"not finished: {folder}" for folder in unfinished(reports) if not running]


def _spec(target: str | None, targets: Path | None) -> TargetSpec:
    spec = load_target(target, targets)
    spec.require_supported()
    return spec


def _running(custody: Custody) -> Lock | None:
    """Return the lock of the run that drills the target now."""
    held = custody.held()
    return None if held is None or lock.dead(held, Clock()) else held


def recover(run: str | None, target: str | None, targets: Path | None, reports: Path, say: Say) -> int:
    """Put everything back; returns the exit code."""
    spec = _spec(target, targets)
    custody = opening.closed_custody(spec)
    folders = {runfolder.run_id(f): f for f in runfolder.list_runs(reports / "runs")}
    held = custody.held()
    if held is not None:
        folders.setdefault(held.run, Path(held.folder))
    if run is not None and run not in folders and all(o.receipt.run != run for o in custody.outstanding()):
        raise UsageError(f"run {run}: not known here; `drill status` says what is to be put back")
    done = _recover(spec, custody, run, folders, say)
    if not done.lines:
        say("nothing to put back")
    return EXIT_PASS if done.restored is Restored.CLEAN else EXIT_NOT_RESTORED


def put_back_leftovers(options: Options, say: Say) -> bool:
    """Put back what runs that are gone left on the target; returns whether there was anything.

    Raises Refused while a run lives, NotRestored when something could not be put back.
    """
    spec = _spec(options.target, options.targets_file)
    custody = opening.closed_custody(spec)
    held, left = custody.held(), {o.receipt.run for o in custody.outstanding()}
    known = {runfolder.run_id(f): f for f in runfolder.list_runs(options.reports / "runs")}
    folders = {run: folder for run, folder in known.items() if run in left}
    if held is not None:
        folders[held.run] = known.get(held.run, Path(held.folder))
    done = _recover(spec, custody, None, folders, say)
    if done.restored is not Restored.CLEAN:
        raise NotRestored(f"target {spec.name}: not put back; run the commands above by hand, then `drill recover`")
    return bool(done.lines)


def _recover(spec: TargetSpec, custody: Custody, run: str | None, folders: dict[str, Path], say: Say) -> Recovered:
    """Put back, say so, and judge what was cut short; take down what a run that is gone had started."""
    with signals.told(lambda name: say(f"{name}: noted; what is begun is put back to the end")):
        done = _put_back(spec, custody, run, folders, say)
        if done.restored is Restored.CLEAN and _running(custody) is None and (tidied := opening.tidied(spec)):
            say(tidied)
            done.lines.append(tidied)
    return done


def _put_back(spec: TargetSpec, custody: Custody, run: str | None, folders: dict[str, Path], say: Say) -> Recovered:
    done = recovering.recover(custody, opening.found_target(spec), run, folders, Clock())
    for line in done.lines:
        say(line)
    for folder in done.folders:
        _conclude(folder, say)
    for command in done.manual:
        say(f"NOT RESTORED, run by hand: {command}")
    return done


def _conclude(folder: Path, say: Say) -> None:
    """Judge and report the run that was cut short; that it cannot be done now undoes nothing."""
    try:
        session.conclude(folder)
        say(f"postmortem: {folder / 'postmortem.md'}")
    except (OSError, DrillError) as error:
        say(f"{folder}: the verdict cannot be written: {error}; later: drill judge {folder}; drill report {folder}")


def stop(run: str, target: str | None, targets: Path | None) -> str:
    """Ask the run that holds the target to stop. Raises UsageError when it does not."""
    custody = opening.closed_custody(_spec(target, targets))
    running = _running(custody)
    if running is None or running.run != run:
        now = f"run {running.run} does" if running is not None else "no run does"
        raise UsageError(f"run {run} does not drill this target now; {now}")
    custody.ask_to_stop(run, f"{getpass.getuser()}@{socket.gethostname()}")
    return f"run {run}: asked to stop; it puts everything back and ends within seconds"


def stored(name: str, reports: Path) -> Path:
    """Return the folder of a run that can be judged again. Raises FileProblem; nothing is written then."""
    folder = runfolder.find_run(name, reports / "runs")
    if being_written(folder / "journal.jsonl"):
        run = runfolder.run_id(folder)
        raise FileProblem(folder, f"run {run} is still going; wait for its end; nothing was written")
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


def lab_up(options: Options, say: Say) -> None:
    """Start the lab and leave it up."""
    spec = session.target_spec(options)
    with signals.interrupting("before it was up"):
        manage.up(lab.config_of(spec, options), owner="user", echo=say)
    for line in lab_status():
        say(line)


def lab_down(*, force: bool) -> str:
    """Take the lab down. Refused while a run drills it, unless forced."""
    custody = lab.custody(lab_target())
    running = _running(custody)
    if running is not None and not force:
        raise Refused(f"lab: run {running.run} drills it; stop that with `drill stop {running.run}`, or add --force")
    for left in [] if force else custody.outstanding():
        raise Refused(f"lab: not put back yet: {left.sentence()}; run `drill recover`, or add --force")
    return "lab: down" if manage.down() else "lab: none was up"


def lab_status() -> list[str]:
    """Return the lab's addresses and replicas, a line each."""
    found = manage.status()
    if found is None:
        return [f"lab: {lab.absent()}"]
    up, net = found["lab"], found["lab"]["network"]
    lines = [
        f"users      {up['entry'][up['entry']['use']]}/v1   model {up['model']}",
        f"router     {up['entry']['router']}   network {net['subnet'] if net else 'none of its own'}",
        f"prometheus {up['prometheus'] or 'not there'}   alertmanager {up['alertmanager'] or 'not there'}",
        f"gpus       {up['nvidia_smi']}   metrics {up['dcgm']}",
        f"defect     {up['defect'] or 'none'}   owner {up['owner']}   folder {up['dir']}",
    ]
    for row in found["replicas"]:
        gpus = ", ".join(row["gpus"])
        lines.append(
            f"{row['name']:10} {row['state']:12} pid {row['pid'] or '-'} engine {row['engine_pid'] or '-'} "
            f"restarts {row['restarts']} {row['engine']} {gpus}"
        )
    return lines
