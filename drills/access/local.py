"""The machine the driver runs on, as a `Host`."""

from __future__ import annotations

import os
import signal as signals
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from drills import files
from drills.access import procs
from drills.plain import Completed, Json

#: Begins the name of a file that is being written, followed by pid and start of its writer.
TEMPORARY = ".new-"


class LocalHost:
    """Commands, files and signals on this machine."""

    name = "local"
    python = sys.executable

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        """Run a command in a session of its own, so that a timeout ends its children too."""
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            return Completed(tuple(argv), 127, "", f"{argv[0]}: {error.strerror}")
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
            return Completed(tuple(argv), process.returncode, out, err)
        except subprocess.TimeoutExpired:
            _end_session(process)
            out, err = _rest(process)
            return Completed(tuple(argv), 124, out, err, timed_out=True)

    def spawn(self, argv: Sequence[str], *, log: str) -> None:
        """Start a command that outlives the driver: its own session, output to `log`, no inherited pipes."""
        with Path(log).open("ab") as out:
            subprocess.Popen(
                ["/bin/sh", "-c", '"$@" &', "sh", *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ).wait(timeout=10)

    def read(self, path: str) -> str | None:
        """Return a file's text, None when it is not there. Raises OSError for what is no file, such as a pipe."""
        try:
            return files.read(path).decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, text: str, *, mode: int = 0o600) -> None:
        """Write a file in one step: temporary file, fsync, rename, fsync of the folder."""
        folder = Path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=folder, prefix=f"{TEMPORARY}{os.getpid()}-{procs.start(os.getpid())}-")
        try:
            with os.fdopen(fd, "w") as out:
                out.write(text)
                out.flush()
                os.fchmod(out.fileno(), mode)
                os.fsync(out.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        folder_fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""
        Path(path).unlink(missing_ok=True)

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; a folder that is not there is empty."""
        try:
            return sorted(p.name for p in Path(folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def signal(self, pid: int, pid_start: int, signal: str) -> bool:
        """Signal the process that pid + start name; False when that process is gone."""
        return procs.signal(pid, pid_start, signals.Signals[f"SIG{signal}"])

    def alive(self, pid: int, pid_start: int) -> bool:
        """Whether that very process still runs (a zombie does not)."""
        return procs.alive(pid, pid_start)

    def tree(self, pid: int, pid_start: int) -> Sequence[Json]:
        """Return {pid, start, title} of every live descendant of that very process, nearest first."""
        found = procs.tree(pid, pid_start)
        return [{"pid": child, "start": start, "title": title} for child, start, title in found]


def _end_session(process: subprocess.Popen[str]) -> None:
    """End the command and all it started; it leads its own session."""
    for sig, wait_s in ((signals.SIGTERM, 2.0), (signals.SIGKILL, 2.0)):
        try:
            os.killpg(process.pid, sig)
            process.wait(wait_s)
            return
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _rest(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what was written so far; a child stuck in the kernel keeps its pipes, so this is bounded too."""
    try:
        out, err = process.communicate(timeout=1)
        return out or "", err or ""
    except subprocess.TimeoutExpired:
        return "", "still running after SIGKILL"
