"""The hosts of these tests: brought up by the first that asks, used by one test file at a time, gone after the last."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import layout, life
from tests.hosts.fleet import Fleet
from tests.machines.locks import lock


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.hosts)
            item.add_marker(pytest.mark.root)


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
