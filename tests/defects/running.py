"""Runs one row of the table as a user would, and holds it to what the row says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drills.errors import EXIT_REFUSED
from drills.lab import manage
from tests.defects.table import Row
from tests.lab import labs
from tests.lab.drilling import Driller


def hold(row: Row, folder: Path) -> None:
    """Run the row's drill on a lab of its own, which is gone afterwards, and assert what it found."""
    if row.needs_root and os.geteuid() != 0:
        pytest.skip("the lab's network can be shaped by root only")
    driller = Driller(folder / "lab", folder / "reports", labs.free_port_base())
    planted = ["--defect", row.defect] if row.defect else []
    try:
        ran = driller.run(str(row.experiment), *planted, "--startup", row.startup, "--seed", "5")
    finally:
        manage.down(folder / "lab")
    assert ran.code == row.code, ran.out + ran.err
    assert labs.processes_of(folder / "lab") == [], "the run left its lab up"
    if row.code == EXIT_REFUSED:
        assert ran.events("inject.hit") == [], "refused, and all the same something was hit"
        return
    failing, table = ran.failing(), f"{row.id}:\n{ran.out}"
    assert failing <= row.must_fail | row.may_fail, table
    assert failing & row.must_fail or not row.must_fail, table
    assert ran.verdict["restored"] == "clean", table
