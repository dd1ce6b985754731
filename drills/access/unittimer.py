"""The on-target timer of a host with systemd: transient units, which no end of a driver, session or link touches.

    unittimer arm SPEC      start the timer unit, and before it what holds the receipt's locks; say so
    unittimer undo SPEC     carry out the undo steps now and let go of the locks; may be repeated
    unittimer disarm SPEC   end the units; the undo has been verified
    unittimer fire SPEC     what the timer unit runs at the deadline
    unittimer hold SPEC     what the holding unit runs until it is told to let go, or the deadline is long over

Where systemd is not the init system `arm` starts the detached process of `drills.access.ontarget`, and the others
leave it to that. SPEC and the timer's state beside it are as there, with the name of the units in `unit`; pid and
start, where it has them, are those of the process that holds the locks. Standard library only: it is copied to hosts.

    drill-<receipt>.timer, .service     fires once at the deadline, within a tenth of a second
    drill-<receipt>-hold.service        holds the locks
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from drills.access import fence, ontarget, procs

Json = dict[str, Any]
SYSTEMD = Path("/run/systemd/system")  # is there where systemd is the init system
#: systemd fires a timer up to a minute late if it is not told to be more careful.
ACCURACY = "AccuracySec=100ms"
COMMAND_TIMEOUT_S = 8.0
HOLD_TIMEOUT_S = 5.0
FIRING_TIMEOUT_S = 3.0
#: What holds locks lets go so long after the deadline, should nobody have told it to.
OVERDUE_S = 30.0
ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str]) -> int:
    """Run one of the commands; prints one JSON object."""
    command, path = argv
    answer = {"arm": arm, "undo": undo, "disarm": disarm, "fire": fire, "hold": hold}[command](Path(path))
    print(json.dumps(answer))
    return 0 if answer["ok"] else 1


def available() -> bool:
    """Whether transient units can be made here."""
    return SYSTEMD.is_dir() and shutil.which("systemd-run") is not None


# ---- what the driver asks for -----------------------------------------------------------------------------


def arm(spec: Path) -> Json:
    """Start the units. What could not be started in whole is taken back."""
    if not available():
        return ontarget.arm(spec)
    receipt = ontarget.receipt_in(spec)
    for file in (ontarget.state_file(spec), ontarget.disarm_file(spec), hold_file(spec)):
        file.unlink(missing_ok=True)
    fence.build(spec)
    held: Json = {}
    if receipt["holds"]:
        held = _begin_to_hold(spec)
        if held.get("state") != "held":
            _end(spec)
            return {"ok": False, "error": held.get("error", "what holds its locks did not report")}
    state = {
        "state": "armed",
        "unit": unit_of(spec),
        "pid": held.get("pid"),
        "start": held.get("start"),
        "deadline_wall": time.time() + receipt["deadline_s"],
    }
    ontarget.write_json(ontarget.state_file(spec), state)
    when = [f"--on-active={receipt['deadline_s']:.3f}s", f"--timer-property={ACCURACY}"]
    done = _systemd_run(unit_of(spec), when, "fire", spec)
    if done.returncode == 0 and _active(f"{unit_of(spec)}.timer", f"{unit_of(spec)}.service"):
        return {"ok": True, **state}
    said = ontarget.read_json(ontarget.state_file(spec)) or state
    if done.returncode == 0 and said["state"] != "armed":  # a deadline that is over already
        return {"ok": True, **said}
    _end(spec)
    ontarget.write_json(ontarget.state_file(spec), {**state, "state": "failed"})
    return {"ok": False, "error": f"systemd-run: status {done.returncode}: {_last_line(done)}"}


def undo(spec: Path) -> Json:
    """Carry out the undo steps and let go of the locks; the timer unit watches on."""
    if not _is_unit(spec):
        return ontarget.undo(spec)
    receipt = ontarget.receipt_in(spec)
    steps = ontarget.undone(spec, receipt)
    if receipt["holds"]:
        steps.append(_release(spec, stuck_dies=all(s["ok"] for s in steps)))
        said = ontarget.read_json(ontarget.state_file(spec)) or {}
        if steps[-1]["ok"] and said.get("state") == "armed":
            ontarget.write_json(ontarget.state_file(spec), {**said, "state": "released"})
    return {"ok": all(s["ok"] for s in steps), "steps": steps}


def disarm(spec: Path) -> Json:
    """End the units without an undo; one that fires at this moment is waited for."""
    if not _is_unit(spec):
        return ontarget.disarm(spec)
    still = fence.shut(spec, FIRING_TIMEOUT_S)
    ontarget.disarm_file(spec).touch()
    _run(["systemctl", "stop", f"{unit_of(spec)}.timer"])
    deadline = time.monotonic() + FIRING_TIMEOUT_S
    while _active(f"{unit_of(spec)}.service") and time.monotonic() < deadline:
        time.sleep(0.05)
    _end(spec)
    ok = not _active(*units(spec)) and _release(spec, stuck_dies=True)["ok"] and still is None
    for file in (hold_file(spec), ontarget.disarm_file(spec)):
        file.unlink(missing_ok=True)
    return {"ok": ok, "state": "disarmed" if ok else "still running"}


# ---- what the units run -----------------------------------------------------------------------------------


def fire(spec: Path) -> Json:
    """Undo at the deadline, unless it was called off meanwhile."""
    state = ontarget.read_json(ontarget.state_file(spec)) or {"unit": unit_of(spec), "deadline_wall": time.time()}
    if ontarget.disarm_file(spec).exists():
        ontarget.write_json(ontarget.state_file(spec), {**state, "state": "disarmed"})
        return {"ok": True}
    receipt = ontarget.receipt_in(spec)
    steps = ontarget.undone(spec, receipt)
    if receipt["holds"]:
        steps.append(_release(spec, stuck_dies=True))
    ok = all(s["ok"] for s in steps)
    done = {"state": "undone" if ok else "undo failed", "steps": steps, "at": time.time()}
    ontarget.write_json(ontarget.state_file(spec), {**state, **done})
    return {"ok": ok, "steps": steps}


def hold(spec: Path) -> Json:
    """Hold the receipt's locks until a signal comes."""
    told = {signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, told)
    receipt = ontarget.receipt_in(spec)
    mine = {"pid": os.getpid(), "start": procs.start(os.getpid())}
    try:
        locks = [ontarget.lock(path) for path in receipt["holds"]]
    except OSError as error:
        ontarget.write_json(hold_file(spec), {**mine, "state": "failed", "error": f"cannot lock: {error}"})
        return {"ok": False}
    ontarget.write_json(hold_file(spec), {**mine, "state": "held"})
    signal.sigtimedwait(told, receipt["deadline_s"] + OVERDUE_S)
    ontarget.let_go(locks)
    return {"ok": True}


