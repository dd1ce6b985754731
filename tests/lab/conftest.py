"""One lab for all tests that only need a lab: `lab` (session), `lab_env`, `control`, `target`.

A test that disturbs it waits until it is well again: `control` checks that before each test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drills.lab import manage
from drills.lab.client import Control, Lab
from drills.lab.config import LabConfig
from drills.lab.target import LabTarget
from tests.lab import labs


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A whole lab with a start-up time of 1 s, on ports and in a folder of its own."""
    folder = tmp_path_factory.mktemp("lab") / "lab"
    try:
        yield manage.up(LabConfig(port_base=labs.free_port_base(), startup_s=1.0), folder=folder)
    finally:
        manage.down(folder)


@pytest.fixture
def lab_env(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The shared lab as the one that `drill` finds, in this process and in the ones it starts."""
    monkeypatch.setenv("DRILL_LAB_DIR", str(lab.dir))
    return lab


@pytest.fixture
def control(lab: Lab) -> Control:
    """The control API of the shared lab, with every replica ready."""
    control = lab.control()
    labs.eventually(lambda: labs.all_ready(control), 30)
    return control


@pytest.fixture
def target(lab: Lab, control: Control) -> LabTarget:
    """The shared lab as a target, with every replica ready."""
    return LabTarget(lab)
