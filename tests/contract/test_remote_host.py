"""A host behind a carrier is a host: the same calls as on this machine, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from drills.access import procs
from drills.access.local import LocalHost
from drills.access.remote import RemoteHost, answer
from drills.errors import Refused, Unreachable
from drills.model import Completed


def carry(argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
    """Carry to a process of this machine, whose input never ends, as that of an exec."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdin is not None
        kept_open = os.dup(p.stdin.fileno())
        try:
            out, err = p.communicate(stdin, timeout=timeout_s)
            return Completed(tuple(argv), p.returncode, out, err)
        except subprocess.TimeoutExpired:
            p.kill()
            return Completed(tuple(argv), 124, "", "", timed_out=True)
        finally:
            os.close(kept_open)


@pytest.fixture
def host() -> RemoteHost:
    return RemoteHost("there", carry, python=sys.executable)


def test_a_command_ends_with_its_status_and_both_outputs(host: RemoteHost) -> None:
    done = host.run(["sh", "-c", "cat; echo 'a  b' >&2; exit 7"], timeout_s=10, stdin="über\n$(x)\n")
    assert (done.rc, done.out, done.err, done.timed_out) == (7, "über\n$(x)\n", "a  b\n", False)
    assert done.argv == ("sh", "-c", "cat; echo 'a  b' >&2; exit 7")


def test_a_command_that_takes_too_long_is_a_result(host: RemoteHost) -> None:
    assert host.run(["sleep", "60"], timeout_s=0.2).timed_out


def test_files_come_and_go(host: RemoteHost, tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "file")
    assert host.read(path) is None
    host.write(path, "line\n" * 40_000)
    assert host.read(path) == "line\n" * 40_000
    assert host.list(str(tmp_path / "deep")) == ["file"]
    assert Path(path).stat().st_mode & 0o777 == 0o600
    host.remove(path)
    host.remove(path)
    assert host.list(str(tmp_path / "deep")) == []


def test_processes_are_named_by_pid_and_start(host: RemoteHost, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        start = procs.start(sleeper.pid)
        assert start is not None
        assert host.alive(sleeper.pid, start)
        assert not host.signal(sleeper.pid, start + 1, "TERM")
        assert host.tree(os.getpid(), procs.start(os.getpid()) or 0)
        assert host.signal(sleeper.pid, start, "TERM")
        sleeper.wait(10)
        assert not host.alive(sleeper.pid, start)


def test_what_is_spawned_outlives_its_call(host: RemoteHost, tmp_path: Path) -> None:
    log = tmp_path / "log"
    host.spawn(["sh", "-c", "echo begun; sleep 0.3; echo ended"], log=str(log))
    deadline = time.monotonic() + 20
    while "ended" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert log.read_text().split() == ["begun", "ended"]


def test_what_goes_wrong_there_is_one_sentence_here(host: RemoteHost, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^there: read: IsADirectoryError: [^\n]*$"):
        host.read(str(tmp_path))
    with pytest.raises(Refused, match=r"^there: signal: KeyError: [^\n]*$"):
        host.signal(os.getpid(), 1, "NOSUCH")


def test_a_machine_that_does_not_answer_is_one_sentence_too() -> None:
    silent = RemoteHost("there", lambda argv, stdin, timeout_s: Completed(tuple(argv), 124, "", "", timed_out=True))
    with pytest.raises(Unreachable, match=r"^there: list: status 124: timed out$"):
        silent.list("/")
    bare = RemoteHost("there", carry, python="/nonexistent/python")
    with pytest.raises(FileNotFoundError):  # a carrier's own trouble is the carrier's to tell
        bare.list("/")
    without = RemoteHost(
        "there", lambda argv, stdin, timeout_s: Completed(tuple(argv), 1, "", "No module named 'drills'")
    )
    with pytest.raises(Unreachable, match="No module named 'drills'"):
        without.read("/etc/hostname")


def test_only_calls_of_a_host_are_made() -> None:
    asked = json.dumps({"call": "__init__", "arguments": {}})
    assert answer(asked) == {"ok": False, "error": "no such call: __init__"}
    assert not set(dir(LocalHost())) - {n for n in dir(LocalHost()) if n.startswith("_")} - {
        "name", "python", "run", "spawn", "read", "write", "remove", "list", "signal", "alive", "tree",
    }  # fmt: skip
