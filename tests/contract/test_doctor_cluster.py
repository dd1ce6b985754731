"""The doctor at an API server that keeps objects: what it says of rights, pods, probes, budgets, helpers, custody."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from drills import doctor
from drills.cluster.lease import name_of
from drills.doctor.finding import Finding, State
from drills.errors import UsageError
from drills.model import Json
from drills.options import Options
from tests.contract.kube_api import Store, deployment, pod, serving
from tests.contract.kube_talk import kubeconfig
from tests.contract.test_kubernetes_target import DECLARED

HELPER = 'helper: {image: "drills:0.1.0"}, port: 8000'


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving() as (store, url):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
        deployment(store)
        store.answer = serves
        yield store


def serves(path: str) -> tuple[int, Json]:
    """Answer as an engine behind the API server's proxy."""
    choice = {"message": {"content": "t0"}, "finish_reason": "length"}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 1}, "model": "m", "version": "0.32.0"}


@pytest.fixture
def look(store: Store, tmp_path: Path) -> Callable[..., dict[str, Finding]]:
    """Return the findings by group and name."""

    def look(*drills: str, declared: str = DECLARED) -> dict[str, Finding]:
        (tmp_path / "drill.yaml").write_text(declared)
        found = doctor.diagnose(drills or ("pod-kill",), Options("prod", tmp_path / "drill.yaml"))
        return {f"{one.group} {one.name}": one for one in found.findings}

    return look


Look = Callable[..., dict[str, Finding]]


def write_calls(store: Store) -> list[tuple[str, str]]:
    """Return what was asked that could change something: neither reviews nor completions do."""
    reads = ("/selfsubject", "/proxy/v1/chat/completions")
    return [(verb, path) for verb, path in store.asked if verb != "GET" and not any(word in path for word in reads)]


def test_it_only_reads(store: Store, look: Look) -> None:
    before = json.dumps(sorted(store.objects.items()), default=str)
    look("pod-kill", "packet-loss", declared=DECLARED.replace("port: 8000", HELPER))
    assert write_calls(store) == []
    assert json.dumps(sorted(store.objects.items()), default=str) == before


def test_what_is_well_is_said_in_one_line_each(store: Store, look: Look) -> None:
    found = look()
    for name in ("cluster API server", "rights role", "custody lock", "pods controller", "service replicas"):
        assert found[name].state is State.OK, found[name]
    assert "takes us for drill" in found["cluster API server"].text
    assert found["versions vLLM"].text == "0.32.0 on all 3 replicas"


def test_a_clock_that_is_off_hides_nothing_else(store: Store, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = formatdate(time.time() + 3600, usegmt=True)
    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda *_: ahead)
    store.denied = {("delete", "pods")}
    found = look()
    assert "ahead of ours" in found["clock API server"].text
    assert found["cluster API server"].state is State.OK
    assert found["rights delete pods"].refuses
    for name in ("custody lock", "pods controller", "service replicas"):
        assert found[name].state is State.OK, found[name]


def test_a_server_that_takes_us_for_nobody_is_asked_nothing_else(store: Store, look: Look) -> None:
    store.expired = True
    found = look()
    assert found["cluster API server"].refuses
    assert not [name for name in found if name.startswith(("rights ", "pods ", "custody "))]


def test_each_missing_right_is_named_with_what_grants_it(store: Store, look: Look) -> None:
    store.denied, store.user = {("delete", "pods"), ("watch", "pods")}, "system:serviceaccount:llm:bob"
    found = look()
    lacking = {name: one for name, one in found.items() if name.startswith("rights ")}
    assert set(lacking) == {"rights delete pods", "rights watch pods"}
    assert all(one.refuses and "--serviceaccount=llm:bob" in one.fix[1] for one in lacking.values())
    assert "would be refused: cluster test: not allowed in llm" in found["drill pod-kill"].text


def test_a_right_that_keeps_the_pods_from_being_listed_is_named_too(store: Store, look: Look) -> None:
    store.denied, store.forbidden = {("list", "pods")}, {("GET", "pods")}
    found = look()
    assert found["rights list pods"].state is State.MISSING
    assert found["service pods"].refuses


def edit(store: Store, change: Callable[[Json], None]) -> None:
    for _, _, name in [key for key in store.objects if key[0] == "pods"]:
        store.edit("pods", name, lambda item: change(item["spec"]["containers"][0]))


@pytest.mark.parametrize(
    ("probe", "state", "says"),
    [
        (None, State.MISSING, "has none: it is Ready"),
        ({"tcpSocket": {"port": 8000}}, State.MISSING, "only whether the port is open"),
        ({"httpGet": {"path": "/ping"}}, State.MISSING, "answers without the engine"),
        ({"exec": {"command": ["true"]}}, State.MISSING, "runs `true`"),
        ({"httpGet": {"path": "/health"}, "periodSeconds": 5}, State.OK, "GET /health, unready within 15 s"),
    ],
)
def test_a_readiness_probe_is_judged_by_what_it_asks(
    store: Store, look: Look, probe: Json | None, state: State, says: str
) -> None:
    if probe is not None:
        edit(store, lambda container: container.update(readinessProbe=probe))
    found = look()["probes readiness"]
    assert (found.state, says in found.text) == (state, True), found
    assert bool(found.fix) is (state is State.MISSING)


def test_a_replica_that_is_ready_and_serves_nobody_has_a_lying_probe(store: Store, look: Look) -> None:
    store.answer = lambda _: (503, {})
    found = look()
    lies = [one for name, one in found.items() if name.startswith("probes vllm-")]
    assert len(lies) == 3
    assert all(one.refuses and "its readiness probe lies" in one.text for one in lies)


