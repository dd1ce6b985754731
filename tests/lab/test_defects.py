"""Three rows of the table of planted defects; `make test-defects` runs them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.defects.running import hold
from tests.defects.table import ROWS, Row

HERE = ("no-retries", "no-fallback", "truncating-gateway")


def marked(row: Row) -> object:
    return pytest.param(row, id=row.id, marks=[pytest.mark.root] if row.needs_root else [])


@pytest.mark.lab
@pytest.mark.parametrize("row", [marked(row) for row in ROWS if row.defect in HERE])
def test_a_planted_defect_is_found(row: Row, tmp_path: Path) -> None:
    hold(row, tmp_path)
