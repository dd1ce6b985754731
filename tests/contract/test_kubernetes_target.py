"""Pods as a target: who is there, what happens to them, and how they are deleted and evicted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drills import gate, opening
from drills.access.kubetypes import PlanMode
from drills.cluster import opening as cluster
from drills.cluster.target import KubernetesTarget
from drills.errors import Refused, Stopped
from drills.faults.pod_kill import PodKill
from drills.model import CanDelete, CanEvict, Context, HasEvents, HasHttp, Json, Replica, Target
from drills.options import Options
from drills.target import TargetSpec, load_target
from tests.contract.kube_api import Store, deployment, pod, serving
from tests.contract.kube_talk import kubeconfig

DECLARED = """\
targets:
  prod:
    endpoint: {url: http://127.0.0.1:1/v1, model: m}
    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}
    kubernetes: {context: test, namespace: llm, selector: "app=vllm", port: 8000}
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving() as (store, url):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
        yield store


@pytest.fixture
def spec(tmp_path: Path) -> TargetSpec:
    (tmp_path / "drill.yaml").write_text(DECLARED)
    return load_target("prod", tmp_path / "drill.yaml")


@pytest.fixture
def target(store: Store, spec: TargetSpec) -> Iterator[KubernetesTarget]:
    deployment(store)
    with opening.open_target(spec, Options(), lambda _: None) as opened:
        assert isinstance(opened, KubernetesTarget)
        yield opened


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        act()
    [line] = str(caught.value).splitlines()
    return line


def by_name(target: Target) -> dict[str, Replica]:
    return {r.name: r for r in target.replicas()}


# ---- who is there ----------------------------------------------------------------------------------------


def test_its_abilities_are_those_it_says(target: KubernetesTarget, spec: TargetSpec) -> None:
    kept: Target = target
    assert isinstance(kept, (CanDelete, CanEvict, HasEvents, HasHttp))
    assert {"CanDelete", "CanEvict"} == set(spec.abilities())


def test_pods_are_replicas_under_names_that_stay(target: KubernetesTarget) -> None:
    found = by_name(target)
    assert sorted(found) == ["vllm-0", "vllm-1", "vllm-2"]
    assert found["vllm-1"].labels["drills/pod"] == "vllm-5d8f-b"
    assert all(r.ready and r.role == "primary" and r.host == "node-1" for r in found.values())
    assert target.expected_replicas == 3


def test_from_outside_pods_are_reached_through_the_api_server(target: KubernetesTarget) -> None:
    assert by_name(target)["vllm-0"].url.endswith("/api/v1/namespaces/llm/pods/vllm-5d8f-a:8000/proxy")


def test_the_gate_asks_each_pod_for_a_completion(target: KubernetesTarget, store: Store) -> None:
    asked = []

    def answer(path: str) -> tuple[int, Json]:
        asked.append(path)
        good = {"choices": [{"finish_reason": "length"}], "usage": {"completion_tokens": 1}}
        return (503, {}) if "vllm-5d8f-b" in path else (200, good)

    store.answer = answer
    found = {row["name"]: row for row in gate.look_at_replicas(target)}
    assert [found[name]["ok"] for name in sorted(found)] == [True, False, True]
    assert found["vllm-1"]["error"] == "HTTP 503"
    assert all(path.endswith("/proxy/v1/chat/completions") for path in asked)


def test_how_many_there_should_be_is_for_the_controller_to_say(store: Store, spec: TargetSpec) -> None:
    deployment(store)
    store.edit("replicasets", "vllm-5d8f", lambda item: item["spec"].update(replicas=4))
    with opening.open_target(spec, Options(), lambda _: None) as opened:
        assert opened.expected_replicas == 4
        assert len(opened.replicas()) == 3


def test_what_is_found_is_in_the_facts(target: KubernetesTarget) -> None:
    facts = target.facts()
    assert facts["versions"] == {"kubernetes": "v1.36.2", "images": ["engine:1"]}
    assert [row["pod"] for row in facts["pods"]] == ["vllm-5d8f-a", "vllm-5d8f-b", "vllm-5d8f-c"]
    assert any("no readiness probe" in note for note in facts["notes"])


def open_now(spec: TargetSpec) -> object:
    with opening.open_target(spec, Options(), lambda _: None) as opened:
        return opened


