"""Keys and tokens of the example's service: they reach whoever asks for them, and nothing that a run leaves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from drills.model import Json
from tests.cluster.driving import driller, pod_kill
from tests.cluster.emulator import SELECTOR, serving
from tests.cluster.example import PATIENT, RUN_TIMEOUT_S, Example, run
from tests.lab.drilling import Driller

CANARIES = {"CHAT_KEY": "sk-canary-51f0a9", "PROM_TOKEN": "tok-canary-77b2c4", "AM_TOKEN": "tok-canary-0e9d13"}


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


@pytest.fixture(scope="module")
def guarded(cluster: Path) -> Iterator[Example]:
    """Return the example's service with engines that ask for a key."""
    with serving(partial(Example, change=locked), cluster) as made:
        yield made


@pytest.fixture
def drill(tmp_path: Path, cluster: Path) -> Driller:
    """Return `drill` beside an experiment in which a pod is deleted."""
    (tmp_path / "kill.yaml").write_text(pod_kill("delete"))
    return driller(tmp_path, cluster, RUN_TIMEOUT_S)


def test_keys_reach_whoever_asks_for_them_and_nothing_else(
    guarded: Example, drill: Driller, tmp_path: Path, own_node: Path
) -> None:
    secrets = keyed(tmp_path)

    def change(chat: Json) -> None:
        chat["sla"] = PATIENT
        chat["endpoint"]["api_key"] = secrets["api_key"]
        for server in ("prometheus", "alertmanager"):
            chat[server]["bearer"] = secrets[server]
        chat["kubernetes"]["reach"] = "direct"

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


def test_a_key_that_cannot_get_to_the_engines_is_one_sentence(guarded: Example, drill: Driller, tmp_path: Path) -> None:
    secrets = keyed(tmp_path)

    def change(chat: Json) -> None:
        chat["endpoint"]["api_key"] = secrets["api_key"]
        del chat["kubernetes"]["helper"], chat["kubernetes"]["ledger"]

    ran = run(guarded, drill, str(tmp_path / "kill.yaml"), guarded.targets(tmp_path, change))
    assert ran.code == 3, ran.out + ran.err
    assert "HTTP 401: it wants a key" in ran.out + ran.err
    assert "reach: direct" in ran.out + ran.err
    assert len(guarded.namespace.ready_pods(SELECTOR)) == len(guarded.uids())
