"""The playbooks: five parts, one block of variables, commands that a shell can read and that change nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from drills import upkeep

UP = {
    "lab": {
        "entry": {"use": "edge", "edge": "http://a:1"},
        "model": "m",
        "prometheus": None,
        "dcgm": "http://a:2/metrics",
        "nvidia_smi": "/lab/bin/nvidia-smi",
    },
    "replicas": [
        {"role": "primary", "engine": "http://198.18.0.10:1"},
        {"role": "primary", "engine": "http://198.18.0.11:1"},
        {"role": "fallback", "engine": "http://127.0.0.1:1"},
    ],
}
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
    """Once by asking the lab, and once, in comments, as a service of one's own would be written."""
    first, *rest = blocks(path)
    lab = set(upkeep.shell_variables(UP))
    own = {name for line in first.splitlines() if line.startswith("#") for name in re.findall(r"\b([A-Z_]+)=", line)}
    more = set(re.findall(r"^([A-Z_]+)=\$\{\1:-", first, re.MULTILINE))
    used = {name for block in rest for name in re.findall(r"\$\{?([A-Z_]+)", block)}
    assert used
    assert used <= lab | more
    assert used <= own | more
    assert own <= lab


def test_the_lab_says_where_its_parts_are() -> None:
    found = upkeep.shell_variables(UP)
    assert found["ENDPOINT"] == "http://a:1/v1"
    assert found["REPLICAS"] == "http://198.18.0.10:1 http://198.18.0.11:1"
    assert found["PROM"] == ""


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_no_address_of_the_lab_is_written_down(path: Path) -> None:
    assert not re.search(r"127\.0\.0\.1|localhost|:18\d\d\d", path.read_text())


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
