"""Takes labs up and down. What `drill lab up|down|status` and a run use.

A lab is one folder (`config.lab_dir()`), and there is one lab to a folder. It is started detached and outlives
whoever started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import drills
from drills.access import procs
from drills.errors import DrillError, Refused
from drills.lab import client, config, keeper, monitoring, processes, router
from drills.lab.client import Lab
from drills.lab.config import LabConfig
from drills.model import Json

DOWN_TIMEOUT_S = 25.0
POLL_S = 0.05
FOLDERS = ("log", "gates", "ledger", "bin", "monitoring", "faults")

Echo = Callable[[str], None]


def find(folder: Path | None = None) -> Lab | None:
    """Return the lab that is up in the folder, None when there is none; a lab.json of a dead lab does not count."""
    lab = client.read(folder or config.lab_dir())
    return lab if lab is not None and lab.alive else None


def starting_owner(folder: Path | None = None) -> str:
    """Return whose lab was begun last in the folder, "" when that is not known."""
    try:
        return config.load((folder or config.lab_dir()) / "config.json").owner
    except DrillError:
        return ""


def status(folder: Path | None = None) -> Json | None:
    """Return {lab, replicas, processes} of the lab that is up; None when there is none."""
    lab = find(folder)
    return None if lab is None else {"lab": lab.data, **lab.control().status()}


def up(
    settings: LabConfig,
    owner: str = "user",
    wait_s: float | None = None,
    echo: Echo = print,
    folder: Path | None = None,
) -> Lab:
    """Start a lab and return it once all of it is up.

    `owner` is "user" or "run:ID"; a run's lab ends by itself ten minutes after it was last touched. `wait_s` bounds
    the start (default: what its replicas may take, and a minute). Refused, with everything taken down, when it cannot
    come up.
    """
    folder = folder or config.lab_dir()
    _refuse_impossible(settings, folder)  # before anything is made
    with _alone(folder):
        _refuse_impossible(settings, folder)  # and again, now that nobody else can begin one
        lives_s = config.RUN_LIVES_S if owner.startswith("run:") and settings.lives_s is None else settings.lives_s
        return _start(folder, dataclasses.replace(settings, owner=owner, lives_s=lives_s), wait_s, echo)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep out whoever else would start a lab in the folder at this moment."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        starting = (folder / "starting").open("w")
    except OSError as error:
        raise _unusable(folder, error) from None
    with starting:
        try:
            fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"lab: one is starting in {folder} at this moment; wait for it") from None
        yield


def _unusable(folder: Path, error: OSError) -> Refused:
    return Refused(f"lab: {error.filename or folder}: {error.strerror}; choose another folder with DRILL_LAB_DIR")


def _start(folder: Path, settings: LabConfig, wait_s: float | None, echo: Echo) -> Lab:
    try:
        _prepare(folder, settings)
        keeper_process = _launch(folder)
    except OSError as error:
        raise _unusable(folder, error) from None
    if settings.monitoring and not monitoring.binaries().complete:
        echo(f"lab: note: Prometheus or Alertmanager not found, alerts cannot be judged: {monitoring.INSTALL}")
    try:
        lab = _follow(folder, keeper_process, wait_s or settings.ready_deadline_s + 60, echo)
    except BaseException:
        _end(folder, keeper_process)
        raise
    for note in lab.data["notes"]:
        echo(f"lab: note: {note}")
    return lab


def down(folder: Path | None = None) -> bool:
    """Take the lab down and wait until nothing of it is left; False when there was none."""
    folder = folder or config.lab_dir()
    was_there = keeper.locked(folder) or bool(_leftovers(folder))
    _end(folder)
    return was_there


# ---- before the start ----------------------------------------------------------------------------------


def _refuse_impossible(settings: LabConfig, folder: Path) -> None:
    if sys.platform != "linux":
        raise Refused(f"lab: needs Linux (this is {sys.platform}); name a target of your own in drill.yaml")
    router.executable()
    if (lab := find(folder)) is not None:
        raise Refused(
            f"lab: already up in {folder} (pid {lab.pid}, ports from {lab.data['port_base']}); "
            "use it, or take it down with `drill lab down`"
        )
    if keeper.locked(folder):
        raise Refused(f"lab: one is starting or ending in {folder}; wait for it, or `drill lab down`")
    for port, name in settings.all_ports().items():
        if processes.taken(port):
            held = processes.listener(port)
            by = f" by pid {held[0]} ({held[1]})" if held else ""
            raise Refused(
                f"lab: port {port} ({name}) is taken{by}; choose other ports with --port-base N "
                f"(N to N+{max(settings.all_ports()) - settings.port_base} must be free)"
            )


def _prepare(folder: Path, settings: LabConfig) -> None:
    """Make the folder, without anything of the lab before (OSError when it cannot be written)."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(folder)
    for name in FOLDERS:
        # Prometheus would count the replicas of the lab before for five minutes more.
        if (folder / name).exists():
            shutil.rmtree(folder / name)
        (folder / name).mkdir()
    for name in ("lab.json", "progress.ndjson"):
        (folder / name).unlink(missing_ok=True)
    secret = folder / "token"
    secret.unlink(missing_ok=True)
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(16))
    (folder / "config.json").write_text(json.dumps(settings.to_json(), indent=2) + "\n")