def test_liveness_matters_where_an_engine_hangs(store: Store, look: Look) -> None:
    helped = DECLARED.replace("port: 8000", HELPER)
    assert look(declared=helped)["probes liveness"].state is State.OK
    assert look("engine-hang", declared=helped)["probes liveness"].state is State.MISSING


def test_a_pod_that_nobody_replaces_and_one_that_nobody_restarts(store: Store, look: Look) -> None:
    names = [name for plural, _, name in store.objects if plural == "pods"]
    store.edit("pods", names[0], lambda item: item["metadata"].pop("ownerReferences"))
    store.edit("pods", names[1], lambda item: item["spec"].update(restartPolicy="Never"))
    found = look()
    assert (found["pods controller"].state, found["pods controller"].refuses) == (State.MISSING, False)
    assert names[1] in found["pods restart policy"].text


EVICT = """\
drill: 1
name: evicted
title: A pod is evicted
hypothesis: The others take the traffic.
playbook: pod-kill
load: {arrivals: {kind: poisson, rate: 6/s}}
phases: {warmup: 2s, baseline: 20s, fault: 20s, recovery: auto}
faults: [{pod-kill: {victims: 1, how: evict}}]
checks: [{failover: {within: 5s}}]
"""


def budget(name: str, allowed: int) -> Json:
    spec = {"selector": {"matchLabels": {"app": "vllm"}}}
    return {"metadata": {"name": name}, "spec": spec, "status": {"disruptionsAllowed": allowed}}


def test_budgets_are_asked_for_whoever_evicts(store: Store, look: Look, tmp_path: Path) -> None:
    path = tmp_path / "evict.yaml"
    path.write_text(EVICT)
    store.put("poddisruptionbudgets", budget("vllm", 0))
    assert look("pod-kill")["budget disruption"].state is State.OK  # a deletion asks none
    tight = look(str(path))["budget disruption"]
    assert (tight.state, tight.refuses, "vllm allows 0" in tight.text) == (State.MISSING, True, True)
    store.edit("poddisruptionbudgets", "vllm", lambda item: item["status"].update(disruptionsAllowed=1))
    assert look(str(path))["budget disruption"].state is State.OK
    store.put("poddisruptionbudgets", budget("second", 1))
    assert look(str(path))["budget disruption"].refuses
    store.forbidden = {("GET", "poddisruptionbudgets")}
    assert look(str(path))["budget disruption"].state is State.UNKNOWN


def test_a_helper_is_needed_by_those_that_work_on_a_node(store: Store, look: Look) -> None:
    assert look()["helper image"].state is State.OK
    absent = look("packet-loss")
    assert absent["helper image"].refuses
    assert "helper:" in absent["helper image"].fix[1]
    assert absent["drill packet-loss"].text.startswith("cannot be planned for this target")
    assert look("packet-loss", declared=DECLARED.replace("port: 8000", HELPER))["helper image"].state is State.OK


def test_a_reset_needs_an_account_for_its_helper(store: Store, look: Look) -> None:
    helped = DECLARED.replace("port: 8000", HELPER)
    assert "helper service account" not in look("packet-loss", declared=helped)
    found = look("gpu-reset", declared=helped)["helper service account"]
    assert (found.refuses, found.fix[0]) == (True, "kubectl -n llm create serviceaccount drill-node")
    named = helped.replace('image: "drills:0.1.0"', 'image: "drills:0.1.0", service_account: drill-node')
    assert "helper service account" not in look("gpu-reset", declared=named)


def test_a_namespace_that_admits_no_helper_is_named_with_the_command(store: Store, look: Look) -> None:
    helped = DECLARED.replace("port: 8000", HELPER)
    assert look("packet-loss", declared=helped)["helper admission"].state is State.OK
    store.labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    found = look("packet-loss", declared=helped)["helper admission"]
    assert (found.state, found.refuses) == (State.MISSING, True)
    assert found.fix == ("kubectl label namespace llm pod-security.kubernetes.io/enforce=privileged --overwrite",)


def test_a_router_that_is_ready_by_health_is_told(store: Store, look: Look) -> None:
    routed = DECLARED + '    router: {kind: vllm-router, selector: "app=router"}\n'
    assert look(declared=routed)["probes router"].refuses  # there is none
    store.put("pods", pod("router-1", workload="router"))
    assert look(declared=routed)["probes router"].state is State.OK
    store.edit("pods", "router-1", by_health)
    found = look(declared=routed)["probes router"]
    assert (found.state, "/readiness" in found.fix[1]) == (State.MISSING, True)


def by_health(item: Json) -> None:
    item["spec"]["containers"][0]["readinessProbe"] = {"httpGet": {"path": "/health"}}


def test_a_token_that_has_expired_is_one_finding_and_nothing_else_is_asked(store: Store, look: Look) -> None:
    store.expired = True
    found = look()
    assert found["cluster API server"].refuses
    assert not [name for name in found if name.startswith(("rights", "pods", "service"))]


def test_a_context_that_is_not_there_is_a_bad_file(store: Store, look: Look) -> None:
    with pytest.raises(UsageError, match="has no context 'nowhere'"):
        look(declared=DECLARED.replace("context: test", "context: nowhere"))


def test_who_drills_and_what_is_left_is_told(store: Store, look: Look) -> None:
    assert look()["custody lock"].state is State.OK
    labels = {"drills/lock": name_of("app=vllm"), "drills/run": "aaaa1111"}
    store.put("configmaps", {"metadata": {"name": "drill-receipt-aaaa1111-0", "labels": labels}, "data": {}})
    left = look()["custody leftovers"]
    assert (left.refuses, left.fix) == (True, ("drill recover --target prod",))
