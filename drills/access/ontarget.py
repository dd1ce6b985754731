"""The program that runs on the target and undoes a fault at its deadline, with no driver, network or API.

    ontarget arm SPEC      start the timer (a process of its own whose parent is not the driver) and say so
    ontarget undo SPEC     carry out the undo steps now and let go of the held locks; may be repeated
    ontarget disarm SPEC   end the timer; the undo has been verified

SPEC is the receipt's file, `<id>.json`; the timer's own state is in `<id>.timer.json` beside it. Standard
library only, so that it can be copied to a host. Steps (the closed set of things an undo may do):

    {"do": "remove", "path": P}                          a file of ours
    {"do": "signal", "pid": N, "start": N, "signal": S}  to that very process; with "once_gone": {"pid", "start"} only
                                                         when that one is gone: ends what a dead process left behind
    {"do": "run", "argv": [...], "timeout_s": N}         a command; status 0 is success; with "beside": true at the same
                                                         time as its neighbours that say so
    {"do": "write", "path": P, "text": T, "ours": O}     put T back where the file still holds O
    {"do": "unrule", "netns": N, "iptables": PROGRAM, "table": T, "chain": C, "rule": [...]}
                                                         delete exactly that rule, as `iptables -S` would show it
    {"do": "unchain", "netns": N, "iptables": PROGRAM, "table": T, "chain": C}
                                                         a chain of ours that nothing leads to any more
    {"do": "node", "node": NAME, "run": R, ...}          the node object of a cluster, by the pod's own account
                                                         (`nodemarks`)
    {"do": "job", "name": NAME, "namespace": NAME}       a job: it ends by its own deadline; its object is for the
                                                         driver or `drill recover` to take away

N is {"pid", "start", "inode"} of a process in a network namespace and of the namespace, or null for the host's own.

Before the first step the receipt's fence is shut (`fence`). A step whose object is gone has succeeded. Exit status: 0
done, 1 a step failed (JSON on stdout says which).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from drills.access import fence, procs, unrules

ARM_TIMEOUT_S = 5.0
RELEASE_TIMEOUT_S = 3.0
STEPS_AT_ONCE = 16
PID_MAX = 2**22
Json = dict[str, Any]


def main(argv: list[str]) -> int:
    """Run one of the three commands; prints one JSON object."""
    command, path = argv
    spec = Path(path)
    answer = {"arm": arm, "undo": undo, "disarm": disarm}[command](spec)
    print(json.dumps(answer))
    return 0 if answer["ok"] else 1


# ---- the three commands ---------------------------------------------------------------------------------


def arm(spec: Path) -> Json:
    """Start the timer and wait until it says that it holds its locks."""
    state = state_file(spec)
    state.unlink(missing_ok=True)
    disarm_file(spec).unlink(missing_ok=True)
    fence.build(spec)
    child = os.fork()
    if child == 0:
        _daemon(spec)
    os.waitpid(child, 0)
    deadline = time.monotonic() + ARM_TIMEOUT_S
    while time.monotonic() < deadline:
        if found := read_json(state):
            return {"ok": found["state"] == "armed", **found}
        time.sleep(0.02)
    return {"ok": False, "error": f"the timer did not report within {ARM_TIMEOUT_S:.0f} s"}


def undo(spec: Path) -> Json:
    """Carry out the undo steps and let go of the locks."""
    receipt = receipt_in(spec)
    steps = undone(spec, receipt)
    if receipt["holds"]:
        steps.append(_release(spec, stuck_dies=all(s["ok"] for s in steps)))
    return {"ok": all(s["ok"] for s in steps), "steps": steps}


def disarm(spec: Path) -> Json:
    """End the timer without an undo; a timer that is gone is disarmed."""
    ok = fence.shut(spec, RELEASE_TIMEOUT_S) is None
    disarm_file(spec).touch()
    timer = _process(spec)
    if timer and procs.signal(*timer, signal.SIGUSR1):
        ok = (gone(*timer, RELEASE_TIMEOUT_S) or kill(*timer)) and ok
    disarm_file(spec).unlink(missing_ok=True)
    return {"ok": ok, "state": "disarmed" if ok else "still running", "pid": timer and timer[0]}


# ---- the timer ------------------------------------------------------------------------------------------


def _daemon(spec: Path) -> None:
    """Become a process whose parent is init, hold the locks, wait for the deadline, undo."""
    os.setsid()
    if os.fork():
        os._exit(0)
    status = 1
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(quiet, fd)
        os.closerange(3, 256)
        os.chdir("/")
        _timer(spec)
        status = 0
    finally:
        os._exit(status)


def _timer(spec: Path) -> None:
    watched = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    receipt = receipt_in(spec)
    deadline = time.monotonic() + receipt["deadline_s"]
    mine: Json = {
        "pid": os.getpid(),
        "start": procs.start(os.getpid()),
        "deadline_mono": deadline,
        "deadline_wall": time.time() + receipt["deadline_s"],
    }
    try:
        locks = [lock(path) for path in receipt["holds"]]
    except OSError as error:
        write_json(state_file(spec), {**mine, "state": "failed", "error": f"cannot lock: {error}"})
        return
    write_json(state_file(spec), {**mine, "state": "armed"})
    while (left := deadline - time.monotonic()) > 0:
        got = signal.sigtimedwait(watched, left)
        if got is None:
            break
        if got.si_signo == signal.SIGUSR2:  # let go of the locks, keep the watch
            let_go(locks)
            write_json(state_file(spec), {**mine, "state": "released"})
        elif disarm_file(spec).exists():
            let_go(locks)
            write_json(state_file(spec), {**mine, "state": "disarmed"})
            return
        elif got.si_signo in (signal.SIGTERM, signal.SIGINT):
            break  # the machine goes down, or somebody wants us gone: undo first
    steps = undone(spec, receipt)
    let_go(locks)
    ok = all(s["ok"] for s in steps)
    write_json(
        state_file(spec), {**mine, "state": "undone" if ok else "undo failed", "steps": steps, "at": time.time()}
    )


def lock(path: str) -> int:
    """Hold the file exclusively; who waits for it takes it shared."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + ARM_TIMEOUT_S / 2
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def let_go(locks: list[int]) -> None:
    """Let all of them go."""
    while locks:
        os.close(locks.pop())


