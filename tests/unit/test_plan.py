"""A plan is resolved, repeatable, and refuses what could never be judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills import abilities, evidence, experiment, plan, target, yamlfile
from drills.checks import CHECKS
from drills.errors import EXIT_REFUSED, EXIT_USAGE, FileProblem, Refused
from drills.faults import FAULTS
from drills.faults.common import FaultParams
from drills.load.plan import LoadPlan
from drills.model import Replica, Target

LAB = target.lab_target()

GOOD = """\
drill: 1
name: tried
title: A replica dies
hypothesis: Traffic moves by itself.
load:
  arrivals: {kind: poisson, rate: 20/s}
  client: {timeout: 30s, retries: {max: 2, budget: 10%}}
phases: {warmup: 10s, baseline: 60s, fault: 60s, recovery: auto}
faults:
  - pod-kill: {victims: 1, how: {lab: delete, hosts: kill-process}}
guards:
  - ready_replicas: {min: 1}
checks:
  - failover: {within: 5s}
  - latency: {metric: ttft, quantile: 0.99, cohort: fault, max: sla}
  - alert: {name: VllmReplicaDown, within: 20s, resolves_within: 90s}
"""
HELD = GOOD.replace("pod-kill: {victims: 1, how: {lab: delete, hosts: kill-process}}", "noop: {victims: 1}")

HOSTS = """\
targets:
  metal:
    endpoint: {url: http://llm/v1, model: m}
    sla: {ttft: {p99: 1s}, e2e: {p99: 6s}, max_gap: {p99: 2s}, errors: 1%}
    hosts:
      - {name: a, address: a, user: drill, key: k, unit: vllm.service}
      - {name: b, address: b, user: drill, key: k, unit: vllm.service}
"""


def tried(text: str) -> experiment.Experiment:
    return experiment.from_document(yamlfile.parse(Path("x.yaml"), text))


def made(text: str = GOOD, spec: target.TargetSpec = LAB, **more: Any) -> plan.Plan:
    values: dict[str, Any] = {"run": "0123abcd", "seed": 7} | more
    return plan.make_plan(tried(text), spec, **values)


def problem(text: str, spec: target.TargetSpec = LAB) -> str:
    found = tried(text)
    with pytest.raises(FileProblem) as caught:
        plan.make_plan(found, spec, run="0123abcd", seed=7)
    assert caught.value.exit_code == EXIT_USAGE
    assert str(caught.value).isprintable()
    return str(caught.value)


def on_hosts(more: str = "") -> target.TargetSpec:
    return target.from_document(yamlfile.parse(Path("drill.yaml"), HOSTS + more)).pick("metal")


# ---- what it holds ----------------------------------------------------------------------------------


def test_plan_json_is_resolved() -> None:
    content = json.loads(json.dumps(made().to_json()))
    assert content["run"] == "0123abcd"
    assert content["experiment"]["load"]["arrivals"] == {"kind": "poisson", "rate": 20.0}
    assert content["experiment"]["faults"] == [
        {"fault": "pod-kill", "params": {"victims": 1, "how": "delete", "budget_timeout": 30.0}}
    ]
    assert content["experiment"]["checks"][0] == {"check": "failover", "params": {"within": 5.0}}
    assert content["target"]["sla"]["ttft"] == {"quantile": 0.99, "value_s": 1.0}
    assert content["load_cap"] == 900  # 1.5 × 20/s × 30 s
    assert content["expected_requests"] == {"baseline": 1080.0, "fault": 1200.0}


def test_how_is_the_one_for_the_kind_of_target() -> None:
    content = made(spec=on_hosts()).to_json()
    assert content["experiment"]["faults"][0]["params"]["how"] == "kill-process"


def test_recovery_counts_from_the_injection_of_a_one_shot_fault() -> None:
    phases = made().phases
    assert (phases.recovery_s, phases.recovery_auto, phases.recovery_from) == (110.0, True, "injection")


def test_recovery_counts_from_proven_off_of_a_held_fault() -> None:
    phases = made(HELD).phases
    assert (phases.recovery_s, phases.recovery_auto, phases.recovery_from) == (110.0, True, "off")


def test_a_fixed_recovery_follows_the_fault_phase() -> None:
    assert made(GOOD.replace("recovery: auto", "recovery: 50s")).phases.recovery_s == 110.0  # from the injection
    assert made(HELD.replace("recovery: auto", "recovery: 120s")).phases.recovery_s == 120.0  # from off


def test_the_hash_is_of_the_plan_without_run_and_seed() -> None:
    first = made().hash
    assert evidence.plan_hash(json.loads(json.dumps(made().to_json()))) == first  # whoever judges can tell
    assert made(run="ffffffff", seed=8).hash == first
    assert made(GOOD.replace("20/s", "21/s")).hash != first
    assert made(defect="some-defect").hash != first
    assert made(spec=target.lab_target(name="other")).hash != first


def test_the_same_plan_has_the_same_bytes() -> None:
    assert json.dumps(made().to_json()) == json.dumps(made().to_json())


def test_steps_are_printable_sentences_in_order() -> None:
    steps = made().steps
    assert all(step.isprintable() for step in steps)
    order = [
        "take the lock",
        "preflight",
        "gate",
        "load on",
        "warmup",
        "baseline",
        "fault: pod-kill",
        "write the receipt",
    ]
    places = [next(i for i, step in enumerate(steps) if step.startswith(word)) for word in order]
    assert places == sorted(places)
    assert "load on: poisson 20/s, workload chat, client time-out 30s, 2 retries within 10%, at most 900" in steps[7]
    assert "judge: failover (within 5s)" in steps
    assert not any("0123abcd" in step for step in steps)


def test_a_defect_lays_over_the_client() -> None:
    found = made(defect="some-defect", client={"retries": {"max": 0}})
    assert found.load.client.retries.max == 0
    assert found.load.client.retries.backoff == 0.25
    assert found.to_json()["experiment"]["load"]["client"]["retries"]["max"] == 0


def test_a_defect_may_bring_a_whole_profile() -> None:
    retries = made(client={"retries": {"profile": "sdk-like", "max": 3}}).load.client.retries
    assert (retries.max, retries.backoff, retries.budget, retries.jitter) == (3, 0.5, None, "sdk")


def test_a_profile_reaches_the_load_process_as_plain_values() -> None:
    found = made(GOOD.replace("{max: 2, budget: 10%}", "sdk-like"))
    read = LoadPlan.of(json.loads(json.dumps(plan.load_json(found, records="/r/requests.ndjson")))).client.retries
    assert (read.max, read.backoff_s, read.backoff_max_s, read.jitter) == (2, 0.5, 8.0, "sdk")
    assert (read.budget, read.header) == (None, True)
    assert "2 retries (profile sdk-like), at most" in "\n".join(found.steps)
    assert found.hash != made().hash


@pytest.mark.parametrize("arrivals", ["{kind: poisson, rate: 20/s}", "{kind: users, users: 200, think: 1s}"])
def test_the_load_process_takes_its_part(arrivals: str) -> None:
    found = made(GOOD.replace("{kind: poisson, rate: 20/s}", arrivals))
    read = LoadPlan.of(json.loads(json.dumps(plan.load_json(found, records="/r/requests.ndjson"))))
    assert (read.url, read.model, read.cap) == (LAB.url, LAB.model, found.load_cap)
    assert (read.client.timeout_s, read.client.retries.max, read.client.retries.budget) == (30.0, 2, 0.1)
    assert read.headers == {"X-Drill-Run": "0123abcd"}
    assert read.max_duration_s > 10 + 60 + 110


# ---- phases that cannot hold their checks -----------------------------------------------------------


def test_a_fixed_recovery_that_cannot_hold_the_checks() -> None:
    assert problem(GOOD.replace("recovery: auto", "recovery: 30s")) == (
        "x.yaml:8: phases.recovery: 30s is too short: the check alert and 20s of watch need 110s from the injection; "
        "write at least 50s, or auto"
    )
    assert problem(HELD.replace("recovery: auto", "recovery: 50s")) == (
        "x.yaml:8: phases.recovery: 50s is too short: the check alert and 20s of watch need 110s from the end of the "
        "fault; write at least 110s, or auto"
    )
    made(GOOD.replace("recovery: auto", "recovery: 50s"))


def test_a_baseline_of_which_nothing_is_left() -> None:
    assert problem(GOOD.replace("baseline: 60s", "baseline: 6s")) == (
        "x.yaml:8: phases.baseline: 6s is too short: the last 6s (the e2e SLA) before the fault do not count, so "
        "nothing would be left to compare with"
    )


def test_an_alert_that_cannot_fire_in_time() -> None:
    assert problem(GOOD.replace("within: 20s", "within: 7s")) == (
        "x.yaml:16: checks[2].alert.within: 7s is too short: an alert takes 8s at this target "
        "(scrape + ramp + evaluation + for)"
    )
    made(GOOD.replace("within: 20s", "within: 8s"))


def test_a_target_says_how_long_its_alerts_take() -> None:
    prometheus = "    prometheus: {url: http://p, scrape: 15s, evaluation: 15s, ramp: 1s, for: 30s}\n"
    found = problem(GOOD, on_hosts(prometheus))
    assert found.startswith("x.yaml:16: checks[2].alert.within: 20s is too short: an alert takes 61s at this target")


def test_a_held_fault_too_short_for_its_alert() -> None:
    # 200/s: enough requests in a short phase, so that only the alert is in the way
    text = HELD.replace("fault: 60s", "fault: 7s").replace("20/s", "200/s")
    assert problem(text).startswith("x.yaml:8: phases.fault: 7s is too short for the check alert: an alert takes 8s")


def test_without_prometheus_the_plan_says_what_it_cannot_decide() -> None:
    notes = made(spec=on_hosts()).notes
    assert notes == ("alert: the target 'metal' names no prometheus: this check will not be decided",)


# ---- enough requests for a quantile -----------------------------------------------------------------


def test_a_p99_of_too_few_requests() -> None:
    assert problem(GOOD.replace("fault: 60s", "fault: 49s")) == (
        "x.yaml:15: checks[1].latency: p99 needs 1000 requests in the cohort fault, 980 are expected at 20/s; make "
        "phases.fault at least 50s, raise the rate, or write allow_small_n: true"
    )
    made(GOOD.replace("fault: 60s", "fault: 50s"))


def test_the_end_of_the_baseline_does_not_count() -> None:
    text = GOOD.replace("cohort: fault", "cohort: baseline")
    assert problem(text.replace("baseline: 60s", "baseline: 55s")) == (
        "x.yaml:15: checks[1].latency: p99 needs 1000 requests in the cohort baseline, 980 are expected at 20/s; make "
        "phases.baseline at least 56s, raise the rate, or write allow_small_n: true"
    )
    made(text.replace("baseline: 60s", "baseline: 56s"))


def test_a_small_n_may_be_accepted_but_then_it_is_said() -> None:
    text = GOOD.replace("max: sla}", "max: sla, allow_small_n: true}").replace("fault: 60s", "fault: 15s")
    assert made(text).notes == ("latency: 300 requests expected for a p99: a few violations make it inconclusive",)
    assert made(text.replace("fault: 15s", "fault: 14s")).notes == (
        "latency: 280 requests expected, 299 needed at least: p99 will not be claimed",
    )


def test_a_closed_loop_counts_what_comes_while_the_sla_holds() -> None:
    text = GOOD.replace("{kind: poisson, rate: 20/s}", "{kind: users, users: 70, think: 1s}")
    assert "600 are expected at 10/s" in problem(text)


@given(
    rate=st.integers(min_value=1, max_value=60),
    fault_s=st.integers(min_value=1, max_value=300),
    quantile=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_a_quantile_is_planned_exactly_when_enough_is_expected(rate: int, fault_s: int, quantile: float) -> None:
    text = GOOD.replace("20/s", f"{rate}/s").replace("fault: 60s", f"fault: {fault_s}s").replace("0.99", str(quantile))
    enough = rate * fault_s >= round(10 / (1 - quantile))
    refused = None
    try:
        made(text)
    except FileProblem as exc:
        refused = exc.key
    assert refused == (None if enough else "checks[1].latency")


# ---- victims, abilities, guards ---------------------------------------------------------------------


def test_limits_on_victims_refuse_at_plan_time() -> None:
    with pytest.raises(Refused, match=r"victims: 2 asked, limits\.max_victims allows 1 of 3") as caught:
        made(GOOD.replace("victims: 1", "victims: 2"))
    assert caught.value.exit_code == EXIT_REFUSED
    with pytest.raises(Refused, match="victims: 10% of 3 eligible replicas is none"):
        made(GOOD.replace("victims: 1", "victims: 10%"))
    careful = yamlfile.parse(Path("d.yaml"), "targets: {lab: {kind: lab, limits: {min_healthy: 3}}}")
    with pytest.raises(Refused, match=r"limits\.min_healthy is 3"):
        made(spec=target.from_document(careful).pick())


def test_a_share_of_victims_rounds_down() -> None:
    assert made(GOOD.replace("victims: 1", "victims: 66%")).faults[0].victims == 1


def test_a_guard_that_every_run_would_trip() -> None:
    assert problem(GOOD.replace("{min: 1}", "{min: 3}")) == (
        "x.yaml:12: guards[0].ready_replicas.min: 3 would stop every run: the fault leaves 2 of 3 replicas"
    )
    made(HELD.replace("{min: 1}", "{min: 3}"))  # noop takes nothing away


ROUTE = HELD.replace("noop: {victims: 1}", "upstream-delay: {delay: 2s}")


def test_a_fault_of_the_route_needs_its_own_limit_and_no_other() -> None:
    careful = "limits: {min_healthy: 3, max_victims: 1%"
    allowed = yamlfile.parse(Path("d.yaml"), f"targets: {{lab: {{kind: lab, {careful}}}}}}}")
    found = made(ROUTE.replace("{min: 1}", "{min: 3}"), target.from_document(allowed).pick())
    assert found.faults[0].victims == 3
    assert "fault: upstream-delay (mode first_byte, delay 2s); it hits the route: all primaries at once" in found.steps
    forbidden = yamlfile.parse(Path("d.yaml"), "targets: {lab: {kind: lab, limits: {allow_route_faults: false}}}")
    with pytest.raises(Refused, match=r"limits\.allow_route_faults is false") as caught:
        made(ROUTE, target.from_document(forbidden).pick())
    assert caught.value.exit_code == EXIT_REFUSED


def test_a_fault_of_the_route_draws_no_victims() -> None:
    with pytest.raises(FileProblem, match="unknown key 'victims'"):
        tried(ROUTE.replace("{delay: 2s}", "{victims: 1}"))


@pytest.mark.parametrize(("delay", "refused"), [("59s", False), ("60s", True)])
def test_a_fault_that_is_over_before_its_proof_is_refused(delay: str, refused: bool) -> None:
    text = HELD.replace("noop: {victims: 1}", f"upstream-delay: {{delay: {delay}}}")
    if not refused:
        assert made(text).faults[0].fault.name == "upstream-delay"
        return
    assert "its proof alone takes 1m" in problem(text) or "its proof alone takes 60s" in problem(text)


def test_a_route_needs_proxies() -> None:
    spec = target.from_document(yamlfile.parse(Path("d.yaml"), HOSTS)).pick()
    said = "needs ledger proxies in front of the replicas, which the target 'metal' of kind hosts does not have; name"
    assert said in problem(ROUTE, spec)


def test_a_fault_that_says_nothing_for_this_kind_of_target() -> None:
    text = GOOD.replace("{lab: delete, hosts: kill-process}", "{hosts: kill-process}")
    assert problem(text).startswith("x.yaml:10: faults[0].pod-kill: how: nothing said for a target of kind 'lab'")
    found = problem(GOOD.replace("lab: delete", "lab: evict"))
    assert found.startswith("x.yaml:10: faults[0].pod-kill: how: evict needs Kubernetes")


class Needy:
    """A fault for a target with an ability of its own."""

    name: ClassVar[str] = "needy"
    held: ClassVar[bool] = False
    effect: ClassVar[bool] = True
    Params = FaultParams

    def __init__(self, params: FaultParams, kind: str) -> None:
        self.params, self.kind = params, kind

    def needs(self) -> frozenset[str]:
        return frozenset({"CanFly"})

    def preflight(self, target: Target, victims: Sequence[Replica]) -> list[str]:
        return []


def test_an_ability_that_the_target_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAULTS, "needy", Needy)
    monkeypatch.setitem(abilities.ABILITIES, "CanFly", abilities.Ability("wings", "use --target bird"))
    text = GOOD.replace("pod-kill: {victims: 1, how: {lab: delete, hosts: kill-process}}", "needy: {}")
    assert problem(text) == (
        "x.yaml:10: faults[0].needy: needs wings, which the target 'lab' of kind lab does not have; use --target bird"
    )


def test_a_check_may_refuse_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(params: object, content: dict[str, Any]) -> list[str]:
        return [f"cannot be decided in {content['phases']['fault_s']:g}s"]

    monkeypatch.setattr(CHECKS["failover"], "plan_errors", refuse)
    assert problem(GOOD) == "x.yaml:14: checks[0].failover: cannot be decided in 60s"


# ---- what is shipped --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["noop", "pod-kill", "gpu-reset"])
def test_shipped_experiments_plan_for_the_lab(name: str) -> None:
    found = plan.make_plan(experiment.find_experiment(name), LAB, run="0123abcd", seed=7)
    phases = found.phases
    longest_s = phases.warmup_s + phases.baseline_s + max(phases.fault_s, phases.recovery_s)
    assert longest_s <= 200  # the lab's start and end, and a drill of under four minutes
    if name != "noop":
        assert min(found.expected.values()) >= 1000
        assert found.notes == ()


@pytest.mark.parametrize("name", [one.name for one in experiment.list_experiments()])
def test_the_steps_of_shipped_experiments_are_for_people(name: str) -> None:
    for step in plan.make_plan(experiment.find_experiment(name), LAB, run="0123abcd", seed=7).steps:
        assert not set("{}[]") & set(step), step  # no value as Python would write it
        assert "None" not in step


def test_an_availability_that_no_sample_can_show_is_refused() -> None:
    strict = replace(LAB, sla=replace(LAB.sla, errors=0.0))
    text = GOOD.replace("checks:\n", "checks:\n  - availability\n")
    assert "checks[0]: the SLA allows no error" in problem(text, strict)
    made(text.replace("- availability", "- availability: {min: 99%}"), strict)
