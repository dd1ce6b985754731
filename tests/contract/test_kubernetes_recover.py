"""`drill recover` where the cluster is not as it was: nobody serves any more, or a node is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills import proxies, upkeep
from drills import receipts as texts
from drills.access.kubernetes import connect
from drills.clock import Clock
from drills.cluster import helpers
from drills.cluster.custody import ClusterCustody
from drills.cluster.fronted import FrontedPods
from drills.cluster.nodework import NodeWork
from drills.journal import Journal, read
from drills.model import Context, Host, Json, Receipt, Restored
from tests.contract.kube_api import Store, deployment, serving
from tests.contract.kube_talk import kubeconfig
from tests.contract.test_kubernetes_target import DECLARED

RUN = "aaaa1111"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving() as (store, url):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
        yield store


def receipt(*undo: Json, fault: str = "pod-kill") -> Receipt:
    victim: Json = {"name": "vllm-1", "uid": "u1"}
    prior: Json = {"bystanders": [], "spots": [{"node": "node-1", "uid": "u1", "replica": "vllm-1"}]}
    return Receipt(
        f"{RUN}-0-{fault}", RUN, fault, "prod", "node-1", (victim,), prior, (), undo, 60.0, {"how": "delete"}
    )


# ---- nobody serves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [True, False])
def test_what_is_left_is_put_back_while_nobody_serves(store: Store, tmp_path: Path, *, scaled: bool) -> None:
    """People scale a service to nothing before they work on a node; that must keep nobody from putting back."""
    deployment(store)
    for letter in "abc":
        store.drop("pods", f"vllm-5d8f-{letter}")
    if scaled:
        store.edit("replicasets", "vllm-5d8f", lambda item: item["spec"].update(replicas=0))
    else:
        store.drop("replicasets", "vllm-5d8f")
    (tmp_path / "drill.yaml").write_text(DECLARED)
    folder = tmp_path / "reports" / "runs" / f"20260101T000000Z-pod-kill-{RUN}"
    folder.mkdir(parents=True)
    left = receipt()
    with Journal(folder / "journal.jsonl") as journal:
        journal.tell("header", {"run": RUN})
        journal.tell("receipt", {"receipt": texts.to_json(left)})
    keeper = ClusterCustody(connect(), "llm", "app=vllm", "prod")
    keeper.arm(left)
    nobody, *lines = upkeep.status("prod", tmp_path / "drill.yaml", tmp_path / "reports")
    assert "no pod matches app=vllm" in nobody
    assert any(line.startswith("to be put back: ") for line in lines)
    said: list[str] = []
    assert upkeep.recover(None, "prod", tmp_path / "drill.yaml", tmp_path / "reports", said.append) == 0
    assert keeper.outstanding() == []
    assert f"run {RUN}: pod-kill on vllm-1: put back" in said
    assert read(folder / "journal.jsonl")[-1].event == "end"


# ---- the node is gone ------------------------------------------------------------------------------------


@pytest.fixture
def work(store: Store) -> NodeWork:
    made = helpers.Helper("drills:1")
    api = connect()
    return NodeWork(lambda run: helpers.Helpers(api, "llm", made, run=run, labels={}, clock=Clock()), "prod")


class Target(FrontedPods):
    """A target of which only the nodes are known."""

    name, kind = "prod", "kubernetes"

    def __init__(self, work: NodeWork) -> None:
        self.custody, self.work = work, work
        self._begin_fronts()

    def host(self, name: str) -> Host:
        return self.work.host(RUN, name)

    def run_now(self) -> str:
        return RUN


def test_what_was_changed_on_a_node_that_is_gone_is_gone_with_it(store: Store, work: NodeWork) -> None:
    told: list[tuple[str, Json]] = []
    left = receipt({"do": "remove", "path": "/x", "host": "node-1"}, fault="ledger-proxies")
    context = Context(lambda event, data: told.append((event, data)), lambda s: None, Clock().mono, lambda: False)
    made = proxies.LedgerProxies(proxies.LedgerProxies.Params(), "kubernetes")
    target: Any = Target(work)
    assert made.revert(target, left, context) is Restored.CLEAN
    assert made.observe(target, left, context).on is False
    assert [event for event, _ in told] == ["undo.needless"]
    assert "node node-1 is gone" in told[0][1]["why"][0]
    assert work.disarm(left)
    assert [command for command, _ in store.asked if command != "GET"] == []


def test_a_node_that_may_not_be_looked_at_is_taken_to_be_there(store: Store, work: NodeWork) -> None:
    store.forbidden.add(("GET", "nodes"))
    assert not work.helpers(RUN).node_is_gone("node-1")


def test_one_node_that_is_gone_keeps_nobody_from_the_others(
    store: Store, work: NodeWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("nodes", {"metadata": {"name": "node-2", "namespace": ""}, "spec": {}})
    steps = [{"do": "remove", "path": "/x", "host": node} for node in ("node-1", "node-2")]
    monkeypatch.setattr(helpers, "READY_TIMEOUT_S", 0.0)
    restored, by_hand = work.undo(replace(receipt(*steps), host="node-1"))
    assert restored is Restored.UNKNOWN  # the other one is there, and its helper does not start
    assert "node node-1 is gone" in by_hand[0]
    assert "node-2" in by_hand[1]
