"""Ledger proxies belong to a run, and several runs of one command share their target."""

from __future__ import annotations

from drills.fronts.fronted import Fronted
from drills.model import Replica


class Target(Fronted):
    """A target that one run after the other has."""

    def __init__(self) -> None:
        self.run = ""
        self._begin_fronts()

    def run_now(self) -> str:
        return self.run


def test_what_a_run_has_put_up_is_not_the_next_runs() -> None:
    target, replica = Target(), Replica("vllm-0", "u0", "primary", "", ready=True)
    target.run = "aaaa1111"
    spot = {"ip": "10.0.0.1", "port": 8000, "listen": 9000, "node": "n", "state_dir": "/run/drill", "stays": True}
    spot["folder"] = "/run/drill/proxies/x"
    target.fronts._up[replica.uid] = spot
    assert target.fronts.any()
    assert target.proxy(replica) is not None
    target.run = "bbbb2222"
    assert not target.fronts.any()
    assert target.proxy(replica) is None
    assert target.collect_ledger(0.0) is None, "nothing of its own, and what the other had is gone with its helper"
