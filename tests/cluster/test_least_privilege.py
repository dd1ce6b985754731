"""With the Role that `drill schedule render` gives, and nothing more, each drill is carried out to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from drills.model import Json
from tests.cluster.cases import CASES, experiment
from tests.cluster.driving import driller, place, use, words, written
from tests.cluster.emulator import serving
from tests.cluster.served import Served
from tests.lab.drilling import Driller

#: In the words of the API server, of its refusals as we pass them on, and of ours.
REFUSED = ("is not allowed (403)", "not allowed in", "forbidden")


@pytest.fixture(scope="module")
def shared(cluster: Path) -> Iterator[Served]:
    with serving(Served, cluster) as made:
        yield made


@pytest.fixture
def drill(tmp_path: Path, cluster: Path, service: Served) -> Driller:
    service.declare(tmp_path, e2e="4s", reach="proxy")  # we are outside
    return driller(tmp_path, cluster, timeout_s=400.0)


def rendered(drill: Driller, name: str) -> Json:
    """Return the Role that a schedule of this drill alone would have."""
    path = written(drill, experiment(name))
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
    use(drill, cluster, shared.token(account, role))
    looked = drill("doctor", *place(drill)[:4], "--experiments", str(drill.reports.parent / "experiment.yaml"))
    assert "rights that the drills need are granted" in looked.out, looked.out + looked.err
    assert looked.code in (0, 2), looked.out

    ran = drill(*words(drill, "experiment.yaml"))
    assert ran.folder is not None, ran.out + ran.err
    said = ran.out + ran.err + (ran.folder / "journal.jsonl").read_text()
    assert [word for word in REFUSED if word in said] == [], ran.out + ran.err
    assert [event["data"]["ok"] for event in ran.events("proof.on")] == [True], ran.out
    assert ran.events("end")[0]["data"]["status"] == "completed", ran.out
    assert ran.verdict["restored"] == "clean"
