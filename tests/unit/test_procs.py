"""Signals reach the process that is meant, by whatever the kernel offers for that."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drills.access import ontarget, procs, unittimer

GONE = (2**22 - 1, 1)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture(params=["none", "not in Python", "filtered"])
def old_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before 5.3, a Python that was built for one, or a container whose filter does not know the call."""
    if request.param == "not in Python":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(signal, "pidfd_send_signal")
        return
    number = {"none": errno.ENOSYS, "filtered": errno.EPERM}[request.param]

    def refused(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refused)


@pytest.mark.usefixtures("old_kernel")
def test_where_there_are_no_pidfds_it_reaches_that_very_process_too(sleeper: subprocess.Popen[bytes]) -> None:
    start = procs.start(sleeper.pid)
    assert start is not None
    assert not procs.signal(sleeper.pid, start + 1, signal.SIGKILL)
    assert not procs.signal(*GONE, signal.SIGKILL)
    assert procs.alive(sleeper.pid, start)
    assert procs.signal(sleeper.pid, start, signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM
    assert not procs.signal(sleeper.pid, start, signal.SIGTERM)


@pytest.mark.usefixtures("old_kernel")
@pytest.mark.parametrize("program", [ontarget, unittimer])
def test_there_a_receipt_is_undone_and_disarmed(program: Any, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """Its timer is gone already, and what it is about is a process that was stopped."""
    start = procs.start(sleeper.pid)
    step = {"do": "signal", "pid": sleeper.pid, "start": start, "signal": "TERM"}
    spec = tmp_path / "x.json"
    ontarget.write_json(spec, {"undo": [step], "holds": ["/gate"], "deadline_s": 60.0})
    gone = dict(zip(("pid", "start"), GONE, strict=True))
    ontarget.write_json(ontarget.state_file(spec), {"state": "armed", **gone})
    ontarget.write_json(unittimer.hold_file(spec), gone)
    assert program.undo(spec)["ok"]
    assert sleeper.wait(10) == -signal.SIGTERM
    assert program.disarm(spec)["ok"]


def test_what_else_goes_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", full)
    with pytest.raises(OSError, match="Too many open files"):
        procs.signal(os.getpid(), procs.start(os.getpid()) or 0, 0)
