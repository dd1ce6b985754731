"""The table of planted defects is whole: what each row names exists, and the documentation says the same."""

from __future__ import annotations

import pytest

from drills.experiment import load_experiment
from drills.lab.defects import DEFECTS
from tests.defects.table import EXPERIMENTS, ROWS, Row
from tests.test_docs import LAB, rows, sections

PLANTED = [row for row in ROWS if row.defect]


def test_every_defect_has_one_row() -> None:
    assert sorted(str(row.defect) for row in PLANTED) == sorted(DEFECTS)


def test_every_drill_of_the_table_is_held_against_a_healthy_lab_too() -> None:
    """What fails there as well would be no sign of a defect."""
    named = {row.drill for row in ROWS}
    assert named == {path.stem for path in EXPERIMENTS.glob("*.yaml")}
    assert {row.drill for row in ROWS if row.defect is None} == named


@pytest.mark.parametrize("row", PLANTED, ids=lambda row: row.id)
def test_a_row_names_checks_that_its_drill_asks(row: Row) -> None:
    asked = {check.name for check in load_experiment(row.experiment).checks}
    assert row.must_fail | row.may_fail <= asked
    assert not row.must_fail & row.may_fail


def test_the_documentation_says_which_drill_finds_what_by_which_check() -> None:
    fault = {row: load_experiment(row.experiment).faults[0].name for row in PLANTED}
    by = {row: " ".join(f"`{check}`" for check in sorted(row.must_fail)) or "refused, exit code 3" for row in PLANTED}
    documented = {found[0].strip("`"): (found[2], found[3]) for found in rows(sections(LAB)["Planted defects"])}
    assert documented == {str(row.defect): (f"`{fault[row]}`", by[row]) for row in PLANTED}
