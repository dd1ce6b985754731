"""`drill doctor` at a real service: what it says of one that is well, and of what each drill may not do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes.client import RbacAuthorizationV1Api

from drills import doctor
from drills.access.kubernetes import connect
from drills.access.kubetypes import Right
from drills.cluster import rbac, rights
from drills.doctor import Diagnosis
from drills.doctor.finding import State
from drills.options import Options
from tests.cluster import node
from tests.cluster.driving import declare, node_fault, signed_in
from tests.cluster.emulator import Emulator, declared_helper, serving
from tests.cluster.example import Example

#: A drill for each way that rights are needed.
FAULTS = {
    "deleted": "pod-kill: {victims: 1, how: delete}",
    "evicted": "pod-kill: {victims: 1, how: evict}",
    "killed": "pod-kill: {victims: 1, how: kill-process}",
    "cut": "packet-loss: {victims: 1, mode: reject, ports: [8080]}",
}
GRANTED_S = 10.0
Look = Callable[..., Diagnosis]


@pytest.fixture
def look(tmp_path: Path, cluster: Path, service: Emulator, monkeypatch: pytest.MonkeyPatch) -> Look:
    """`drill doctor` for the drills above."""
    monkeypatch.setenv("KUBECONFIG", str(cluster))
    declare(tmp_path, service, container="vllm", helper=declared_helper())
    for name, fault in FAULTS.items():
        text = node_fault(fault, "failover: {within: 10s}")
        (tmp_path / f"{name}.yaml").write_text(text.replace("cluster-node-fault", name))

    def look(*names: str) -> Diagnosis:
        files = [str(tmp_path / f"{name}.yaml") for name in names or FAULTS]
        return doctor.diagnose(files, Options("prod", tmp_path / "drill.yaml"))

    return look


def lacking(found: Diagnosis) -> set[str]:
    """Return the rights that are said to be missing."""
    return {one.name for one in found.findings if one.group == "rights" and one.state is not State.OK}


def test_what_works_is_said_and_what_is_not_declared_too(look: Look, service: Emulator) -> None:
    before = service.uids()
    found = look()
    state = {f"{one.group} {one.name}": one for one in found.findings}
    for name in ("rights role", "service completions", "service endpoint", "clock API server", "versions vLLM"):
        assert state[name].state is State.OK, found.lines()
    assert state["metrics router"].state is State.MISSING
    assert {one.state for one in found.findings if one.group == "drill"} == {State.OK}, found.lines()
    assert found.exit_code == 2
    assert service.uids() == before
    assert service.left() == []


# ---- rights ----------------------------------------------------------------------------------------------


class Account:
    """A service account whose role can be changed."""

    def __init__(self, service: Emulator, name: str) -> None:
        self.service, self.name = service, name
        self.granted: set[Right] = set()
        self.rbac = RbacAuthorizationV1Api(service.namespace.api)
        self.token = service.token(name, rbac.role(name, service.namespace.name, []))

    def may(self, granted: set[Right]) -> None:
        """Give it exactly these rights, and wait until the API server knows."""
        where = self.service.namespace.name
        self.rbac.replace_namespaced_role(self.name, where, rbac.role(self.name, where, granted))
        changed, self.granted = sorted(granted ^ self.granted), granted
        self.until(lambda: set(rights.missing(connect(), where, changed)) == set(changed) - granted)

    @staticmethod
    def until(true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + GRANTED_S
        while not true():
            assert time.monotonic() < deadline, f"the role is not in force after {GRANTED_S} s"
            time.sleep(0.1)


@pytest.fixture
def account(service: Emulator, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    made = Account(service, f"doctor-{time.monotonic_ns() % 10**9}")
    monkeypatch.setenv("KUBECONFIG", str(signed_in(tmp_path, cluster, made.token)))
    return made


def test_each_verb_that_is_taken_away_is_named_and_no_other(look: Look, account: Account) -> None:
    needed = set(rbac.needed(["pod-kill delete", "pod-kill evict", "packet-loss"], proxy=True))
    account.may(needed)
    assert lacking(look()) == set()
    for right in sorted(needed):
        account.may(needed - {right})
        found = look()
        assert lacking(found) == {f"{right[0]} {right[2]}"}, found.lines()
        assert found.exit_code == 3


def test_what_it_says_to_type_grants_what_was_missing(look: Look, account: Account, own_node: Path) -> None:
    account.may(set(rbac.LOOK | rbac.CUSTODY))
    found = look("deleted", "cut")
    bad = [one for one in found.findings if one.group == "rights" and one.state is not State.OK]
    assert bad
    for line in (line for one in bad for line in one.fix):
        assert node.kubectl(*line.split()[1:]) is not None, line
    where = account.service.namespace.name
    asked = sorted(rbac.needed(["pod-kill delete", "packet-loss"], proxy=True))
    Account.until(lambda: rights.missing(connect(), where, asked) == [])
    assert lacking(look("deleted", "cut")) == set()


# ---- a whole service -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(cluster: Path) -> Iterator[Example]:
    with serving(Example, cluster) as made:
        yield made


def diagnosed(example: Example, folder: Path, *names: str) -> Diagnosis:
    return doctor.diagnose(names or ("monthly",), Options("chat", example.targets(folder)))


def test_the_example_has_all_that_a_drill_needs(
    example: Example, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster))
    found = diagnosed(example, tmp_path, "packet-loss", "pod-kill")
    assert [one for one in found.findings if one.state is not State.OK] == [], found.lines()
    assert found.exit_code == 0


def test_an_alert_rule_that_is_not_there_is_named(
    example: Example, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster))
    path = tmp_path / "other.yaml"
    alert = "alert: {name: NobodyHasThis, within: auto, resolves_within: auto}"
    path.write_text(node_fault(FAULTS["deleted"], alert))
    found = diagnosed(example, tmp_path, str(path))
    [said] = [one for one in found.findings if one.name == "NobodyHasThis"]
    assert (said.state, said.refuses) == (State.MISSING, False)
    assert said.fix[1].strip().endswith("vllm.rules.yml")
