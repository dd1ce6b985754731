"""Tests on a real Kubernetes, by `make test-cluster` only: on the cluster of KUBECONFIG, else on a node of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import sampling
from tests.cluster import node
from tests.cluster.cache import TREE
from tests.cluster.emulator import Emulator, serving
from tests.cluster.kube import Namespace

pytest.register_assert_rewrite("tests.cluster.driving")
collect_ignore_glob = [] if os.environ.get("DRILL_TEST_CLUSTER") == "1" else ["test_*.py"]
#: Kept now: each test runs without it.
GIVEN = os.environ.get("KUBECONFIG")
UP_TIMEOUT_S, DOWN_TIMEOUT_S = 3600.0, 120.0
ALONE = "test_leaves_nothing.py"


def pytest_report_header() -> str | None:
    """Say which sample is drawn, if one is."""
    return None if collect_ignore_glob else sampling.header()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is here, and draw the sample; first comes what needs the machine without a node."""
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in here:
        item.add_marker(pytest.mark.cluster)
    sampling.keep(config, items, here)
    items.sort(key=lambda item: item.path.name != ALONE)


def run_node(verb: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run `python -m tests.cluster.node VERB`."""
    command = [sys.executable, "-m", "tests.cluster.node", verb]
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Path]:
    """Return the kubeconfig of the cluster; a node that was not up is brought up, and taken down at the end."""
    if GIVEN:
        yield Path(GIVEN)
        return
    if reason := node.missing():
        pytest.skip(reason)
    with node.in_use():
        up = run_node("borrow", UP_TIMEOUT_S)
        assert up.returncode == 0, up.stderr
        yield node.kubeconfig()


@pytest.fixture(scope="session")
def own_node(cluster: Path) -> Path:
    """Return the kubeconfig of our own node, whose components `tests.cluster.node` can stop and start."""
    if GIVEN:
        pytest.skip("needs the node of `make cluster-up`, and KUBECONFIG names another cluster")
    return cluster


@pytest.fixture
def namespace(cluster: Path) -> Iterator[Namespace]:
    """Return a namespace of the test's own; it is gone when the next test begins."""
    made = Namespace.make(cluster)
    try:
        yield made
    finally:
        made.delete()


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Emulator]:
    """Three replicas for the tests of a module; one that needs another service has a `shared` of its own."""
    with serving(Emulator, cluster) as made:
        yield made


@pytest.fixture
def service(shared: Emulator) -> Iterator[Emulator]:
    """What is shared, all Ready; afterwards no drill may have left anything."""
    shared.until_ready()
    yield shared
    assert shared.left() == []
