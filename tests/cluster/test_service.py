"""The service of examples/kubernetes, applied as it is, and the shipped drills on it, run as a user runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.model import Json
from tests.cluster.emulator import SELECTOR
from tests.cluster.example import Example
from tests.cluster.kube import Namespace
from tests.lab.drilling import Driller, Ran

QUICK = Path(__file__).parent / "experiments" / "pod-kill.yaml"
ALERT = "VllmReplicaDown"
CANARIES = {"CHAT_KEY": "sk-canary-51f0a9", "PROM_TOKEN": "tok-canary-77b2c4", "AM_TOKEN": "tok-canary-0e9d13"}
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


# ---- keys and tokens -----------------------------------------------------------------------------------


def locked(document: Json) -> None:
    """Have the engines ask everybody for a key."""
    if document["kind"] == "Deployment" and document["metadata"]["name"] == "vllm":
        env = document["spec"]["template"]["spec"]["containers"][0]["env"]
        env.append({"name": "VLLM_API_KEY", "value": CANARIES["CHAT_KEY"]})


def keyed(folder: Path) -> dict[str, Json]:
    """Return references to all secrets: one in a file, the others in the environment."""
    (folder / "key").write_text(CANARIES["CHAT_KEY"] + "\n")
    return {
        "api_key": {"file": str(folder / "key")},
        "prometheus": {"env": "PROM_TOKEN"},
        "alertmanager": {"env": "AM_TOKEN"},
    }


@pytest.fixture
def guarded(cluster: Path) -> Iterator[Example]:
    """Return the example's service with engines that ask for a key."""
    example = Example(Namespace.make(cluster), locked)
    try:
        example.create()
        yield example
    finally:
        example.namespace.delete()


def test_keys_reach_whoever_asks_for_them_and_nothing_else(
    guarded: Example, tmp_path: Path, cluster: Path, own_node: Path
) -> None:
    secrets = keyed(tmp_path)

    def change(chat: Json) -> None:
        chat["sla"] = PATIENT
        chat["endpoint"]["api_key"] = secrets["api_key"]
        for server in ("prometheus", "alertmanager"):
            chat[server]["bearer"] = secrets[server]
        chat["kubernetes"]["reach"] = "direct"

    drill = driller(tmp_path, cluster)
    (tmp_path / "kill.yaml").write_text(QUICK.read_text().replace("HOW", "delete"))
    targets = guarded.targets(tmp_path, change)
    assert "PROM_TOKEN is not set" in run(guarded, drill, str(tmp_path / "kill.yaml"), targets).err
    drill.env |= {name: CANARIES[name] for name in ("PROM_TOKEN", "AM_TOKEN")}
    ran = run(guarded, drill, str(tmp_path / "kill.yaml"), targets)
    assert ran.code == 0, ran.out + ran.err
    for canary in CANARIES.values():
        assert canary not in ran.out + ran.err
        for path in (path for path in drill.reports.rglob("*") if path.is_file()):
            assert canary.encode() not in path.read_bytes(), path

    guarded.until_ready()
    through_proxy = guarded.targets(tmp_path, lambda chat: chat["endpoint"].update(api_key=secrets["api_key"]))
    ran = run(guarded, drill, str(tmp_path / "kill.yaml"), through_proxy)
    assert ran.code == 3, ran.out + ran.err
    assert "HTTP 401: it wants a key" in ran.out + ran.err
    assert "reach: direct" in ran.out + ran.err
    assert len(guarded.namespace.ready_pods(SELECTOR)) == len(guarded.uids())
