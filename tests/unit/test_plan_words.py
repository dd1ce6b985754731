"""A plan speaks to people: no name of a protocol, no parameter that means nothing, and which cluster it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drills import abilities, experiment, model, plan, target, yamlfile
from tests.unit.test_plan import GOOD, made, problem

SOURCES = [Path(plan.__file__).parent / "target.py", *(Path(plan.__file__).parent / "faults").glob("*.py")]
CLUSTER = """\
targets:
  staging:
    endpoint: {url: http://llm/v1, model: m}
    sla: {ttft: {p99: 1s}, e2e: {p99: 6s}, max_gap: {p99: 2s}, errors: 1%}
    kubernetes: { context: staging-eu, namespace: llm, selector: "app=vllm,tier=chat"}
"""


def test_every_ability_has_words_for_people() -> None:
    protocols = {name for name, found in vars(model).items() if getattr(found, "_is_runtime_protocol", False)}
    needed = set(re.findall(r'"((?:Has|Can)[A-Z]\w+|NodeAccess)"', "".join(p.read_text() for p in SOURCES)))
    assert needed <= set(abilities.ABILITIES) <= protocols
    for need in abilities.ABILITIES:
        for kind in experiment.KINDS:
            assert not {word for word in protocols if word in abilities.lacking(need, "t", kind)}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("crash", "how: crash is not for a target of kind 'kubernetes'; use planned"),
        ("{lab: crash}", "how: nothing said for a target of kind 'kubernetes'; add `kubernetes: planned`"),
        ("{lab: crash, kubernetes: planned}", "needs nodes whose GPUs a job can reset"),
    ],
)
def test_a_reset_that_a_cluster_cannot_take_is_told_what_it_lacks(how: str, words: str) -> None:
    spec = target.from_document(yamlfile.parse(Path("d.yaml"), CLUSTER)).pick()
    text = GOOD.replace("pod-kill: {victims: 1, how: {lab: delete, hosts: kill-process}}", f"gpu-reset: {{how: {how}}}")
    said = problem(text, spec)
    assert said.startswith("x.yaml:10: faults[0].gpu-reset: ")
    assert words in said


def test_a_parameter_that_means_nothing_is_not_among_the_steps() -> None:
    def fault(how: str) -> str:
        text = GOOD.replace("{victims: 1, how: {lab: delete, hosts: kill-process}}", how)
        spec = target.from_document(yamlfile.parse(Path("d.yaml"), CLUSTER)).pick()
        return next(step for step in made(text, spec).steps if step.startswith("fault: "))

    assert fault("{how: delete}").startswith("fault: pod-kill (victims 1, how delete); ")
    assert fault("{how: evict}").startswith("fault: pod-kill (victims 1, how evict, budget_timeout 30); ")
    assert "budget_timeout 5s" in fault("{how: delete, budget_timeout: 5s}")


def test_a_plan_for_a_cluster_says_which_one() -> None:
    text = GOOD.replace("{lab: delete, hosts: kill-process}", "delete")
    for context, said in ((" context: staging-eu,", "context staging-eu"), ("", "the current context")):
        spec = target.from_document(yamlfile.parse(Path("d.yaml"), CLUSTER.replace(" context: staging-eu,", context)))
        assert f"pods: {said}, namespace llm, selector app=vllm,tier=chat" in made(text, spec.pick()).steps
    assert not [step for step in made().steps if step.startswith("pods: ")]


KILL, LATE = "pod-kill: {victims: 1, how: kill-process}", "upstream-delay: {mode: first_byte, delay: 2s}"
UNITS = "".join(f"      - {{name: g{n}, address: 10.0.0.{n}, user: drill, unit: vllm.service}}\n" for n in range(3))
ROUTER = "    router: {kind: other, addresses: [10.0.0.5]}\n"
COMMON = "    capacity: {per_replica: 99/s}\n    limits: {allow_route_faults: true}\n"
ON_HOSTS = CLUSTER[: CLUSTER.index("    kubernetes:")] + COMMON + f"    hosts:\n{UNITS}"
IN_PODS = CLUSTER.replace('tier=chat"}', 'tier=chat", helper: {image: drills:1}, LEDGER}') + COMMON


@pytest.mark.parametrize(
    ("declared", "fault", "said"),
    [
        (ON_HOSTS, KILL, None),
        (ON_HOSTS + ROUTER, KILL, None),
        (ON_HOSTS + ROUTER, LATE, ", for what the router sends: prove them, reset its connections from before"),
        (
            f"{ON_HOSTS}{ROUTER}    ledger: true\n",
            KILL,
            ", for what the router sends: prove them, reset its connections from before",
        ),
        (IN_PODS.replace(", LEDGER", ""), KILL, None),
        (IN_PODS.replace(", LEDGER", ""), LATE, ": prove them, reset connections from before"),
        (IN_PODS.replace("LEDGER", "ledger: true"), KILL, ": prove them, reset connections from before"),
        ("targets:\n  lab: {kind: lab}\n", LATE, None),
    ],
)
def test_a_plan_says_whether_ledger_proxies_are_put_up(declared: str, fault: str, said: str | None) -> None:
    """Where the target asks for them and where the fault needs them; a lab has its own."""
    text = GOOD.replace("pod-kill: {victims: 1, how: {lab: delete, hosts: kill-process}}", fault)
    steps = made(text, target.from_document(yamlfile.parse(Path("d.yaml"), declared)).pick()).steps
    told = [step for step in steps if "ledger proxies" in step]
    up = f"ledger proxies in front of the engines{said}"
    assert told == ([up, "load off; take the ledger proxies away; ask every replica for a completion"] if said else [])


def test_a_plan_for_hosts_says_whose_packets_are_the_routers() -> None:
    text = GOOD.replace("{lab: delete, hosts: kill-process}", "kill-process")
    for router, said in ((ROUTER, True), ("", False)):
        steps = made(text, target.from_document(yamlfile.parse(Path("d.yaml"), ON_HOSTS + router)).pick()).steps
        assert ("router: sends from 10.0.0.5" in steps) is said
