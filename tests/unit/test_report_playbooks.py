"""The playbooks: five parts, one block of variables, commands that a shell can read and that change nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "playbooks"
PLAYBOOKS = sorted(FOLDER.glob("*.md"))


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


def test_there_is_one_for_each_drill_that_harms() -> None:
    assert {"pod-kill", "gpu-reset"} <= {path.stem for path in PLAYBOOKS}


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_parts_come_in_their_order(path: Path) -> None:
    titles = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
    assert titles == ["Symptom", "Confirm", "Contain", "Repair", "Verify"]


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_the_first_block_defines_every_variable(path: Path) -> None:
    first, *rest = blocks(path)
    defined = {}
    for line in (line for line in first.splitlines() if not line.startswith("#")):
        name, value = line.split("=", 1)
        assert value.startswith(f"${{{name}:-"), line
        defined[name] = value
    assert rest
    for block in rest:
        used = set(re.findall(r"\$\{?([A-Z_]+)", block))
        assert used <= set(defined), block


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_a_shell_can_read_every_block_and_none_changes_anything(path: Path) -> None:
    for block in blocks(path):
        done = subprocess.run(["sh", "-n"], input=block, text=True, capture_output=True, check=False, timeout=10)
        assert done.returncode == 0, done.stderr
        assert not re.search(r"--gpu-reset|-X *(POST|DELETE|PUT)|\b(kill|rm|systemctl|kubectl|sudo)\b", block), block


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        assert (FOLDER / link).is_file(), link