def test_a_namespace_without_such_pods_is_refused(store: Store, spec: TargetSpec) -> None:
    deployment(store, workload="other")
    assert "no pod matches app=vllm" in refusal(lambda: open_now(spec))


def test_pods_that_have_all_ended_are_refused(store: Store, spec: TargetSpec) -> None:
    store.put("pods", pod("job-1", phase="Succeeded") | {})
    store.edit("pods", "job-1", lambda item: item["metadata"]["labels"].update(app="vllm"))
    assert "have all completed" in refusal(lambda: open_now(spec))


def test_a_selector_that_means_two_services_is_refused(store: Store, spec: TargetSpec) -> None:
    deployment(store)
    store.put("pods", pod("chat-5d8f-a", workload="chat", labels={"app": "vllm"}))
    assert "several workloads: chat, vllm" in refusal(lambda: open_now(spec))


def test_a_forbidden_list_is_refused_with_what_is_missing(store: Store, spec: TargetSpec) -> None:
    deployment(store)
    store.forbidden.add(("GET", "pods"))
    assert "list pods in llm: is not allowed (403)" in refusal(lambda: open_now(spec))


def test_what_works_on_a_node_is_no_ability_of_the_api_alone(spec: TargetSpec) -> None:
    crash = PodKill(PodKill.Params(how="kill-process"), "kubernetes")
    assert crash.needs() - spec.abilities()
    assert not PodKill(PodKill.Params(how="evict"), "kubernetes").needs() - spec.abilities()


def test_a_helper_is_told_before_it_is_made(target: KubernetesTarget, store: Store) -> None:
    before, told = set(store.objects), []

    def full(event: str, data: Json) -> None:
        told.append((event, data["namespace"], data["pod"].startswith("drill-")))
        raise Refused("the journal cannot be written")

    assert refusal(lambda: target.reach(target.replicas()[:1], full)) == "the journal cannot be written"
    assert told == [("helper", "llm", True)]
    assert set(store.objects) == before


# ---- what happens to them --------------------------------------------------------------------------------


def replace_pod(store: Store, name: str) -> Callable[[Json], None]:
    """Return a controller that makes the pod `name` for one that is deleted."""

    def act(gone: Json) -> None:
        store.put("pods", pod(name, ready=False))

    return act


def events(target: KubernetesTarget, wanted: int) -> list[str]:
    """Return the first `wanted` events."""
    deadline = time.monotonic() + 10
    while len(found := target.replica_events(0)) < wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [event["n"] for event in found] == list(range(1, len(found) + 1))
    return [f"{e['replica']} {e['change']} {e['pod']} by {e['by']}" for e in found]


def watching(target: KubernetesTarget, store: Store) -> None:
    """Begin to watch, and wait until the watch is open."""
    deadline = time.monotonic() + 10
    assert target.replica_events(0) == []
    while not any("watch=1" in path for _, path in list(store.asked)) and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_replacement_is_told_step_by_step_under_the_victims_name(target: KubernetesTarget, store: Store) -> None:
    watching(target, store)
    store.on_delete = replace_pod(store, "vllm-5d8f-z")
    target.delete_replica(by_name(target)["vllm-1"], grace_s=None)
    store.drop("pods", "vllm-5d8f-b")

    def ready(item: Json) -> None:
        item["status"] = pod("x")["status"]

    store.edit("pods", "vllm-5d8f-z", ready)
    assert events(target, 5) == [
        "vllm-1 notready vllm-5d8f-b by controller",
        "vllm-1 created vllm-5d8f-z by controller",
        "vllm-1 gone vllm-5d8f-b by controller",
        "vllm-1 started vllm-5d8f-z by controller",
        "vllm-1 ready vllm-5d8f-z by controller",
    ]
    assert by_name(target)["vllm-1"].labels["drills/pod"] == "vllm-5d8f-z"


def test_a_container_that_starts_again_is_the_kubelets_doing(target: KubernetesTarget, store: Store) -> None:
    watching(target, store)

    def again(item: Json) -> None:
        running = {"running": {"startedAt": "2026-01-01T00:05:00Z"}}
        item["status"]["containerStatuses"][0].update(restartCount=1, state=running)

    store.edit("pods", "vllm-5d8f-b", again)
    assert events(target, 2) == [
        "vllm-1 gone vllm-5d8f-b by supervisor",
        "vllm-1 started vllm-5d8f-b by supervisor",
    ]
    assert target.replica_events(1)[0]["start"] == 1767225900


