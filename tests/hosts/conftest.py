"""The hosts of these tests, by `make test-hosts`: up when one asks, used by one file at a time, gone after the last."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.model import Json
from tests import sampling
from tests.hosts import layout, life, traces
from tests.hosts.fleet import Fleet
from tests.machines.locks import lock

collect_ignore_glob = [] if os.environ.get("DRILL_TEST_HOSTS") == "1" else ["test_*.py"]


def pytest_report_header() -> str | None:
    """Say which sample is drawn, if one is."""
    return None if collect_ignore_glob else sampling.header()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is here, and draw the sample."""
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in here:
        item.add_marker(pytest.mark.hosts)
        item.add_marker(pytest.mark.root)
    sampling.keep(config, items, here)


@pytest.fixture(scope="session")
def _borrowed() -> Iterator[None]:
    if reason := life.missing():
        pytest.skip(reason)
    with life.in_use():
        life.up()
        yield


@pytest.fixture(scope="module")
def fleet(_borrowed: None) -> Iterator[Fleet]:
    """Return the hosts, all well. Other test files wait meanwhile: what one breaks none else may see."""
    with Path(layout.folder() / "turn").open("w") as turn:
        lock(turn, fcntl.LOCK_EX)
        life.up()  # again, where the file before took them down
        found = Fleet()
        found.wait_settled()
        yield found


@pytest.fixture
def before(fleet: Fleet) -> Iterator[dict[str, Json]]:
    """Return what is on the hosts, which are in order; they are afterwards."""
    fleet.wait_settled()
    yield traces.all_of(fleet)
    for host in fleet.hosts:
        host.mend_driver()
        host.wait_ready()
