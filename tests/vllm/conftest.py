"""A lab of two real vLLM replicas, for `make test-vllm` only: they need an environment of 6 GB and minutes to start."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from drills.lab import manage
from drills.lab.client import Lab
from tests.lab import labs
from tests.lab.drilling import Driller

collect_ignore_glob = [] if os.environ.get("DRILL_CONTRACT_ENGINE") == "vllm" else ["test_*.py"]
RUN_TIMEOUT_S = 1500.0


@pytest.fixture(scope="session")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driller]:
    """Return `drill` with folders of its own; a lab that it started is taken down."""
    folder = tmp_path_factory.mktemp("vllm")
    driller = Driller(folder / "lab", folder / "reports", labs.free_port_base(), timeout_s=RUN_TIMEOUT_S)
    try:
        yield driller
    finally:
        manage.down(folder / "lab")


@pytest.fixture(scope="session")
def lab(drill: Driller) -> Lab:
    """Return the lab, started by the command that a user would give."""
    up = drill("lab", "up", "--engine", "vllm", "--port-base", str(drill.port_base))
    assert up.code == 0, up.out + up.err
    print(up.out)
    found = manage.find(drill.lab_dir)
    assert found is not None
    return found