# ---- inside -----------------------------------------------------------------------------------------------


def unit_of(spec: Path) -> str:
    """Return the name of the units of a receipt, without what kind of unit it is."""
    return f"drill-{spec.stem}"


def units(spec: Path) -> tuple[str, ...]:
    """Return all units that a receipt may have."""
    name = unit_of(spec)
    return f"{name}.timer", f"{name}.service", f"{name}-hold.service"


def hold_file(spec: Path) -> Path:
    """Return where what holds the locks says how it is."""
    return spec.with_suffix(".hold")


def _begin_to_hold(spec: Path) -> Json:
    done = _systemd_run(f"{unit_of(spec)}-hold", [], "hold", spec)
    if done.returncode != 0:
        return {"state": "failed", "error": f"systemd-run: status {done.returncode}: {_last_line(done)}"}
    deadline = time.monotonic() + HOLD_TIMEOUT_S
    while time.monotonic() < deadline:
        if said := ontarget.read_json(hold_file(spec)):
            return said
        time.sleep(0.02)
    return {"state": "failed", "error": f"what holds its locks did not report within {HOLD_TIMEOUT_S:.0f} s"}


def _release(spec: Path, *, stuck_dies: bool) -> Json:
    """Have the locks let go; what holds them is gone then, and one that is stuck may be killed."""
    step: Json = {"do": "release", "ok": True}
    said = ontarget.read_json(hold_file(spec)) or {}
    pid, start = said.get("pid"), said.get("start")
    if not isinstance(pid, int) or not isinstance(start, int) or not procs.signal(pid, start, signal.SIGUSR2):
        return step
    if ontarget.gone(pid, start, ontarget.RELEASE_TIMEOUT_S) or (stuck_dies and ontarget.kill(pid, start)):
        return step
    return {**step, "ok": False, "error": f"process {pid} still holds its locks"}


def _end(spec: Path) -> None:
    _run(["systemctl", "stop", *units(spec)])
    _run(["systemctl", "reset-failed", *units(spec)])


def _is_unit(spec: Path) -> bool:
    """Whether the receipt's timer is a unit; of one whose state is lost, whether it would be."""
    said = ontarget.read_json(ontarget.state_file(spec))
    return available() if said is None else "unit" in said


def _active(*names: str) -> bool:
    """Whether one of the units is active."""
    return _run(["systemctl", "is-active", "--quiet", *names]).returncode == 0


def _systemd_run(unit: str, options: list[str], command: str, spec: Path) -> subprocess.CompletedProcess[str]:
    what = f"--description=drill: {command} {spec.stem}"
    program = [sys.executable, "-m", "drills.access.unittimer", command, str(spec)]
    words = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", what, f"--setenv=PYTHONPATH={ROOT}"]
    return _run([*words, *options, "--", *program])


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 126, "", f"{type(error).__name__}: {error}")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return ((done.stderr or done.stdout).strip().splitlines() or ["no reason given"])[-1][:200]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
