"""What the doctor makes of what it was told: lines, exit codes, clocks, budgets, limits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drills import doctor
from drills.doctor import clock, cluster_pods, cluster_rights, limits
from drills.doctor.finding import Finding, State, exit_code, lines, missing, ok, unknown
from drills.doctor.wanted import wanted
from drills.model import Replica
from drills.options import Options
from drills.probes.http import ProbeError
from drills.target import TargetSpec, lab_target

FINE = ok("pods", "controller", "replaces them")
GONE = missing("rights", "delete pods", "not allowed", "kubectl create role x", "kubectl create rolebinding x")
DARK = unknown("clock", "Prometheus", "cannot be read")


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], 0),
        ([FINE], 0),
        ([FINE, GONE], 2),
        ([FINE, DARK], 2),
        ([FINE, DARK, replace(GONE, refuses=True)], 3),
        ([replace(FINE, refuses=True)], 0),
        ([replace(DARK, refuses=True)], 3),
    ],
)
def test_the_exit_code_says_whether_a_drill_would_be_refused(findings: list[Finding], code: int) -> None:
    assert exit_code(findings) == code


def test_a_line_is_state_group_and_words_and_the_fix_stands_below() -> None:
    shown = lines([FINE, GONE])
    assert shown[0] == "ok       pods    controller: replaces them"
    assert shown[1] == "missing  rights  delete pods: not allowed"
    assert [line.strip() for line in shown[2:]] == ["fix: kubectl create role x", "kubectl create rolebinding x"]
    assert shown[2].index("kubectl") == shown[3].index("kubectl")


def test_a_diagnosis_is_json_that_says_the_same() -> None:
    found = doctor.Diagnosis("prod", "kubernetes", ("pod-kill",), (FINE, GONE))
    read = json.loads(json.dumps(found.to_json()))
    assert (read["target"], read["kind"], read["drills"], read["exit_code"]) == ("prod", "kubernetes", ["pod-kill"], 2)
    assert read["findings"][1] == {
        "group": "rights", "name": "delete pods", "state": "missing", "text": "not allowed",
        "fix": list(GONE.fix), "refuses": False,
    }  # fmt: skip
    assert found.lines()[0] == "target prod (kubernetes) for pod-kill"
    assert found.lines()[-1].startswith("1 ok, 1 not: ")


# ---- clocks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "step_s", "state", "says"),
    [
        (1000.0, 0.0, State.OK, ""),
        (999.5, 1.0, State.OK, "no offset"),  # a Date of the same second
        (1001.5, 0.0, State.OK, "within"),
        (1060.0, 0.0, State.MISSING, "60 s ahead of ours"),
        (400.0, 1.0, State.MISSING, "599 s behind ours"),
    ],
)
def test_a_clock_is_judged_by_what_it_can_tell(
    monkeypatch: pytest.MonkeyPatch, there: float, step_s: float, state: State, says: str
) -> None:
    monkeypatch.setattr("drills.doctor.clock.time.time", lambda: 1000.0)
    found = clock.judged("it", lambda: there, step_s)
    assert (found.state, says in found.text) == (state, True), found


def test_a_clock_that_cannot_be_read_is_unknown() -> None:
    def ask() -> float:
        raise ProbeError("timed out")

    assert clock.judged("it", ask, 0.0).state is State.UNKNOWN
    assert clock.judged("it", lambda: clock.date(None), 0.0).state is State.UNKNOWN
    assert clock.judged("it", lambda: clock.date("yesterday"), 0.0).state is State.UNKNOWN
    assert clock.date("Mon, 30 Nov 2026 14:00:00 GMT") == 1796047200.0


# ---- rights and budgets ----------------------------------------------------------------------------------


def test_a_right_is_granted_to_who_asks_where_it_is_needed() -> None:
    role, binding = cluster_rights.grant(("create", "", "pods/eviction"), "llm", "system:serviceaccount:drills:monthly")
    assert role == "kubectl -n llm create role drill-create-pods-eviction --verb=create --resource=pods/eviction"
    assert binding.endswith("--role=drill-create-pods-eviction --serviceaccount=drills:monthly")
    assert "--resource=leases.coordination.k8s.io" in cluster_rights.grant(
        ("get", "coordination.k8s.io", "leases"), "llm", "eve"
    )[0]  # fmt: skip
    nodes = cluster_rights.grant(("patch", "", "nodes"), "llm", "eve")
    assert [line.split()[1:3] for line in nodes] == [["create", "clusterrole"], ["create", "clusterrolebinding"]]
    assert nodes[1].endswith("--clusterrole=drill-patch-nodes --user=eve")


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "vllm"}}, True),
        ({"matchLabels": {"app": "other"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "vllm"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["vllm"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Word"}]}, False),
    ],
)
def test_a_budget_holds_the_pods_its_selector_means(selector: Any, selects: bool) -> None:
    assert cluster_pods.selects({"spec": {"selector": selector}}, {"app": "vllm"}) is selects


# ---- limits ----------------------------------------------------------------------------------------------


class Three:
    """As much of a target as limits ask."""

    capacity_per_replica: float | None = None

    def __init__(self, ready: int = 3, capacity: float | None = None) -> None:
        self.ready, self.capacity_per_replica = ready, capacity

    def replicas(self) -> list[Replica]:
        return [Replica(f"r-{n}", str(n), "primary", "", ready=n < self.ready) for n in range(3)]


def looked(target: Any, **changes: Any) -> dict[str, Finding]:
    lab = lab_target()
    spec: TargetSpec = replace(lab, limits=lab.limits.model_copy(update=changes))
    return {one.name: one for one in limits.look(wanted(["pod-kill", "upstream-delay"], spec, Options()), spec, target)}


def test_limits_that_leave_nobody_are_missing_with_the_line_that_does() -> None:
    assert looked(Three())["victims"].state is State.OK
    assert "max_victims: 34%" in looked(Three(), max_victims=0.0)["victims"].fix[1]
    tight = looked(Three(), min_healthy=3)["victims"]
    assert (tight.state, tight.refuses) == (State.MISSING, True)
    assert "min_healthy: 2" in tight.fix[1]
    assert looked(Three(ready=1))["victims"].refuses


def test_a_route_needs_leave() -> None:
    assert looked(Three())["route"].state is State.OK
    assert looked(Three(), allow_route_faults=False)["route"].refuses


def test_headroom_is_held_against_a_declared_capacity() -> None:
    assert "measured in each baseline" in looked(Three())["headroom"].text
    assert looked(Three(capacity=30.0))["headroom"].state is State.OK
    short = looked(Three(capacity=5.0))["headroom"]
    assert (short.state, short.refuses) == (State.MISSING, True)
    assert "2 replicas carry 10/s, the drills offer 20/s" in short.text
