"""A drill has to find what is wrong: each planted defect fails by its own check, and by no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.lab import manage
from tests.lab import labs
from tests.lab.drilling import Driller

pytestmark = pytest.mark.lab


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Driller]:
    """`drill` that starts a lab of its own; whatever happens, the lab is gone afterwards."""
    driller = Driller(tmp_path / "lab", tmp_path / "reports", labs.free_port_base())
    yield driller
    manage.down(tmp_path / "lab")


@pytest.mark.parametrize(
    ("defect", "one_of", "may"),
    [
        ("restart-never", {"replica_restart"}, set[str]()),
        ("no-retries", {"failover", "availability"}, {"failover", "availability"}),
        ("no-alert", {"alert"}, set[str]()),
    ],
)
def test_a_planted_defect_is_found(
    drill: Driller, defect: str, one_of: set[str], may: set[str], tmp_path: Path
) -> None:
    ran = drill.run("defect-pod-kill", "--defect", defect, "--startup", "7s", "--seed", "5")
    assert ran.code == 1, ran.out + ran.err
    assert ran.failing() & one_of
    assert ran.failing() <= one_of | may
    assert ran.verdict["restored"] == "clean"
    assert labs.processes_of(tmp_path / "lab") == [], "the run left its lab up"
