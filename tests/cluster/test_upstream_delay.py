"""Ledger proxies that a run puts in front of engines in pods: what they see and do, and that nothing of them stays."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.model import Json
from tests.cluster.kube import Namespace
from tests.cluster.served import Served
from tests.cluster.test_pod_kill import place
from tests.lab.drilling import DRILL, Driller, Ran

EXPERIMENTS = Path(__file__).parent / "experiments"
INSTRUMENT = "ledger-proxies"


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Served]:
    served = Served(Namespace.make(cluster))
    try:
        served.create()
        yield served
    finally:
        served.namespace.delete()


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """All of it, Ready; afterwards no drill may have left anything."""
    shared.until_ready()
    yield shared
    assert shared.left() == []


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, served: Served) -> Driller:
    driller = Driller(tmp_path / "lab", tmp_path / "reports", 0, timeout_s=400.0)
    driller.env["KUBECONFIG"] = str(cluster)
    served.declare(tmp_path)
    return driller


def words(drill: Driller, experiment: Path) -> list[str]:
    return ["run", str(experiment), *place(drill), "--plain"]


def begin(drill: Driller, experiment: Path) -> subprocess.Popen[str]:
    """Start a drill in a process group of its own."""
    return subprocess.Popen(
        [*DRILL, *words(drill, experiment)],
        env=drill.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ledger(ran: Ran) -> list[Json]:
    assert ran.folder is not None
    return [json.loads(line) for line in (ran.folder / "ledger.ndjson").read_text().splitlines()]


def instrument(ran: Ran, event: str) -> list[Json]:
    """Return the data of the events that tell of the proxies."""
    return [e["data"] for e in ran.events(f"beside.{event}") if e["data"]["receipt"].endswith(INSTRUMENT)]


def through(proof: Json) -> list[bool]:
    return [one["through"] and not one["beside"] for one in proof["evidence"]]


def test_every_primary_is_late_and_the_degradation_opens(drill: Driller, served: Served) -> None:
    before = served.uids()
    ran = drill(*words(drill, EXPERIMENTS / "upstream-delay.yaml"))
    assert ran.code == 0, ran.out + ran.err
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    [up], [down] = instrument(ran, "proof.on"), instrument(ran, "proof.off")
    assert (up["ok"], through(up)) == (True, [True] * 4)  # three primaries, and the smaller model
    assert down["ok"] is True
    [on], [off] = ran.events("proof.on"), ran.events("proof.off")
    assert (on["data"]["ok"], off["data"]["ok"]) == (True, True)
    seen = [one for one in on["data"]["evidence"] if one["late"]]
    assert [one["connection"] for one in seen] == ["opened before the fault"] * 3
    assert all(one["took_s"] >= 4.5 for one in seen)
    assert {one["role"] for one in ledger(ran)} == {"primary", "fallback"}
    assert served.uids() == before
