"""What is asked between drills: what is up, what is left to put back, stop, the lab on its own."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from drills import lock, opening, runfolder, session, signals, stored
from drills import recover as recovering
from drills.clock import Clock, utc
from drills.custody import Custody, Found, Lock, LockUnreadable
from drills.errors import EXIT_NOT_RESTORED, EXIT_PASS, DrillError, FileProblem, NotRestored, Refused, UsageError
from drills.journal import read
from drills.lab import manage
from drills.lab import opening as lab
from drills.model import Json, Restored
from drills.options import Options
from drills.recover import Recovered
from drills.report.escape import visible
from drills.target import TargetSpec, lab_target, load_target

Say = Callable[[str], None]


@dataclass(frozen=True)
class State:
    """What is up at a target, who drills it, and what is still to be put back there."""

    target: str
    up: str
    held: Lock | None
    problem: str  # why nobody can tell who holds it; empty: that can be told
    running: bool
    left: Found
    unfinished: tuple[Path, ...]

    def lines(self) -> list[str]:
        """Return that in words, a line each."""
        lines = [f"target {self.target}: {self.up}", self._holder()]
        lines += [f"{'on' if self.running else 'to be put back'}: {one.sentence()}" for one in self.left.outstanding]
        lines += [*(one.what for one in self.left.unreadable), *self.left.silent]
        lines += [] if lines[2:] else ["nothing is to be put back"]
        return lines + [f"not finished: {folder}" for folder in self.unfinished if not self.running]

    def to_json(self) -> Json:
        """Return that as plain data."""
        held = self.held
        return {
            "target": self.target,
            "state": self.up,
            "running": self.running,
            "held": None if held is None else {"run": held.run, "owner": held.owner, "since": utc(held.taken_wall)},
            "problem": self.problem or None,
            "outstanding": [
                {"receipt": one.receipt.id, "run": one.receipt.run, "fault": one.receipt.fault, "what": one.sentence()}
                for one in self.left.outstanding
            ],
            "unreadable": [{"receipt": one.id, "what": one.what} for one in self.left.unreadable],
            "silent": list(self.left.silent),
            "unfinished": [] if self.running else [str(folder) for folder in self.unfinished],
        }

    def _holder(self) -> str:
        held = self.held
        if held is None:
            return self.problem or "no run holds it"
        since = utc(held.taken_wall)
        if not self.running:
            return f"run {held.run} of {held.owner} was cut short (began {since}): run `drill recover`"
        return f"run {held.run} of {held.owner} drills since {since} (pid {held.pid})"


def state(target: str | None, targets: Path | None, reports: Path) -> State:
    """Return what is up, who drills, and what is still to be put back."""
    spec = _spec(target, targets)
    custody = opening.closed_custody(spec)
    held, problem = None, ""
    try:
        held = custody.held()
    except LockUnreadable as error:
        problem = str(error)
    running = held is not None and not lock.dead(held, Clock())
    return State(spec.name, opening.state(spec), held, problem, running, custody.found(), tuple(unfinished(reports)))


def status(target: str | None, targets: Path | None, reports: Path) -> list[str]:
    """Return the same in words, a line each."""
    return state(target, targets, reports).lines()


def _spec(target: str | None, targets: Path | None) -> TargetSpec:
    return load_target(target, targets)


def _runs(custody: Custody) -> set[str]:
    """Return whose receipts lie on the target."""
    found = custody.found()
    return {o.receipt.run for o in found.outstanding} | {bad.run for bad in found.unreadable}


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
    if run is not None and run not in folders and run not in _runs(custody):
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
    held, left = custody.held(), _runs(custody)
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
        session.conclude(folder, say)
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
    custody.ask_to_stop(run, lock.owner())
    return f"run {run}: asked to stop; it puts everything back and ends within seconds"


def complete(name: str, reports: Path) -> Path:
    """Return the folder of a run that can be judged again. Raises FileProblem; nothing is written then."""
    folder = runfolder.find_run(name, reports / "runs")
    if stored.is_going(folder):
        run = runfolder.run_id(folder)
        raise FileProblem(folder, f"run {run} is still going; wait for its end; nothing was written")
    if missing := stored.not_kept(folder):
        what = f"{' and '.join(missing)} of this run are not here, so it stays as it was judged: `drill show` says how"
        raise FileProblem(folder, what)
    return folder


def judge(name: str, reports: Path, say: Say) -> int:
    """Judge a stored run again and say what came of it; returns the exit code."""
    return judged(complete(name, reports), say)


def judged(folder: Path, say: Say) -> int:
    """Judge the run of that folder, which is complete, and say what came of it; returns the exit code."""
    from drills import verdict

    found = verdict.write(folder)
    say(f"verdict: {found.verdict}   left: {found.left}   restored: {found.restored}   {folder / 'verdict.json'}")
    for line in stored.to_put_back(folder) if found.exit_code == EXIT_NOT_RESTORED else ():
        say(visible(line))
    return found.exit_code


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
    lab.refuse_busy(spec)
    with signals.interrupting("before it was up"):
        manage.up(lab.config_of(spec, options), owner="user", echo=say)
    for line in lab_status():
        say(line)


def lab_down(*, force: bool) -> str:
    """Take the lab down. Refused while a run drills it, unless forced."""
    if not force:
        lab.refuse_busy(lab_target(), or_else="; or add --force")
    for left in [] if force else lab.custody(lab_target()).outstanding():
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


def lab_variables() -> list[str]:
    """Return the lab's addresses as variables of a shell, an assignment each. Raises Refused when there is no lab."""
    found = manage.status()
    if found is None:
        raise Refused(f"lab: {lab.absent()}")
    return [f"{name}={shlex.quote(value)}" for name, value in shell_variables(found).items()]


def shell_variables(found: Json) -> dict[str, str]:
    """Return what the playbooks ask for, by the names under which they do; `found` is the lab's status."""
    up = found["lab"]
    engines = [row["engine"] for row in found["replicas"] if row["role"] == "primary"]
    return {
        "ENDPOINT": f"{up['entry'][up['entry']['use']]}/v1",
        "MODEL": up["model"],
        "REPLICAS": " ".join(engines),
        "PROM": up["prometheus"] or "",
        "DCGM": up["dcgm"],
        "NVIDIA_SMI": up["nvidia_smi"],
    }
