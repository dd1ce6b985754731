"""`drill plan` touches nothing: not the target, not the disk, not the network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drills.lab.client import Control, Lab
from tests.lab import labs, traces
from tests.lab.drilling import EXPERIMENTS, Driller

pytestmark = pytest.mark.lab
SHIPPED = sorted(path.stem for path in (Path(__file__).parents[2] / "experiments").glob("*.yaml"))

#: A driver whose interpreter refuses every way to change a file, reach a process, or speak on the network.
GUARDED = """
import os, sys
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NEVER = ("os.", "shutil.", "subprocess.", "socket.", "signal.pthread_kill", "tempfile.", "fcntl.")
READS = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.listxattr", "os.getxattr", "os.chdir"}
READS |= {"socket.__new__", "os.add_dll_directory", "os.putenv", "os.unsetenv"}
def refuse(event, args):
    if event == "open":
        bad = isinstance(args[2], int) and args[2] & WRITES and args[0] != os.devnull
    elif event == "socket.bind":
        bad = args[1][:2] != ("::1", 0)  # urllib3 finds out on import whether there is IPv6
    else:
        bad = event.startswith(NEVER) and event not in READS
    if bad:
        os.write(2, f"CHANGES SOMETHING: {event} {args!r}\\n".encode())
        os._exit(99)
sys.addaudithook(refuse)
from drills import cli
cli.main()
"""


def guarded(lab: Lab, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a `drill` that ends with 99 at the first attempt to change anything."""
    env = {**os.environ, "DRILL_LAB_DIR": str(lab.dir), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-c", GUARDED, *words]
    return subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_plan_changes_nothing_and_says_on_every_line_that_it_is_one(
    name: str, lab: Lab, control: Control, tmp_path: Path
) -> None:
    def now() -> Any:
        drill = traces.files(traces.state_dir(lab))
        gpu = traces.settings(lab), traces.resets(lab)
        return control.status(), labs.last_event(control), drill, gpu

    before = now()
    ran = Driller(lab.dir, tmp_path / "reports", lab.data["port_base"])("plan", name, cwd=tmp_path)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert len(lines) > 5
    assert all(line.startswith("plan: ") for line in lines), ran.out
    assert now() == before
    assert list(tmp_path.iterdir()) == [], "a plan made a file"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_plan_does_not_even_try(name: str, lab: Lab, tmp_path: Path) -> None:
    planned = guarded(lab, tmp_path, "plan", name)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("plan: ")


@pytest.mark.parametrize(
    "words",
    [
        ("run", str(EXPERIMENTS / "short-noop.yaml")),  # makes a folder
        ("lab", "status"),  # speaks with the supervisor
    ],
    ids=lambda words: words[0],
)
def test_the_guard_would_have_seen_it(words: tuple[str, ...], lab: Lab, tmp_path: Path) -> None:
    done = guarded(lab, tmp_path, *words)
    assert (done.returncode, "CHANGES SOMETHING" in done.stderr) == (99, True), done.stderr