def test_pods_that_vanish_while_nobody_watches_are_gone_at_the_next_list(target: KubernetesTarget) -> None:
    changes: Any = target._changes
    before = target._pods()
    changes.listed("primary", before)
    changes.listed("primary", before[1:])
    assert [f"{e['replica']} {e['change']}" for e in changes._events] == ["vllm-0 gone"]


def test_a_new_list_after_a_silence_moves_nobody(target: KubernetesTarget) -> None:
    changes: Any = target._changes
    changes.listed("primary", target._pods())
    before = {name: one.uid for name, one in by_name(target).items()}
    changes.listed("primary", target._pods())
    assert {name: one.uid for name, one in by_name(target).items()} == before
    assert changes._events == []


# ---- how they die ----------------------------------------------------------------------------------------


def test_delete_leaves_the_pod_its_own_grace(target: KubernetesTarget, store: Store) -> None:
    target.delete_replica(by_name(target)["vllm-1"], grace_s=None)
    assert store.objects["pods", "llm", "vllm-5d8f-b"]["metadata"]["deletionGracePeriodSeconds"] == 30
    assert by_name(target)["vllm-1"].state == "terminating"


def test_delete_now_leaves_a_second_so_that_the_kubelet_ends_it(target: KubernetesTarget, store: Store) -> None:
    target.delete_replica(by_name(target)["vllm-1"], grace_s=0.0)
    assert store.objects["pods", "llm", "vllm-5d8f-b"]["metadata"]["deletionGracePeriodSeconds"] == 1


def test_another_pod_under_that_name_is_never_deleted(target: KubernetesTarget, store: Store) -> None:
    victim = by_name(target)["vllm-1"]
    store.drop("pods", "vllm-5d8f-b")
    store.put("pods", pod("vllm-5d8f-b"))
    assert "no longer the one that was aimed at" in refusal(lambda: target.delete_replica(victim, grace_s=None))
    assert "no longer" in refusal(lambda: target.evict_replica(victim, grace_s=None))
    store.drop("pods", "vllm-5d8f-b")
    assert "no longer" in refusal(lambda: target.delete_replica(victim, grace_s=None))


def test_a_pod_that_somebody_else_deletes_is_not_our_kill(target: KubernetesTarget) -> None:
    target.delete_replica(by_name(target)["vllm-1"], grace_s=None)
    assert "by other hands" in refusal(lambda: target.delete_replica(by_name(target)["vllm-1"], grace_s=None))


class Run:
    """A fault's surroundings: what it tells, and a clock that its waiting moves."""

    def __init__(self, stop_after_s: float = 1e9) -> None:
        self.told: list[tuple[str, Json]] = []
        self.now, self.stop_after_s = 0.0, stop_after_s
        self.context = Context(
            lambda event, data: self.told.append((event, data)),
            self._sleep,
            lambda: self.now,
            lambda: self.now >= self.stop_after_s,
        )

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def names(self) -> list[str]:
        return [str(data.get("step", event)) for event, data in self.told]


def aimed(target: KubernetesTarget, how: str, victim: str = "vllm-1") -> tuple[PodKill, Any]:
    fault = PodKill(PodKill.Params.model_validate({"how": how}), "kubernetes")
    return fault, fault.aim(target, [by_name(target)[victim]], run="r", receipt="r-0-pod-kill", deadline_s=60.0)


@pytest.mark.parametrize("how", ["delete", "delete-now", "evict"])
def test_each_death_is_proven_by_uid(target: KubernetesTarget, store: Store, how: str) -> None:
    fault, receipt = aimed(target, how)
    assert receipt.undo == ()
    target.custody.arm(receipt)
    run = Run()
    assert fault.observe(target, receipt, Run(0.0).context).on is False
    store.on_delete = replace_pod(store, "vllm-5d8f-z")
    fault.inject(target, receipt, run.context)
    seen = fault.observe(target, receipt, run.context)
    assert (seen.on, seen.bystanders_ok) == (True, True)
    assert seen.evidence[0]["uid_before"] != seen.evidence[0]["uid_now"]
    assert run.names() == ["inject.hit", f"{how}.sent"]
    assert target.custody.disarm(receipt)


