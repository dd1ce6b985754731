"""The undo of rules by the on-target program, with both kinds of iptables, in namespaces made for the test."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drills.access import iptables, ontarget, procs
from drills.access.filecustody import FileCustody
from drills.access.iptables import Rule
from drills.access.local import LocalHost
from drills.errors import DrillError
from drills.lab import network
from drills.model import Json, Receipt, Restored

pytestmark = pytest.mark.root
HOST = LocalHost()
CHAIN = "DRILL-0a1b2c3d-0-I"
TAG = ("-m", "comment", "--comment", "drill-0a1b2c3d-0-jump", "-j", CHAIN)
RULES = [
    Rule(
        CHAIN,
        "rest",
        ("-s", "10.0.0.2/32", "-p", "tcp", "-m", "comment", "--comment", "drill-0a1b2c3d-0", "-j", "DROP"),
    ),
    Rule("INPUT", "jump", TAG),
]
#: Somebody else's: one before ours, one that resembles ours.
FOREIGN = [
    ("-A", "INPUT", "-s", "10.9.9.9/32", "-j", "ACCEPT"),
    ("-A", "INPUT", "-m", "comment", "--comment", "drill-0a1b2c3d-0-jump", "-j", "KUBE-X"),
]


class Namespace:
    """A namespace with a process in it, and rules of somebody else."""

    def __init__(self, kind: str) -> None:
        self.program = f"/usr/sbin/iptables-{kind}"
        self.programs = iptables.Programs({kind: self.program}, kind)
        self.holder = subprocess.Popen(["sleep", "600"], preexec_fn=network._unshare)
        self.inode = Path(f"/proc/{self.holder.pid}/ns/net").stat().st_ino
        self.netns = {"pid": self.holder.pid, "start": procs.start(self.holder.pid), "inode": self.inode}
        self.enter = ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"]
        self.run("-N", "KUBE-X")
        for rule in FOREIGN:
            self.run(*rule)

    def run(self, *words: str) -> str:
        return iptables.call(HOST, self.enter, self.program, *words)

    def snapshot(self) -> Json:
        return iptables.snapshot(HOST, self.enter, self.programs)

    def put(self) -> None:
        iptables.restore(HOST, self.enter, self.program, RULES)

    @property
    def steps(self) -> list[Json]:
        base = {"netns": self.netns, "iptables": self.program, "table": "filter"}
        return [
            {"do": "unchain", **base, "chain": CHAIN},
            {"do": "unrule", **base, "chain": "INPUT", "rule": list(TAG)},
        ]


@pytest.fixture(params=["nft", "legacy"])
def space(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    made = Namespace(request.param)
    yield made
    made.holder.kill()
    made.holder.wait()


def carry_out(steps: list[Json]) -> list[Json]:
    return ontarget.carry_out(steps)


def test_only_our_rule_and_our_chain_go_and_others_stay_in_their_order(space: Namespace) -> None:
    before = space.snapshot()
    space.put()
    assert iptables.ours(space.snapshot(), "0a1b2c3d")
    assert all(step["ok"] for step in carry_out(space.steps))
    assert iptables.difference(before, space.snapshot()) == []
    assert all(step["ok"] for step in carry_out(space.steps))  # nothing is left to undo


def test_a_rule_that_was_put_twice_goes_twice(space: Namespace) -> None:
    before = space.snapshot()
    space.put()
    space.run("-A", "INPUT", *TAG)
    assert all(step["ok"] for step in carry_out(space.steps))
    assert iptables.difference(before, space.snapshot()) == []


def test_rules_are_put_all_or_none(space: Namespace) -> None:
    before = space.snapshot()
    bad = Rule(CHAIN, "rest", ("-s", "10.0.0.2/32", "-j", "NO-SUCH-TARGET"))
    with pytest.raises(DrillError, match="iptables-"):
        iptables.restore(HOST, space.enter, space.program, [RULES[0], bad, RULES[1]])
    assert iptables.difference(before, space.snapshot()) == []


def test_a_chain_that_somebody_still_leads_to_is_said_and_the_rule_goes_all_the_same(space: Namespace) -> None:
    space.put()
    space.run("-A", "KUBE-X", "-j", CHAIN)
    jump, chain = carry_out(space.steps)
    assert (jump["ok"], chain["ok"]) == (True, False)
    assert "-X" in chain["error"]
    assert "drill-0a1b2c3d-0-jump -j DRILL" not in space.run("-S")
    space.run("-D", "KUBE-X", "-j", CHAIN)
    assert all(step["ok"] for step in carry_out(space.steps))


def test_a_namespace_that_is_gone_took_its_rules_with_it(space: Namespace) -> None:
    space.put()
    space.holder.kill()
    space.holder.wait()
    assert all(step["ok"] for step in carry_out(space.steps))


def test_a_namespace_whose_holder_is_gone_is_found_while_anybody_lives_in_it(space: Namespace) -> None:
    before = space.snapshot()
    space.put()
    with subprocess.Popen([*space.enter, "sleep", "600"]) as other:
        try:
            while Path(f"/proc/{other.pid}/ns/net").stat().st_ino != space.inode:
                assert other.poll() is None
            space.holder.kill()
            space.holder.wait()
            assert all(step["ok"] for step in carry_out(space.steps))
            space.enter = ["nsenter", f"--net=/proc/{other.pid}/ns/net"]
            assert iptables.difference(before, space.snapshot()) == []
        finally:
            other.kill()


def test_a_program_that_is_not_there_is_an_error_with_the_words_to_type(space: Namespace) -> None:
    space.put()
    steps = [{**step, "iptables": "/nowhere/iptables"} for step in space.steps]
    assert not any(step["ok"] for step in carry_out(steps))


def test_the_timer_undoes_when_the_driver_and_all_its_processes_are_gone(space: Namespace, tmp_path: Path) -> None:
    before, custody = space.snapshot(), FileCustody(HOST, str(tmp_path), "t")
    base: dict[str, Any] = {"run": "0a1b2c3d", "fault": "packet-loss", "target": "t", "host": "local", "holds": ()}
    receipt = Receipt("0a1b2c3d-0-packet-loss", **base, victims=(), prior={}, undo=tuple(space.steps), deadline_s=1.0)
    driver = os.fork()
    if driver == 0:
        os.setsid()
        custody.arm(receipt)
        space.put()
        time.sleep(600)
    armed: list[str] = []
    deadline = time.monotonic() + 20
    while "armed" not in armed or not iptables.ours(space.snapshot(), "0a1b2c3d"):
        assert time.monotonic() < deadline
        armed = [left.timer_state for left in custody.outstanding()] or armed
    os.killpg(driver, signal.SIGKILL)
    os.waitpid(driver, 0)
    while iptables.difference(before, space.snapshot()):
        assert time.monotonic() < deadline
    assert custody.undo(receipt) == (Restored.CLEAN, [])
    assert custody.disarm(receipt)
