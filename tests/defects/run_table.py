"""`make test-defects`: every row of the table, a drill of a minute and a half each.

The name of this file is none that pytest collects by itself, so that `make test` keeps to the rows of
`tests/lab/test_defects.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.defects.running import hold
from tests.defects.table import ROWS, Row


@pytest.mark.lab
@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS])
def test_a_drill_finds_what_is_wrong_and_nothing_else(row: Row, tmp_path: Path) -> None:
    hold(row, tmp_path)
