"""Pods as replicas: what of a pod counts, and slots that outlive the pods in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills.cluster import pods
from drills.cluster.pods import GPUS, HOST_NETWORK, POD, Owner, Pod, Slots
from drills.errors import Refused
from tests.contract.kube_api import pod as raw

Json = dict[str, Any]


def slim(item: Json, container: str | None = None) -> Pod:
    item["metadata"].setdefault("uid", f"uid-{item['metadata']['name']}")
    return pods.slim(item, role="primary", container=container)


def made(name: str, *, created: float = 0.0, live: bool = True, ended: bool = False, owner: str = "ReplicaSet") -> Pod:
    ready = live and not ended
    state = "completed" if ended else "ready" if live else "terminating"
    whose = Owner(owner, "vllm") if owner else None
    return Pod(name, f"uid-{name}", "primary", "vllm", whose, "n", "10.0.0.1", created, ready, state,
               ready, ended, 0, 1.0, {}, {})  # fmt: skip


def shown(found: list[tuple[str, Pod]]) -> dict[str, str]:
    return {slot: pod.name for slot, pod in found}


# ---- one pod ---------------------------------------------------------------------------------------------


def test_a_running_pod_is_ready() -> None:
    found = slim(raw("vllm-5d8f-a"))
    assert (found.ready, found.live, found.state, found.workload) == (True, True, "ready", "vllm")
    assert found.started_wall == 1767225600.0
    assert found.labels[POD] == "vllm-5d8f-a"
    assert found.labels["app"] == "vllm"


def test_probes_that_only_connect_are_told_by_their_port() -> None:
    item = raw("vllm-5d8f-a")
    serving = item["spec"]["containers"][0]
    serving["ports"] = [{"name": "http", "containerPort": 8000}]
    serving["readinessProbe"] = {"tcpSocket": {"port": "http"}}
    serving["livenessProbe"] = {"tcpSocket": {"port": 9000}}
    serving["startupProbe"] = {"httpGet": {"path": "/health", "port": 8000}}
    assert slim(item).facts["tcp_probes"] == (8000, 9000)


def edited(**changes: Json) -> Json:
    item = raw("vllm-5d8f-a")
    for part, change in changes.items():
        item[part].update(change)
    return item


@pytest.mark.parametrize(
    ("item", "state"),
    [
        (edited(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), "terminating"),
        (edited(status={"phase": "Failed"}), "completed"),
        (edited(status={"phase": "Succeeded"}), "completed"),
        (raw("x", ready=False), "Starting"),
        (edited(status={"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}),
         "unschedulable"),
        (edited(status={"conditions": []}), "not ready"),
        (edited(status={"conditions": [{"type": "Ready", "status": "Unknown"}]}), "not ready"),
    ],
)  # fmt: skip
def test_a_pod_that_does_not_serve_says_why(item: Json, state: str) -> None:
    found = slim(item)
    assert (found.ready, found.state) == (False, state)


def test_a_pod_of_which_nothing_is_known_yet_is_not_ready() -> None:
    assert not slim({"metadata": {"name": "x", "uid": "u"}}).ready


def test_the_container_that_serves_is_named_or_the_pods_default_or_the_first() -> None:
    item = edited(spec={"containers": [{"name": "side", "image": "s"}, {"name": "engine", "image": "e"}]})
    assert slim(item).facts["container"] == "side"
    assert slim(item, "engine").facts["image"] == "e"
    item["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "engine"}
    assert slim(item).facts["container"] == "engine"
    with pytest.raises(Refused, match="no container 'vllm'; it has side, engine"):
        slim(item, "vllm")


def test_gpus_and_the_hosts_network_are_told() -> None:
    engine = {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    found = slim(edited(spec={"containers": [engine], "hostNetwork": True}))
    assert (found.labels[GPUS], found.labels[HOST_NETWORK]) == ("2", "true")
    assert GPUS not in slim(raw("x")).labels


def test_restarts_are_those_of_the_container_that_serves() -> None:
    statuses = [{"name": "side", "restartCount": 9}, {"name": "engine", "restartCount": 2}]
    assert slim(edited(status={"containerStatuses": statuses})).restarts == 2


def test_a_pod_that_nobody_would_replace_is_spared() -> None:
    alone = made("x", owner="")
    assert "no controller" in pods.replica("x", alone, url="", own=False).spared
    assert "of this drill" in pods.replica("x", made("y"), url="", own=True).spared
    assert pods.replica("x", made("y"), url="", own=False).spared == ""


def test_several_workloads_are_refused() -> None:
    other = slim(raw("chat-5d8f-a", workload="chat"))
    pods.one_workload([slim(raw("vllm-5d8f-a"))], "app in (vllm, chat)")
    with pytest.raises(Refused, match="several workloads: chat, vllm; make it narrower"):
        pods.one_workload([slim(raw("vllm-5d8f-a")), other], "app in (vllm, chat)")


# ---- slots -----------------------------------------------------------------------------------------------


def test_pods_get_places_by_age() -> None:
    slots = Slots()
    assert shown(slots.settle([made("b", created=2), made("a", created=1)])) == {"vllm-0": "a", "vllm-1": "b"}


def test_the_successor_gets_the_place_of_the_victim() -> None:
    slots = Slots()
    slots.settle([made("a", created=1), made("b", created=2), made("c", created=3)])
    ending = made("b", created=2, live=False)
    assert shown(slots.settle([made("a", created=1), ending, made("c", created=3)]))["vllm-1"] == "b"
    now = slots.settle([made("a", created=1), ending, made("c", created=3), made("d", created=9)])
    assert shown(now) == {"vllm-0": "a", "vllm-1": "d", "vllm-2": "c"}
    assert slots.of("uid-b") == "vllm-1"


def test_a_pod_that_is_seen_twice_keeps_its_one_place() -> None:
    slots = Slots()
    slots.settle([made("a", created=1), made("b", created=2)])
    twice = slots.settle([made("a", created=1), made("b", created=2), made("a", created=1), made("b", created=2)])
    assert shown(twice) == {"vllm-0": "a", "vllm-1": "b"}
    assert slots.of("uid-a") == "vllm-0"


def test_the_place_that_became_free_last_is_taken_first() -> None:
    slots = Slots()
    slots.settle([made(name, created=n) for n, name in enumerate("abc")])
    slots.settle([made("b", created=1), made("c", created=2)])  # scaled down
    slots.settle([made("b", created=1)])  # and then the victim
    assert slots.settle([made("b", created=1), made("d", created=9)])[-1][0] == "vllm-2"


def test_a_new_process_knows_the_places_from_a_receipt() -> None:
    slots = Slots({"uid-a": "vllm-0", "uid-b": "vllm-1", "uid-c": "vllm-2"})
    now = slots.settle([made("c", created=3), made("a", created=1), made("d", created=9)])
    assert shown(now) == {"vllm-0": "a", "vllm-1": "d", "vllm-2": "c"}


def test_pods_of_a_statefulset_keep_their_names() -> None:
    slots = Slots()
    before = slots.settle([made("vllm-1", owner="StatefulSet"), made("vllm-0", owner="StatefulSet")])
    assert shown(before) == {"vllm-0": "vllm-0", "vllm-1": "vllm-1"}


def test_what_has_ended_is_no_replica() -> None:
    assert Slots().settle([made("a", ended=True), made("b", live=False)]) == []


@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=40))
def test_nobody_changes_place_and_no_place_has_two(steps: list[tuple[int, bool]]) -> None:
    slots, born = Slots(), 0
    there: dict[str, Pod] = {}
    places: dict[str, str] = {}
    for number, replace in steps:
        key = f"p{number}"
        if key in there and replace:
            there.pop(key)
        elif key not in there:
            born += 1
            there[key] = made(f"{key}-{born}", created=born)
        found = slots.settle(list(there.values()))
        assert sorted(p.name for _, p in found) == sorted(p.name for p in there.values())
        assert len({slot for slot, _ in found}) == len(found)
        for slot, one in found:
            assert places.setdefault(one.uid, slot) == slot


def test_a_pod_that_is_seen_twice_keeps_its_place() -> None:
    slots = Slots()
    before = [made(name, created=n) for n, name in enumerate("abc")]
    again = [made(name, created=n) for n, name in enumerate("abc")]
    assert shown(slots.settle(before)) == {"vllm-0": "a", "vllm-1": "b", "vllm-2": "c"}
    assert shown(slots.settle([*before, *again])) == {"vllm-0": "a", "vllm-1": "b", "vllm-2": "c"}
    assert shown(slots.settle(again)) == {"vllm-0": "a", "vllm-1": "b", "vllm-2": "c"}
