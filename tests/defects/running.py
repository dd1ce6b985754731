"""Runs one row of the table as a user would, and holds it to what the row says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drills.errors import EXIT_INCONCLUSIVE, EXIT_REFUSED
from drills.lab import manage
from tests.defects.table import Row
from tests.lab import labs
from tests.lab.drilling import Driller, Ran


def hold(row: Row, folder: Path) -> None:
    """Run the row's drill on a lab of its own, which is gone afterwards, and assert what it found.

    A run that may not be judged, because the machine was too busy for the load to be on time, has said nothing about
    the row and is repeated once.
    """
    if row.needs_root and os.geteuid() != 0:
        pytest.skip("the lab's network can be shaped by root only")
    ran = _run(row, folder / "first")
    if ran.code == EXIT_INCONCLUSIVE:
        ran = _run(row, folder / "second")
    assert ran.code == row.code, ran.out + ran.err
    if row.code == EXIT_REFUSED:
        assert ran.events("inject.hit") == [], "refused, and all the same something was hit"
        return
    failing, said = ran.failing(), f"{row.id}:\n{ran.out}"
    assert failing <= row.must_fail | row.may_fail, said
    assert failing & row.must_fail or not row.must_fail, said
    assert ran.verdict["restored"] == "clean", said


def _run(row: Row, folder: Path) -> Ran:
    driller = Driller(folder / "lab", folder / "reports", labs.free_port_base())
    planted = ["--defect", row.defect] if row.defect else []
    try:
        ran = driller.run(str(row.experiment), *planted, "--startup", row.startup, "--seed", "5")
    finally:
        manage.down(folder / "lab")
    assert labs.processes_of(folder / "lab") == [], "the run left its lab up"
    return ran
