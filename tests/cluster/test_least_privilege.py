"""With the Role that `drill schedule render` gives, and nothing more, each drill is carried out to its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from drills.model import Json
from tests.cluster.cases import CASES, experiment
from tests.cluster.emulator import with_token
from tests.cluster.kube import Namespace
from tests.cluster.served import Served
from tests.cluster.test_pod_kill import place
from tests.lab.drilling import Driller

#: In the words of the API server, of its refusals as we pass them on, and of ours.
REFUSED = ("is not allowed (403)", "not allowed in", "forbidden")


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Served]:
    served = Served(Namespace.make(cluster))
    try:
        served.create()
        yield served
    finally:
        served.namespace.delete()


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, shared: Served) -> Iterator[Driller]:
    shared.until_ready()
    driller = Driller(tmp_path / "lab", tmp_path / "reports", 0, timeout_s=400.0)
    driller.env["KUBECONFIG"] = str(cluster)
    shared.declare(tmp_path)
    path = tmp_path / "drill.yaml"
    text = path.read_text().replace("e2e: {p99: 12s}", "e2e: {p99: 4s}")
    path.write_text(text.replace("container: vllm", "container: vllm, reach: proxy"))  # we are outside
    yield driller
    assert shared.left() == []


def rendered(drill: Driller, name: str) -> Json:
    """Return the Role that a schedule of this drill alone would have."""
    path = drill.reports.parent / "experiment.yaml"
    path.write_text(experiment(name))
    made = drill("schedule", "render", str(path), *place(drill)[:4])
    assert made.code == 0, made.err
    documents = [one for one in YAML(typ="safe").load_all(made.out) if one]
    assert [one["kind"] for one in documents if "ClusterRole" in one["kind"]] == []
    [role] = [one for one in documents if one["kind"] == "Role"]
    return dict(role)


@pytest.mark.parametrize("name", CASES, ids=lambda name: name.replace(" ", "-"))
def test_the_rendered_role_is_all_that_a_drill_needs(name: str, drill: Driller, shared: Served, cluster: Path) -> None:
    role, account = rendered(drill, name), name.replace(" ", "-")
    role["metadata"] = {"name": account}
    path = drill.reports.parent / "kubeconfig"
    path.write_text(json.dumps(with_token(cluster, shared.token(account, role))))
    drill.env["KUBECONFIG"] = str(path)
    where = place(drill)
    looked = drill("doctor", *where[:4], "--experiments", str(drill.reports.parent / "experiment.yaml"))
    assert "rights that the drills need are granted" in looked.out, looked.out + looked.err
    assert looked.code in (0, 2), looked.out

    ran = drill("run", str(drill.reports.parent / "experiment.yaml"), *where, "--plain")
    assert ran.folder is not None, ran.out + ran.err
    said = ran.out + ran.err + (ran.folder / "journal.jsonl").read_text()
    assert [word for word in REFUSED if word in said] == [], ran.out + ran.err
    assert [event["data"]["ok"] for event in ran.events("proof.on")] == [True], ran.out
    assert ran.events("end")[0]["data"]["status"] == "completed", ran.out
    assert ran.verdict["restored"] == "clean"
