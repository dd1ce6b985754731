"""The service of examples/kubernetes, applied as it is, and the shipped drills on it, run as a user runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.example import Example
from tests.cluster.kube import Namespace
from tests.lab.drilling import Driller, Ran

QUICK = Path(__file__).parent / "experiments" / "pod-kill.yaml"
ALERT = "VllmReplicaDown"
RUN_TIMEOUT_S = 600.0
#: Of the short experiments, which have too few requests to show more.
PATIENT = {"ttft": {"p99": "2s"}, "e2e": {"p99": "8s"}, "max_gap": {"p99": "4s"}, "errors": "5%"}


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Example]:
    """Return the example's service, without anything changed in it."""
    example = Example(Namespace.make(cluster))
    try:
        example.create()
        yield example
    finally:
        example.namespace.delete()


def driller(folder: Path, cluster: Path) -> Driller:
    """Return `drill` with a reports folder of its own."""
    made = Driller(folder / "lab", folder / "reports", 0, timeout_s=RUN_TIMEOUT_S)
    made.env["KUBECONFIG"] = str(cluster)
    return made


def run(service: Example, drill: Driller, what: str, targets: Path, *more: str) -> Ran:
    """Run `drill run WHAT` with that targets file, with nobody else at work on the node."""
    words = ["run", what, "--targets", str(targets), "--reports", str(drill.reports), "--plain", *more]
    return service.undisturbed(lambda: drill(*words))


def test_the_shipped_pod_kill_passes(shared: Example, tmp_path: Path, cluster: Path) -> None:
    before = shared.uids()
    ran = run(shared, driller(tmp_path, cluster), "pod-kill", shared.targets(tmp_path))
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


def test_the_shipped_packet_loss_passes(shared: Example, tmp_path: Path, cluster: Path) -> None:
    ran = run(shared, driller(tmp_path, cluster), "packet-loss", shared.targets(tmp_path))
    assert ran.code == 0, ran.out + ran.err
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    assert shared.left() == []


def test_the_shipped_upstream_delay_passes_through_the_application(
    shared: Example, tmp_path: Path, cluster: Path
) -> None:
    shared.put_application()
    ran = run(shared, driller(tmp_path, cluster), "upstream-delay", shared.targets(tmp_path), "--target", "app")
    assert ran.code == 0, ran.out + ran.err
    assert ran.row("degraded")["verdict"] == "pass"
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    assert shared.left() == []


def test_an_eviction_that_the_budget_allows_passes(shared: Example, tmp_path: Path, cluster: Path) -> None:
    shared.until_ready()
    path = tmp_path / "evict.yaml"
    path.write_text(QUICK.read_text().replace("HOW", "evict"))
    targets = shared.targets(tmp_path, lambda declared: declared.update(sla=PATIENT))
    ran = run(shared, driller(tmp_path, cluster), str(path), targets)
    assert ran.code == 0, ran.out + ran.err
    shared.until_ready()
