"""The service of examples/kubernetes, applied as it is, and the shipped drills on it, run as a user runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.driving import driller, pod_kill
from tests.cluster.emulator import serving
from tests.cluster.example import ALERT, PATIENT, RUN_TIMEOUT_S, Example, run
from tests.lab.drilling import Driller


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Example]:
    """Return the example's service, without anything changed in it."""
    with serving(Example, cluster) as made:
        yield made


@pytest.fixture
def drill(tmp_path: Path, cluster: Path) -> Driller:
    return driller(tmp_path, cluster, RUN_TIMEOUT_S)


def test_the_shipped_pod_kill_passes(shared: Example, drill: Driller, tmp_path: Path) -> None:
    before = shared.uids()
    ran = run(shared, drill, "pod-kill", shared.targets(tmp_path))
    assert ran.code == 0, ran.out + ran.err
    assert {row["verdict"] for row in ran.verdict["checks"]} == {"pass"}, ran.out
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    assert len(before - shared.uids()) == 1
    row = ran.row("alert")
    assert row["detail"]["fired_s"] < row["bound"]
    assert row["detail"]["notified_s"] is not None
    assert row["detail"]["resolved_s"] is not None
    assert row["detail"]["labels"] == {"service": "chat", "model": "lab-chat", "severity": "page"}
    # Not only do the counters say so: whoever was to be told was told.
    assert f'"alertname":"{ALERT}"' in shared.paged()
    shared.until_ready()
    assert shared.left() == []


def test_the_shipped_packet_loss_passes(shared: Example, drill: Driller, tmp_path: Path) -> None:
    ran = run(shared, drill, "packet-loss", shared.targets(tmp_path))
    assert ran.code == 0, ran.out + ran.err
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    assert shared.left() == []


def test_the_shipped_upstream_delay_passes_through_the_application(
    shared: Example, drill: Driller, tmp_path: Path
) -> None:
    shared.put_application()
    ran = run(shared, drill, "upstream-delay", shared.targets(tmp_path), "--target", "app")
    assert ran.code == 0, ran.out + ran.err
    assert ran.row("degraded")["verdict"] == "pass"
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    assert shared.left() == []


def test_an_eviction_that_the_budget_allows_passes(shared: Example, drill: Driller, tmp_path: Path) -> None:
    shared.until_ready()
    path = tmp_path / "evict.yaml"
    path.write_text(pod_kill("evict"))
    targets = shared.targets(tmp_path, lambda declared: declared.update(sla=PATIENT))
    ran = run(shared, drill, str(path), targets)
    assert ran.code == 0, ran.out + ran.err
    shared.until_ready()