def test_a_pod_that_was_replaced_since_is_not_killed(target: KubernetesTarget, store: Store) -> None:
    fault, receipt = aimed(target, "delete")
    store.drop("pods", "vllm-5d8f-b")
    store.put("pods", pod("vllm-5d8f-y"))
    run = Run()
    assert "is no longer the replica that was aimed at" in refusal(lambda: fault.inject(target, receipt, run.context))
    assert run.told == []
    assert not any(command == "DELETE" for command, _ in store.asked)


def test_a_budget_that_never_allows_it_refuses_the_drill(target: KubernetesTarget, store: Store) -> None:
    store.budget = "The disruption budget vllm needs 3 healthy pods and has 3 currently"
    fault, receipt = aimed(target, "evict")
    run = Run()
    assert "refused by the disruption budget for 30 s: The disruption budget vllm needs 3" in refusal(
        lambda: fault.inject(target, receipt, run.context)
    )
    assert run.names() == ["evict.refused"]  # no hit: nothing was touched
    assert 30 <= run.now < 32
    assert len(by_name(target)) == 3


def test_a_budget_that_allows_it_in_time_is_waited_for(target: KubernetesTarget, store: Store) -> None:
    store.budget = "not now"
    fault, receipt = aimed(target, "evict")
    run = Run()
    sleep = run.context.sleep

    def later(seconds: float) -> None:
        sleep(seconds)
        store.budget = None if run.now > 5 else store.budget

    run.context.sleep = later
    fault.inject(target, receipt, run.context)
    assert run.names() == ["evict.refused", "inject.hit", "evict.sent"]


def test_a_run_that_is_stopped_does_not_wait_for_a_budget(target: KubernetesTarget, store: Store) -> None:
    store.budget = "not now"
    fault, receipt = aimed(target, "evict")
    with pytest.raises(Stopped, match="waited for its disruption budget"):
        fault.inject(target, receipt, Run(3.0).context)


def test_a_bystander_that_was_replaced_is_seen(target: KubernetesTarget, store: Store) -> None:
    fault, receipt = aimed(target, "delete")
    store.drop("pods", "vllm-5d8f-c")
    store.put("pods", pod("vllm-5d8f-y"))
    assert fault.observe(target, receipt, Run(0.0).context).bystanders_ok is False


# ---- from another process --------------------------------------------------------------------------------


def test_a_new_process_finds_the_receipt_and_the_same_names(
    target: KubernetesTarget, store: Store, spec: TargetSpec
) -> None:
    fault, receipt = aimed(target, "delete-now")
    target.custody.arm(receipt)
    store.on_delete = lambda gone: None
    fault.inject(target, receipt, Run().context)
    store.drop("pods", "vllm-5d8f-b")
    store.put("pods", pod("vllm-5d8f-0"))
    again = cluster.found(spec)
    assert isinstance(again, KubernetesTarget)
    assert by_name(again)["vllm-1"].labels["drills/pod"] == "vllm-5d8f-0"
    assert fault.observe(again, receipt, Run().context).bystanders_ok is True
    [left] = again.custody.outstanding()
    assert json.loads(json.dumps(left.receipt.victims[0]))["name"] == "vllm-1"
    again.close()


def test_its_state_is_said_in_a_few_words(target: KubernetesTarget, spec: TargetSpec) -> None:
    assert opening.state(spec) == "3 of 3 pods of app=vllm in llm are ready"


def test_who_only_looks_cannot_change_anything(target: KubernetesTarget, store: Store, spec: TargetSpec) -> None:
    looking = cluster._target(spec, cluster._api(spec, read_only=True))
    victim = by_name(looking)["vllm-1"]
    begun = len(store.asked)
    for change in (
        partial(looking.delete_replica, victim, grace_s=None),
        partial(looking.evict_replica, victim, grace_s=None),
        partial(looking.custody.ask_to_stop, "run", "me"),
        partial(looking.custody.arm, aimed(target, "delete")[1]),
    ):
        with pytest.raises(PlanMode):
            change()
    assert {command for command, _ in store.asked[begun:]} == {"GET"}
    looking.close()