def _launch(folder: Path) -> tuple[int, int]:
    """Start the keeper so that it outlives this process and its terminal; returns its pid and start."""
    root = str(Path(drills.__file__).parents[1])
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "DRILL_TOOLS": str(monitoring.tools_dir()),
    }
    # By a shell that ends at once: the keeper is nobody's child, so nobody has to wait for it.
    detach = ["/bin/sh", "-c", '"$@" >>log/supervisor.log 2>&1 & echo $!', "sh"]
    shell = subprocess.run(
        [*detach, sys.executable, "-P", "-m", "drills.lab.supervisor", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=folder,
        env=env,
        start_new_session=True,
        timeout=10,
        check=True,
    )
    pid = int(shell.stdout)
    return pid, procs.start(pid) or 0


# ---- the start -----------------------------------------------------------------------------------------


def _follow(folder: Path, keeper_process: tuple[int, int], wait_s: float, echo: Echo) -> Lab:
    """Pass on what the supervisor says until the lab is up (Refused when it does not come up)."""
    deadline, seen = time.monotonic() + wait_s, 0
    while True:
        over = not procs.alive(*keeper_process)
        lines = _progress(folder)
        for line in lines[seen:]:
            if "say" in line:
                echo(f"lab: {line['say']}")
            elif "failed" in line:
                raise Refused(f"lab: {line['failed']}")
            elif (lab := find(folder)) is not None:
                echo(f"lab: up, users come in at {lab.url}")
                return lab
        seen = len(lines)
        if over:
            log = folder / "log" / "supervisor.log"
            raise Refused(
                f"lab: the supervisor ended while starting: {processes.last_line(log) or 'no word'} (see {log})"
            )
        if time.monotonic() > deadline:
            raise Refused(f"lab: not up within {wait_s:g} s and taken down again; see {folder / 'log'}")
        time.sleep(POLL_S)


def _progress(folder: Path) -> list[Json]:
    """Return the complete lines of the supervisor's account of the start."""
    try:
        text = (folder / "progress.ndjson").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


# ---- the end -------------------------------------------------------------------------------------------


def _end(folder: Path, keeper_process: tuple[int, int] | None = None) -> None:
    """End what lives in the folder: politely, then by force; then what still holds its GPUs."""
    lab = find(folder)
    if lab is not None:
        with contextlib.suppress(DrillError):
            lab.control().down()
    held = keeper_process or (keeper.holder(folder) if keeper.locked(folder) else None)
    if held is not None:
        if lab is None:
            procs.signal(*held, signal.SIGTERM)
        if not _wait_gone(held, DOWN_TIMEOUT_S):
            _kill_supervisor(held[0])
            _wait_gone(held, keeper.END_TIMEOUT_S)
    _sweep(folder)
    (folder / "lab.json").unlink(missing_ok=True)


def _kill_supervisor(keeper_pid: int) -> None:
    """Kill the keeper's children; it then ends all that is left, and itself."""
    for pid in procs.children(keeper_pid):
        if (start := procs.start(pid)) is not None:
            procs.signal(pid, start, signal.SIGKILL)


def _wait_gone(process: tuple[int, int], timeout_s: float) -> bool:
    """Wait for the keeper to end, which is the last of all."""
    deadline = time.monotonic() + timeout_s
    while procs.alive(*process):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _leftovers(folder: Path) -> list[tuple[int, int]]:
    """Return the engines that still hold the lab's GPUs though its keeper is gone."""
    return [] if keeper.locked(folder) else processes.orphans(sorted((folder / "gpu" / "dev").glob("*")))


def _sweep(folder: Path) -> None:
    """Kill leftovers: a keeper and a supervisor killed at the same instant leave EngineCores behind."""
    for pid, start in _leftovers(folder):
        procs.signal(pid, start, signal.SIGKILL)
