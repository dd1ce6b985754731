"""Which hosts are one machine: by what they answer when they are asked, whatever they are called."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drills.errors import Refused, Unreachable
from drills.hosts import opening
from drills.hosts.declared import one_unit
from drills.hosts.machines import Machine, grouped, twins
from drills.model import Completed
from drills.target import TargetSpec, load_target
from drills.targetfile import GpuHost

GOOD = """\
targets:
  metal:
    endpoint: {url: "https://llm.example/v1", model: m}
    sla: {ttft: {p99: 1s}, e2e: {p99: 12s}, max_gap: {p99: 2s}, errors: 1%}
    hosts:
      - {name: a, address: gpu-1.example, user: u, unit: vllm}
      - {name: b, address: 10.0.0.7, user: u, unit: vllm}
      - {name: c, address: 10.0.0.7, user: u, unit: vllm, jump: {address: gate}}
"""


class Host:
    """A host that says what it is asked to."""

    def __init__(self, name: str, said: str | None, rc: int = 0) -> None:
        self.name, self.said, self.rc = name, said, rc

    def list(self, path: str) -> list[str]:
        if self.said is None:
            raise Unreachable(f"{self.name}: does not answer")
        return [path]

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        return Completed(tuple(argv), self.rc, self.said or "", "")


@pytest.fixture
def spec(tmp_path: Path) -> TargetSpec:
    (tmp_path / "drill.yaml").write_text(GOOD)
    return load_target("metal", tmp_path / "drill.yaml")


def machines(spec: TargetSpec, **said: Any) -> tuple[Machine, ...]:
    def connect(entry: GpuHost) -> Any:
        return Host(entry.name, *said.get(entry.name, (entry.name,)))

    return grouped(spec.hosts, connect)


def test_one_machine_by_two_addresses_is_refused_and_both_are_named(spec: TargetSpec) -> None:
    with pytest.raises(Refused, match=r"hosts b \(10\.0\.0\.7\) and a \(gpu-1\.example\) are one machine"):
        opening._connect(spec, machines(spec, a=("boot pid\n",), b=("boot pid\n",)))
    with pytest.raises(Refused, match=r"hosts b \(10\.0\.0\.7\) and c \(10\.0\.0\.7 by gate\) are one machine"):
        opening._connect(spec, machines(spec, b=("x",), c=("x",)))


def test_different_machines_are_let_be(spec: TargetSpec) -> None:
    opening._connect(spec, machines(spec))


def test_who_does_not_say_what_it_is_is_nobodys_twin(spec: TargetSpec) -> None:
    opening._connect(spec, machines(spec, a=("", 1), b=("boot", 1), c=("boot", 1)))


def test_who_does_not_answer_is_what_is_said(spec: TargetSpec) -> None:
    with pytest.raises(Refused, match="b: does not answer"):
        opening._connect(spec, machines(spec, a=("x",), b=(None,), c=("x",)))


def test_containers_of_one_kernel_are_machines_of_their_own(spec: TargetSpec) -> None:
    both = machines(spec, a=("boot\npid:[1]\n",), b=("boot\npid:[2]\n",))
    assert twins(both, {machine.name: machine.identity() for machine in both}) == []


def test_a_machine_says_its_boot_and_its_pids(spec: TargetSpec) -> None:
    class Real(Host):
        def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
            return Completed(tuple(argv), done.returncode, done.stdout, done.stderr)

    real: Any = Real(spec.hosts[0].name, "")
    [machine] = grouped(spec.hosts[:1], lambda _: real)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert machine.identity().split() == [boot, str(Path("/proc/self/ns/pid").readlink())]


def test_a_unit_by_an_alias_is_the_same_run_of_it() -> None:
    assert one_unit({"a": "aa11", "b": "bb22", "c": "aa11"}) == ["a and c are one unit by two names: declare it once"]
    assert one_unit({"a": "", "b": ""}) == []
