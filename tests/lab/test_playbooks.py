"""Every command of every playbook is run against the lab, as a person who was paged would run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.lab.client import Control, Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(shutil.which("curl") is None, reason="the playbooks ask with curl, which is not installed"),
]
PLAYBOOKS = sorted((Path(__file__).parents[2] / "playbooks").glob("*.md"))
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: The line of the first block that a reader replaces by the addresses of a service.
ASKS_THE_LAB = 'LAB=$(drill lab status --sh) && eval "$LAB"\n'
#: What a loop over replicas says of one that is not well; its own status hides it.
BAD_WORDS = ("does NOT answer", "no metrics")


def blocks() -> Iterator[tuple[str, int]]:
    """Yield (playbook, number) of every block; the first one sets the variables."""
    for path in PLAYBOOKS:
        yield from ((path.stem, number) for number in range(len(_blocks(path.stem))))


def _blocks(playbook: str) -> list[str]:
    [path] = [p for p in PLAYBOOKS if p.stem == playbook]
    found: list[str] = BLOCK.findall(path.read_text())
    return found


def environment(lab: Lab) -> dict[str, str]:
    """No address of the lab: the playbooks have to find out by themselves, wherever it lives."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "DRILL_LAB_DIR": str(lab.dir)}


def run(
    playbook: str, number: int, env: dict[str, str], cwd: Path, addresses: str = ASKS_THE_LAB
) -> subprocess.CompletedProcess[str]:
    """Run a block with the first one before it, in which `addresses` take the place of the line that asks the lab."""
    first, *rest = _blocks(playbook)
    assert first.count(ASKS_THE_LAB) == 1
    script = first.replace(ASKS_THE_LAB, addresses) + (rest[number - 1] if number else "")
    return subprocess.run(
        ["sh", "-eu"], input=script, env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("playbook", "number"), list(blocks()))
def test_every_block_works(playbook: str, number: int, lab: Lab, control: Control, tmp_path: Path) -> None:
    done = run(playbook, number, environment(lab), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [word for word in BAD_WORDS if word in done.stdout], done.stdout
    assert done.stdout or number == 0
    assert list(tmp_path.iterdir()) == []


def test_without_a_lab_the_reader_is_told(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run("pod-kill", 3, {"PATH": path, "DRILL_LAB_DIR": str(tmp_path / "none")}, tmp_path)
    assert done.returncode != 0
    assert "lab: not up; a run starts it, or `drill lab up`" in done.stderr


def test_a_block_that_finds_nothing_says_so(lab: Lab, control: Control, tmp_path: Path) -> None:
    """The test above could not fail if the blocks swallowed what goes wrong."""
    nowhere = "http://127.0.0.1:9"
    dead = f"ENDPOINT={nowhere}/v1 MODEL=m REPLICAS='{nowhere} {nowhere}' PROM={nowhere} DCGM={nowhere}\n"
    dead += f"NVIDIA_SMI={tmp_path}/no-such-program\n"
    env = environment(lab)
    for playbook, number in blocks():
        done = run(playbook, number, env, tmp_path, addresses=dead)
        reads_only_drill = number == 0 or _blocks(playbook)[number].strip() == "drill status"
        found_out = done.returncode != 0 or any(word in done.stdout for word in BAD_WORDS)
        assert found_out is not reads_only_drill, (playbook, number, done.stdout)