def _release(spec: Path, *, stuck_dies: bool) -> Json:
    """Have the timer let go of its locks; a timer that is gone holds none, so one that is stuck may be killed."""
    step = {"do": "release", "ok": True}
    timer = _process(spec)
    if not timer or not procs.signal(*timer, signal.SIGUSR2):
        return step
    deadline = time.monotonic() + RELEASE_TIMEOUT_S
    while time.monotonic() < deadline:
        now = read_json(state_file(spec)) or {}
        if now.get("state") != "armed" or not procs.alive(*timer):
            return step
        time.sleep(0.02)
    if stuck_dies and kill(*timer):
        return step
    return {**step, "ok": False, "error": f"timer {timer[0]} still holds its locks"}


# ---- the steps ------------------------------------------------------------------------------------------


def undone(spec: Path, receipt: Json) -> list[Json]:
    """Carry out the steps of a receipt, once nothing of its fault can be put on any more."""
    error = fence.shut(spec)
    steps = carry_out(receipt["undo"])
    return [*steps, {"do": "fence", "ok": False, "error": error}] if error else steps


def carry_out(steps: list[Json]) -> list[Json]:
    """Carry out every step, newest first; one that fails does not stop the others."""
    done: list[Json] = []
    for beside, some in groupby(reversed(steps), key=lambda step: step.get("beside") is True):
        if not beside:
            done += map(_one, some)
            continue
        with ThreadPoolExecutor(STEPS_AT_ONCE) as pool:
            done += pool.map(_one, some)
    return done


def _one(step: Json) -> Json:
    try:
        error = STEPS[step["do"]](step)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    return {**step, "ok": error is None} | ({"error": error} if error else {})


def _remove(step: Json) -> str | None:
    Path(step["path"]).unlink(missing_ok=True)
    return None


def _signal(step: Json) -> str | None:
    parent = step.get("once_gone")
    if parent is None or not procs.alive(parent["pid"], parent["start"]):
        procs.signal(step["pid"], step["start"], signal.Signals[f"SIG{step['signal']}"])
    return None


def _run(step: Json) -> str | None:
    done = subprocess.run(
        step["argv"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=step.get("timeout_s", 20),
        check=False,
    )
    return None if done.returncode == 0 else f"status {done.returncode}: {(done.stderr or done.stdout).strip()[:200]}"


def _put_back(step: Json) -> str | None:
    path = Path(step["path"])
    if path.exists() and path.read_text() == step["ours"]:
        path.write_text(step["text"])
    return None


def _node(step: Json) -> str | None:
    from drills.access import nodemarks  # only in a cluster, where the whole package is

    return nodemarks.undo_here(step)


STEPS: dict[str, Callable[[Json], str | None]] = {
    "remove": _remove,
    "signal": _signal,
    "run": _run,
    "write": _put_back,
    "unrule": unrules.unrule,
    "unchain": unrules.unchain,
    "node": _node,
    "job": lambda _: None,
}


# ---- files ----------------------------------------------------------------------------------------------


def receipt_in(spec: Path) -> Json:
    """Return the receipt as it lies in its file."""
    receipt: Json = json.loads(spec.read_text())
    return receipt


def state_file(spec: Path) -> Path:
    """Return where the timer of that receipt says how it is."""
    return spec.with_suffix(".timer.json")


def disarm_file(spec: Path) -> Path:
    """Return the file that says that nothing is to be undone any more."""
    return spec.with_suffix(".disarm")


def read_json(path: Path) -> Json | None:
    """Return the object in a file; None when it is not there, or damaged."""
    try:
        found = json.loads(path.read_text(errors="replace"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _process(spec: Path) -> tuple[int, int] | None:
    """Return pid and start of the timer; None when its file is gone, or damaged and names no process."""
    said = read_json(state_file(spec)) or {}
    pid, start = said.get("pid"), said.get("start")
    return (pid, start) if isinstance(pid, int) and isinstance(start, int) and 0 < pid <= PID_MAX else None


def write_json(path: Path, value: Json) -> None:
    """Write an object to a file in one step."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)  # of a writer that died; one that somebody put there is not written through
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as out:
        json.dump(value, out)
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


def kill(pid: int, start: int) -> bool:
    """Kill a timer of ours that does not listen, a stopped one for example; what it was for is done."""
    procs.signal(pid, start, signal.SIGKILL)
    return gone(pid, start, RELEASE_TIMEOUT_S)


def gone(pid: int, start: int, timeout_s: float) -> bool:
    """Whether that very process is gone within so many seconds."""
    deadline = time.monotonic() + timeout_s
    while procs.alive(pid, start):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
