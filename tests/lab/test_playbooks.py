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
    """The lab's addresses under the playbooks' names."""
    replicas = [r["engine"] for r in lab.control().status()["replicas"] if r["role"] == "primary"]
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DRILL_LAB_DIR": str(lab.dir),
        "ENDPOINT": lab.url,
        "REPLICA": replicas[0],
        "REPLICAS": " ".join(replicas),
        "PROM": lab.data["prometheus"],
        "DCGM": lab.data["dcgm"],
        "NVIDIA_SMI": lab.data["nvidia_smi"],
    }


def run(playbook: str, number: int, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a block with the first one before it."""
    first, *rest = _blocks(playbook)
    script = first + (rest[number - 1] if number else "")
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


def test_a_block_that_finds_nothing_says_so(lab: Lab, control: Control, tmp_path: Path) -> None:
    """The test above could not fail if the blocks swallowed what goes wrong."""
    nowhere = "http://127.0.0.1:9"
    dead = {"ENDPOINT": f"{nowhere}/v1", "REPLICA": nowhere, "REPLICAS": nowhere, "PROM": nowhere, "DCGM": nowhere}
    env = environment(lab) | dead | {"NVIDIA_SMI": str(tmp_path / "no-such-program")}
    for playbook, number in blocks():
        done = run(playbook, number, env, tmp_path)
        reads_only_drill = number == 0 or _blocks(playbook)[number].strip() == "drill status"
        found_out = done.returncode != 0 or any(word in done.stdout for word in BAD_WORDS)
        assert found_out is not reads_only_drill, (playbook, number, done.stdout)
