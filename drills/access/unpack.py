"""What puts the shipped modules in their place on a host, and sees each time that they are what was shipped.

It is run there from a pipe, before anything of this package is on the host (`drills.access.shipped`):

    python3 -c 'read this text from the pipe and run it' LENGTH STATE_DIR HASH < (this text, then a tar of the modules)

Standard library only, and none of ours. It says one object of JSON: ok, and the launcher, which runs a Python that
knows the modules; or what is wrong.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LAUNCHER = "python"
CHECK = "import drills.access.remote"
CHECK_TIMEOUT_S = 20


def main(state_dir: str, wanted: str) -> dict[str, Any]:
    """Make sure that the modules of that hash lie under the state's folder, whole; returns what is said."""
    os.umask(0o077)
    packed = sys.stdin.buffer.read()
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            found = tar.extractfile(member) if member.isreg() else None
            if found is None or member.name.startswith("/") or ".." in member.name.split("/"):
                return {"ok": False, "error": "what was shipped holds more than files"}
            files[member.name] = found.read()
    if digest(files) != wanted:
        return {"ok": False, "error": "what was shipped has arrived damaged"}
    if error := own(Path(state_dir)):
        return {"ok": False, "error": error}
    lib = Path(state_dir, "lib")
    lib.mkdir(exist_ok=True)
    place = lib / wanted
    said = {
        "ok": True,
        "python": str(place / LAUNCHER),
        "version": sys.version.split()[0],
        "systemd": Path("/run/systemd/system").is_dir(),
    }
    whole = {**files, LAUNCHER: launcher(sys.executable).encode()}
    with _alone(lib):
        if _there(place) == whole:
            return {**said, "new": False}
        error = _placed(lib, place, whole)
    return {"ok": False, "error": error} if error else {**said, "new": True}


def digest(files: dict[str, bytes]) -> str:
    """Return the hash that names these files."""
    found = hashlib.sha256()
    for name in sorted(files):
        found.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return found.hexdigest()[:16]


def launcher(python: str) -> str:
    """Return the program that runs a Python which knows the modules beside it, whatever folder and locale it is in."""
    return (
        '#!/bin/sh\nPYTHONPATH="${0%/*}"\nexport PYTHONPATH\nunset PYTHONHOME\ncd /\n'
        f'exec {shlex.quote(python)} -s -X utf8 "$@"\n'
    )


def own(folder: Path, instead: str = "set state_dir") -> str | None:
    """Make a folder of ours; says what is wrong with one in which others could put something of theirs."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in (folder, folder / "lib"):
        with suppress(FileNotFoundError):
            found = one.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return f"{one} is not a folder that only {os.geteuid()} (uid) may write to: remove it, or {instead}"
    for one in folder.parents:
        found = one.stat()
        shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if shared or found.st_uid not in (0, os.geteuid()):
            return f"{folder} can be replaced by whoever may write to {one}: {instead}"
    return None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let nobody else place anything meanwhile; the kernel's lock ends with whoever holds it."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
        os.fsync(fd)
    finally:
        os.close(fd)


def _there(place: Path) -> dict[str, bytes]:
    """Return the files that lie there, but for what Python makes of them."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _placed(lib: Path, place: Path, files: dict[str, bytes]) -> str | None:
    """Write the files beside their place, see that they run, and move them there in one step."""
    for left in lib.glob(".ship-*"):  # of one that was cut short
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    new, old = lib / f".ship-{os.getpid()}", lib / f".ship-old-{os.getpid()}"
    try:
        for name, content in files.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
        (new / LAUNCHER).chmod(0o700)
        if error := _runs(new / LAUNCHER):
            return error
        if place.exists():  # damaged
            place.replace(old)
        new.replace(place)
    except OSError as error:
        return f"{place} cannot be written: {error.strerror}"
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return None


def _runs(launcher: Path) -> str | None:
    """Say what keeps the modules from running, a file system mounted noexec for example."""
    argv = [str(launcher), "-c", CHECK]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S, check=False
        )
    except OSError as error:
        hint = " (is it mounted noexec? set state_dir)" if isinstance(error, PermissionError) else ""
        return f"{launcher.parent} cannot be run from: {error.strerror}{hint}"
    except subprocess.TimeoutExpired:
        return f"{launcher.parent}: Python did not start within {CHECK_TIMEOUT_S} s"
    words = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return None if done.returncode == 0 else f"{sys.executable}: {words[-1][:200]}"


if __name__ == "__main__":
    try:
        answer = main(*sys.argv[2:])
    except OSError as error:
        answer = {"ok": False, "error": f"{error.filename}: {error.strerror}"}
    print(json.dumps(answer))
