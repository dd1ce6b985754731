"""What a machine can do to a drill: one sentence, the right exit code, nothing left running."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.lab import manage
from tests.lab import labs
from tests.lab.drilling import Driller

pytestmark = pytest.mark.lab


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Driller]:
    """`drill` without a lab; afterwards nothing may be left of one."""
    driller = Driller(tmp_path / "lab", tmp_path / "reports", labs.free_port_base())
    yield driller
    left = labs.processes_of(tmp_path / "lab")
    manage.down(tmp_path / "lab")
    assert left == []


def one_line(text: str) -> str:
    [line] = text.strip().splitlines()
    assert line.startswith("drill: ")
    assert "Traceback" not in line
    return line


def test_a_taken_port_is_named_with_its_holder_and_a_way_out(drill: Driller) -> None:
    with socket.create_server(("127.0.0.1", drill.port_base + 1)):
        ran = drill.run("short-noop")
    assert ran.code == 3
    said = one_line(ran.err)
    assert f"port {drill.port_base + 1}" in said
    assert f"pid {os.getpid()}" in said
    assert "--port-base" in said


def test_a_state_folder_where_nothing_can_be_made_is_named(drill: Driller, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    drill.env["DRILL_LAB_DIR"] = str(blocked / "lab")
    ran = drill.run("short-noop")
    assert ran.code == 3
    assert "DRILL_LAB_DIR" in one_line(ran.err)


def test_a_run_folder_that_cannot_be_made_is_refused_before_anything_is_touched(drill: Driller, tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file where the reports should go")
    ran = drill(
        "run", "noop", "--reports", str(tmp_path / "reports"), "--port-base", str(drill.port_base), "--startup", "1s"
    )
    assert ran.code == 3
    assert "--reports" in ran.err


def test_without_prometheus_the_alert_cannot_be_judged_and_the_rest_can(drill: Driller, tmp_path: Path) -> None:
    drill.env |= {"DRILL_TOOLS": str(tmp_path), "PATH": labs.path_without_monitoring(tmp_path)}
    ran = drill.run("defect-pod-kill", "--startup", "2s", "--seed", "6")
    assert ran.code == 2, ran.out + ran.err
    assert ran.row("alert")["verdict"] == "inconclusive"
    assert "install" in ran.row("alert")["reason"]
    assert ran.failing() == set()


@pytest.mark.root
def test_a_disk_that_fills_up_in_the_middle_still_ends_with_everything_put_back(drill: Driller, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(small)], check=True, timeout=10)
    try:
        ran = drill("run", "noop", "--reports", str(small), "--port-base", str(drill.port_base), "--startup", "1s")
        assert ran.code in (2, 3, 4), ran.out + ran.err
        assert "space" in (ran.out + ran.err).lower()
        assert "Traceback" not in ran.out + ran.err
    finally:
        subprocess.run(["umount", str(small)], check=True, timeout=10)
    assert drill("status", "--reports", str(tmp_path)).out.count("nothing is to be put back") == 1
