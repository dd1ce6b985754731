"""The notes of a reset, written by the very script that runs one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from drills.access.local import LocalHost
from drills.faults import gpu_notes
from drills.model import Json

BOOT_ID = Path(gpu_notes.BOOT_ID)


@pytest.fixture
def base(tmp_path: Path) -> str:
    Path(f"{tmp_path}/reset.begun").write_text("abcd0123-0-gpu-reset")
    return f"{tmp_path}/reset"


def ran(base: str, *command: str) -> gpu_notes.Reset:
    """Run a reset that is the command, as it is run on a host, and return what its notes tell."""
    subprocess.run(["/bin/sh", "-c", gpu_notes.RUN_RESET, base, *command], check=True, timeout=10)
    found = gpu_notes.read(LocalHost(), base)
    assert found is not None
    return found


def booted_since(base: str) -> None:
    """Make it a reset of an earlier boot, in the middle of which the machine went down."""
    note, boot_id = Path(f"{base}.pid"), BOOT_ID.read_text().strip()
    Path(f"{base}.rc").unlink()
    assert boot_id in note.read_text()
    note.write_text(note.read_text().replace(boot_id, "another"))


def test_the_script_notes_process_begin_boot_and_end(base: str) -> None:
    reset = ran(base, "sh", "-c", "exit 3")
    assert (reset.rc, reset.boot_id) == (3, BOOT_ID.read_text().strip())
    assert reset.begun_s is not None
    assert 0 < reset.begun_s <= float(Path("/proc/uptime").read_text().split()[0])
    assert not gpu_notes.cut_short(LocalHost(), reset)


def test_nothing_runs_once_an_undo_has_taken_the_note_away(base: str) -> None:
    Path(f"{base}.begun").unlink()
    done = subprocess.run(
        ["/bin/sh", "-c", gpu_notes.RUN_RESET, base, "touch", f"{base}.done"], check=False, timeout=10
    )
    assert (done.returncode, list(Path(base).parent.iterdir())) == (0, [])


def test_a_boot_in_the_middle_is_told_from_the_notes_alone(base: str) -> None:
    ran(base, "true")
    booted_since(base)
    reset = gpu_notes.read(LocalHost(), base)
    assert reset is not None
    assert gpu_notes.cut_short(LocalHost(), reset)


@pytest.mark.parametrize(
    ("reset", "since_s"),
    [
        (gpu_notes.Reset(900.0, 0, "", "b"), 100.0),
        (gpu_notes.Reset(900.0, 0, ""), 100.0),  # whoever noted it knew no boot id
        (gpu_notes.Reset(5000.0, 0, "", "an earlier one"), 1000.0),  # that boot set the GPU up anew
        (gpu_notes.Reset(None, None, ""), 0.0),
        (None, 0.0),
    ],
)
def test_how_long_ago_it_began(reset: gpu_notes.Reset | None, since_s: float) -> None:
    now: Json = {"host_uptime_s": 1000.0, "boot_id": "b"}
    assert gpu_notes.elapsed_s(now, reset) == since_s
