"""The helper pod: as strong as a fault on a node needs it, and no stronger; bounded in time whatever happens."""

from __future__ import annotations

import pytest

from drills.cluster import helpers
from drills.cluster.helpers import Helper, manifest

MINE = {"name": "helper"}
MESH = {"name": "istio-proxy", "state": {"running": {}}}
POD = manifest(Helper("drills:1", lives_s=900.4), run="0123abcd", node="node-1.example")


def test_it_goes_to_its_node_past_the_scheduler_and_every_taint() -> None:
    assert POD["spec"]["nodeName"] == "node-1.example"
    assert POD["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_it_sees_the_nodes_processes_and_nothing_of_the_api() -> None:
    assert POD["spec"]["hostPID"] is True
    assert POD["spec"]["automountServiceAccountToken"] is False
    assert "hostNetwork" not in POD["spec"]  # its own rules and ports are its own
    assert not any("hostPath" in volume for volume in POD["spec"]["volumes"])


def test_it_ends_by_itself_and_is_given_time_to_undo() -> None:
    assert POD["spec"]["activeDeadlineSeconds"] == 900
    assert POD["spec"]["restartPolicy"] == "Never"
    assert POD["spec"]["terminationGracePeriodSeconds"] == helpers.GRACE_S
    from drills.access import nodekeeper

    assert nodekeeper.UNDO_TIMEOUT_S < helpers.GRACE_S < helpers.GONE_TIMEOUT_S


def test_it_asks_a_service_mesh_to_leave_it_alone() -> None:
    wanted = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
    assert POD["metadata"]["annotations"].items() >= wanted.items()
    assert POD["metadata"]["labels"].items() >= wanted.items()


def test_the_more_proxies_it_carries_the_more_memory_it_may_use() -> None:
    def limit(proxies: int = 0) -> str:
        pod = manifest(Helper("drills:1"), run="0123abcd", node="n", proxies=proxies)
        return str(pod["spec"]["containers"][0]["resources"]["limits"]["memory"])

    room = 8 + helpers.SPARE_PROXIES
    assert limit() == f"{helpers.MEMORY_MIB}Mi"
    assert limit(8) == f"{helpers.MEMORY_MIB + room * helpers.PROXY_MIB}Mi"


def test_it_is_found_by_its_run() -> None:
    assert POD["metadata"]["labels"]["drills/run"] == "0123abcd"
    assert POD["metadata"]["name"].startswith("drill-0123abcd-")


def test_names_fit_whatever_the_node_is_called() -> None:
    names = {helpers.name_of("0123abcd", node) for node in ("a", "a" * 253, "A.b-c", "a.b-c")}
    assert len(names) == 4
    assert all(len(name) <= 63 and name.replace("-", "").isalnum() for name in names)


def test_a_pull_secret_is_named_only_where_there_is_one() -> None:
    assert "imagePullSecrets" not in POD["spec"]
    secret = manifest(Helper("drills:1", pull_secret="reg"), run="0123abcd", node="n")
    assert secret["spec"]["imagePullSecrets"] == [{"name": "reg"}]


@pytest.mark.parametrize(
    ("status", "seen"),
    [
        ({"containerStatuses": [{**MINE, "state": {"running": {}}}]}, (True, "running")),
        ({"containerStatuses": [{**MINE, "state": {"waiting": {"reason": "ErrImagePull"}}}]}, (False, "ErrImagePull")),
        ({"containerStatuses": [{**MINE, "state": {"terminated": {"reason": "Error"}}}]}, (False, "Error")),
        ({"containerStatuses": [MESH, {**MINE, "state": {"running": {}}}]}, (True, "running")),
        ({"containerStatuses": [MESH, {**MINE, "state": {"waiting": {"reason": "Creating"}}}]}, (False, "Creating")),
        ({"containerStatuses": [MESH], "phase": "Pending"}, (False, "Pending")),
        ({"phase": "Failed", "reason": "NodeAffinity"}, (False, "NodeAffinity")),
        ({"phase": "Pending"}, (False, "Pending")),
        ({}, (False, "not there")),
    ],
)
def test_why_it_does_not_run_is_in_the_clusters_words(status: dict[str, object], seen: tuple[bool, str]) -> None:
    assert helpers.progress({"status": status}) == seen
