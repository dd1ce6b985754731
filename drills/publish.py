"""`publish:` of a target: a command that takes a report somewhere, such as `rclone copy {folder} remote:drills/{name}`.

No shell sees it. That it fails is said, and changes no verdict: the report lies where it was written.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from drills.errors import UsageError
from drills.output import visible
from drills.targetfile import FOLDER_WORD, NAME_WORD, Publish

LINE_MAX: Final = 200
KILL_TIMEOUT_S: Final = 5.0
LOOK_S: Final = 0.2
SAID_MAX: Final = 64 << 10  # bytes at the end of what it wrote
_CREDENTIALS = re.compile(r"://[^/\s@]+@")


class Ended(Exception):
    """The command was ended before its own end; the text says why."""


def publish(how: Publish, folder: Path, *, stopping: Callable[[], bool] = lambda: False) -> str:
    """Run the command for a report's folder, to its end; returns a line about it. Never raises what the world causes.

    What it is given in `env` is not in that line. It is ended as soon as `stopping`.
    """
    folder = folder.resolve()
    program = how.run[0]
    argv = [word.replace(FOLDER_WORD, str(folder)).replace(NAME_WORD, folder.name) for word in how.run]
    try:
        given = {name: secret.value() for name, secret in how.env.items()}
    except UsageError as error:
        return f"not published: {folder.name}: {error}"
    try:
        code, said = _run(argv, {**os.environ, **given}, how.timeout, stopping)
    except OSError as error:
        return f"not published: {folder.name}: {program} cannot be run: {error.strerror or error}"
    except Ended as error:
        return f"not published: {folder.name}: {program} {error}"
    if code == 0:
        return f"published: {folder.name}, by {program}"
    why = _last_line(said, given.values())
    return f"not published: {folder.name}: {program} ended with {code}{f': {why}' if why else ''}"


def _run(argv: list[str], env: Mapping[str, str], timeout_s: float, stopping: Callable[[], bool]) -> tuple[int, str]:
    """Return exit status and what it wrote. Raises Ended; then all that it started has been ended, too."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait(process, timeout_s, stopping)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
            process.wait(KILL_TIMEOUT_S)
            raise
        out.seek(max(0, out.seek(0, os.SEEK_END) - SAID_MAX))
        return process.returncode, out.read().decode(errors="replace")


def _wait(process: subprocess.Popen[bytes], timeout_s: float, stopping: Callable[[], bool]) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            return
        if stopping():
            raise Ended("was ended, because a signal came")
        if time.monotonic() > deadline:
            raise Ended(f"did not end within {timeout_s:g} s and was ended")


def _last_line(said: str, secrets: Iterable[str]) -> str:
    """Return the last line that says something, without a secret in it."""
    for secret in sorted((s for s in secrets if s), key=len, reverse=True):
        said = said.replace(secret, "***")
    lines = [line.strip() for line in _CREDENTIALS.sub("://***@", said).splitlines()]
    return visible(next((line for line in reversed(lines) if line), ""))[:LINE_MAX]
