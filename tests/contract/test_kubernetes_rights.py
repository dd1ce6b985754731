"""The Role grants exactly what drills ask for: a drill is carried out, and what it asked is compared."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from drills import gate, opening
from drills.access.kubetypes import Right
from drills.clock import Clock
from drills.cluster import rbac
from drills.cluster.target import KubernetesTarget
from drills.custody import Lock
from drills.faults.pod_kill import PodKill
from drills.model import Context, HasRights
from drills.options import Options
from drills.target import load_target
from tests.contract.kube_api import Store, deployment, pod, serving
from tests.contract.kube_talk import kubeconfig
from tests.contract.test_kubernetes_target import DECLARED


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving() as (store, url):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
        deployment(store)
        yield store


def drilled(store: Store, tmp_path: Path, how: str) -> set[Right]:
    """Go through all that a drill asks of the cluster; returns the rights that it needed."""
    (tmp_path / "drill.yaml").write_text(DECLARED)
    spec = load_target("prod", tmp_path / "drill.yaml")
    store.on_delete = lambda gone: store.put("pods", pod("vllm-5d8f-z"))
    now = time.time()
    mine = Lock("aaaa1111", "me", "elsewhere", 1, 1, now, now + 900, "/x")
    context = Context(lambda *_: None, time.sleep, time.monotonic, lambda: False)
    with opening.open_target(spec, Options(), lambda _: None) as target:
        assert isinstance(target, KubernetesTarget)
        target.facts()
        target.custody.take(mine, Clock())
        target.custody.renew(mine, Clock())
        target.replica_events(0)
        gate.look_at_replicas(target)
        assert target.others_at_work() == []
        assert target.changes_by_others(()) == []
        fault = PodKill(PodKill.Params.model_validate({"how": how}), "kubernetes")
        receipt = fault.aim(target, target.replicas()[:1], run=mine.run, receipt=f"{mine.run}-0", deadline_s=60.0)
        target.custody.arm(receipt)
        fault.inject(target, receipt, context)
        fault.observe(target, receipt, context)
        fault.revert(target, receipt, context)
        target.custody.disarm(receipt)
        target.custody.ask_to_stop(mine.run, "you")
        target.custody.forget_stop(mine.run)
        target.custody.release(mine.run)
        deadline = time.monotonic() + 10
        while ("watch", "", "pods") not in target.api.asked and time.monotonic() < deadline:
            time.sleep(0.02)
        return set(target.api.asked)


@pytest.mark.parametrize("how", ["delete", "delete-now", "evict"])
def test_what_a_drill_asks_is_what_its_role_grants(store: Store, tmp_path: Path, how: str) -> None:
    asked = drilled(store, tmp_path, how)
    elsewhere = {("get", "apps", "statefulsets")}  # where the service is one
    assert (asked | elsewhere) - {rbac.GET_NODES} == rbac.needed([f"pod-kill {how}"], proxy=False)


def test_without_the_right_to_look_at_nodes_a_drill_goes_on_and_says_so(store: Store, tmp_path: Path) -> None:
    store.denied = {("get", "nodes")}
    assert rbac.GET_NODES not in drilled(store, tmp_path, "delete")
    (tmp_path / "drill.yaml").write_text(DECLARED)
    with opening.open_target(load_target("prod", tmp_path / "drill.yaml"), Options(), lambda _: None) as target:
        assert any("cordoned nodes are not seen" in note for note in target.facts()["notes"])


def test_probes_through_the_api_server_get_and_post(store: Store, tmp_path: Path) -> None:
    drilled(store, tmp_path, "delete")
    verbs = {command for command, path in store.asked if "/proxy/" in path}
    assert verbs == {"POST"}  # and GET for /metrics, while the load is on
    assert rbac.needed([], proxy=True) - rbac.needed([], proxy=False) == rbac.PROXY


def test_the_role_is_yaml_that_says_the_same() -> None:
    role = rbac.role("drill", "llm", rbac.needed(["pod-kill evict"], proxy=True))
    assert YAML(typ="safe").load(rbac.render(role)) == role
    granted = {(v, r["apiGroups"][0], r["resources"][0]) for r in role["rules"] for v in r["verbs"]}
    assert granted == rbac.needed(["pod-kill evict"], proxy=True)


def test_the_documented_role_is_the_one_for_the_api_alone() -> None:
    text = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    [block] = [b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Role" in b]
    by_api = [f"pod-kill {how}" for how in ("delete", "delete-now", "evict")]
    assert YAML(typ="safe").load(block) == rbac.role("drill", "llm", rbac.needed(by_api, proxy=True))


def test_no_right_reaches_beyond_the_namespace_or_to_secrets() -> None:
    everything = rbac.needed(rbac.FAULTS, proxy=True) - rbac.NODE
    assert not {resource for _, _, resource in everything} & {"secrets", "nodes", "namespaces"}
    by_api = rbac.needed([f"pod-kill {how}" for how in ("delete", "delete-now", "evict")], proxy=True)
    assert "pods/exec" not in {resource for _, _, resource in by_api}
    assert not any("*" in part for right in everything for part in right)


@pytest.mark.parametrize(
    ("how", "denied", "says"),
    [
        ("delete", {("delete", "pods")}, "delete pods"),
        ("evict", {("create", "pods/eviction"), ("watch", "pods")}, "create pods/eviction, watch pods"),
        ("evict", {("delete", "pods")}, None),
    ],
)
def test_what_is_missing_is_said_before_anything_is_touched(
    store: Store, tmp_path: Path, how: str, denied: set[tuple[str, str]], says: str | None
) -> None:
    (tmp_path / "drill.yaml").write_text(DECLARED)
    store.denied = denied
    fault = PodKill(PodKill.Params.model_validate({"how": how}), "kubernetes")
    with opening.open_target(load_target("prod", tmp_path / "drill.yaml"), Options(), lambda _: None) as target:
        assert isinstance(target, HasRights)
        found = target.rights_refusals([fault])
    assert found == ([f"cluster test: not allowed in llm: {says}; docs/kubernetes.md has the role that drills need"]
                     if says else [])  # fmt: skip


def test_a_fault_that_is_not_known_has_no_role() -> None:
    with pytest.raises(KeyError):
        rbac.needed(["gpu-reset crash"], proxy=False)
