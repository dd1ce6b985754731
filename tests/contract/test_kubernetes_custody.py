"""Custody in a cluster: one holder at a time, receipts that are found again, a stop button on the Lease."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from drills import lock as locks
from drills import recover as recovering
from drills.access.kubernetes import Limits, connect
from drills.access.kubetypes import ClusterAway, ClusterError
from drills.access.remote import RemoteHost
from drills.clock import Clock
from drills.cluster.custody import ClusterCustody
from drills.cluster.helpers import Helper, Helpers
from drills.cluster.lease import LIVES_S, name_of
from drills.cluster.nodework import NodeWork
from drills.custody import Custody, Lock, LockLost, LockUnreadable
from drills.errors import Refused
from drills.model import Receipt, Restored
from tests.contract.kube_api import Store, serving
from tests.contract.kube_talk import kubeconfig

NAME = name_of("app=vllm")


class At(Clock):
    """A clock that stands where it was put."""

    def __init__(self, wall: float) -> None:
        self.now = wall

    def wall(self) -> float:
        return self.now


def lock(run: str = "aaaa1111", *, machine: str = "elsewhere", wall: float = 1000.0, lives_s: float = 900.0) -> Lock:
    return Lock(run, "me@here", machine, 1, 1, wall, wall + lives_s, "/runs/x")


def receipt(name: str = "aaaa1111-0-pod-kill", run: str = "aaaa1111") -> Receipt:
    victim = {"name": "vllm-1", "uid": "u1"}
    return Receipt(name, run, "pod-kill", "prod", "node-1", (victim,), {"bystanders": []}, (), (), 60.0)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving() as (store, url):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
        yield store


def custody(selector: str = "app=vllm") -> Custody:
    return ClusterCustody(connect(limits=Limits(deadline_s=5.0)), "llm", selector, "prod")


def lease(store: Store) -> dict[str, object]:
    return store.objects["leases", "llm", NAME]


# ---- the lock --------------------------------------------------------------------------------------------


def test_the_name_is_the_same_however_the_selector_is_written() -> None:
    assert name_of("app=vllm,tier=a") == name_of(" tier = a ,app==vllm")
    assert name_of("app=vllm") != name_of("app=vllm2")
    assert name_of("app in (A, b)").replace("-", "").isalnum()
    assert len(name_of("app=" + "x" * 200)) <= 63


def test_between_two_runs_the_helpers_of_none_are_meant(store: Store) -> None:
    keeper = ClusterCustody(connect(limits=Limits(deadline_s=5.0)), "llm", "app=vllm", "prod")
    keeper.take(lock("aaaa1111"), At(1000.0))
    assert keeper.run == "aaaa1111"
    keeper.release("bbbb2222")
    assert keeper.run == "aaaa1111"
    keeper.release("aaaa1111")
    assert keeper.run == ""


def test_what_was_taken_is_held_until_it_is_released(store: Store) -> None:
    keeper, mine = custody(), lock()
    assert keeper.held() is None
    keeper.take(mine, At(1000.0))
    held = keeper.held()
    assert held is not None
    assert (held.run, held.folder) == (mine.run, mine.folder)
    assert lease(store)["spec"]["holderIdentity"] == mine.run  # type: ignore[index]
    keeper.release("bbbb2222")
    assert keeper.held() is not None
    keeper.release(mine.run)
    assert ("leases", "llm", NAME) not in store.objects


def test_a_driver_that_lives_is_waited_for_by_nobody(store: Store) -> None:
    custody().take(lock(), At(1000.0))
    with pytest.raises(Refused, match="run aaaa1111 of me@here holds it"):
        custody().take(lock("bbbb2222"), At(1000.0 + LIVES_S - 1))


def test_two_names_of_one_service_meet(store: Store) -> None:
    custody("app=vllm").take(lock(), At(1000.0))
    with pytest.raises(Refused, match="holds it"):
        ClusterCustody(connect(), "llm", " app == vllm", "other").take(lock("bbbb2222"), At(1000.0))


def test_a_driver_that_has_not_renewed_for_long_is_gone(store: Store) -> None:
    custody().take(lock(), At(1000.0))
    custody().take(lock("bbbb2222", wall=1000.0 + LIVES_S + 1), At(1000.0 + LIVES_S + 1))
    held = custody().held()
    assert held is not None
    assert held.run == "bbbb2222"


def test_a_driver_that_renews_stays(store: Store) -> None:
    keeper = custody()
    keeper.take(lock(), At(1000.0))
    keeper.renew(lock(), At(1170.0))
    with pytest.raises(Refused, match="holds it"):
        custody().take(lock("bbbb2222"), At(1300.0))


def test_a_driver_that_renews_stays_beyond_the_time_it_was_given(store: Store) -> None:
    keeper, short = custody(), lock(lives_s=100.0)
    keeper.take(short, At(1000.0))
    keeper.renew(short, At(1150.0))
    with pytest.raises(Refused, match="holds it"):
        custody().take(lock("bbbb2222"), At(1200.0))


def test_a_driver_of_this_machine_is_asked_for_by_its_pid(store: Store) -> None:
    custody().take(lock(machine=locks.machine()), At(1000.0))  # pid 1 with another start: gone
    custody().take(lock("bbbb2222"), At(1001.0))


def test_who_lost_the_lock_is_told(store: Store) -> None:
    keeper = custody()
    with pytest.raises(LockLost, match="its Lease is gone"):
        keeper.renew(lock(), At(1000.0))
    keeper.take(lock("bbbb2222"), At(1000.0))
    with pytest.raises(LockLost, match="run bbbb2222 of me@here has it"):
        keeper.renew(lock(), At(1000.0))


def test_of_many_at_once_one_gets_it(store: Store) -> None:
    got: list[str] = []
    start = threading.Barrier(6)

    def attempt(number: int) -> None:
        keeper, mine = custody(), lock(f"{number}aaa1111")
        start.wait(10)
        try:
            keeper.take(mine, At(1000.0))
        except Refused:
            return
        got.append(mine.run)

    for before in (None, lock("dead0000", wall=0.0)):  # none there, and one to take over
        got.clear()
        store.objects.clear()
        if before is not None:
            custody().take(before, At(0.0))
        threads = [threading.Thread(target=attempt, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        held = custody().held()
        assert held is not None
        assert got == [held.run]


def test_a_lease_of_somebody_else_that_says_nothing_is_taken_over(store: Store) -> None:
    store.put("leases", {"metadata": {"name": NAME}, "spec": {}})
    custody().take(lock(), At(1000.0))
    assert custody().held() is not None


def test_a_right_that_is_missing_is_named(store: Store) -> None:
    store.forbidden.add(("POST", "leases"))
    with pytest.raises(ClusterError, match="is not allowed"):
        custody().take(lock(), At(1000.0))


def test_a_server_that_is_gone_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "http://127.0.0.1:1")))
    keeper = ClusterCustody(connect(limits=Limits(deadline_s=0.1)), "llm", "app=vllm", "prod")
    with pytest.raises(ClusterAway):
        keeper.held()


# ---- the stop button -------------------------------------------------------------------------------------


def test_a_run_is_asked_to_stop_on_its_lease(store: Store) -> None:
    keeper = custody()
    keeper.take(lock(), At(1000.0))
    assert keeper.asked_to_stop("aaaa1111") is None
    custody().ask_to_stop("aaaa1111", "you@there")
    assert keeper.asked_to_stop("aaaa1111") == "you@there"
    assert keeper.asked_to_stop("bbbb2222") is None
    keeper.renew(lock(), At(1001.0))
    assert keeper.asked_to_stop("aaaa1111") == "you@there"
    keeper.forget_stop("aaaa1111")
    assert keeper.asked_to_stop("aaaa1111") is None
    keeper.release("aaaa1111")
    assert store.objects == {}


def test_nobody_asks_where_there_is_no_lease(store: Store) -> None:
    assert custody().asked_to_stop("aaaa1111") is None
    custody().forget_stop("aaaa1111")


# ---- receipts --------------------------------------------------------------------------------------------


def test_a_receipt_is_found_by_another_process_and_taken_away(store: Store) -> None:
    custody().arm(receipt())
    assert [o.receipt for o in custody().outstanding()] == [receipt()]
    assert "it leaves nothing to undo" in custody().outstanding()[0].sentence()
    assert custody().undo(receipt()) == (Restored.CLEAN, [])
    assert custody().disarm(receipt())
    assert custody().disarm(receipt())
    assert store.objects == {}


def test_a_receipt_that_is_there_already_stays(store: Store) -> None:
    custody().arm(receipt())
    custody().arm(receipt())
    assert len(custody().outstanding()) == 1


def test_receipts_of_another_service_are_not_ours(store: Store) -> None:
    custody("app=other").arm(receipt())
    assert custody().outstanding() == []


def test_nobody_takes_a_target_on_which_something_lies(store: Store) -> None:
    custody().arm(receipt())
    with pytest.raises(Refused, match="not put back yet: pod-kill on vllm-1"):
        custody().take(lock(), At(1000.0))


def test_a_receipt_that_cannot_be_read_is_for_people(store: Store) -> None:
    labels = {"drills/lock": NAME}
    store.put("configmaps", {"metadata": {"name": "drill-receipt-x", "labels": labels}, "data": {"receipt": "{"}})
    with pytest.raises(Refused, match="configmap drill-receipt-x in llm: is no receipt"):
        custody().outstanding()


def test_one_receipt_that_cannot_be_read_hides_no_other(store: Store) -> None:
    custody().arm(receipt())
    cut = {
        "metadata": {"name": "drill-receipt-bbbb2222-0-x", "labels": {"drills/lock": NAME}},
        "data": {"receipt": "{"},
    }
    store.put("configmaps", cut)
    keeper = custody()
    found = keeper.found()
    assert [o.receipt.id for o in found.outstanding] == [receipt().id]
    assert [(bad.run, bad.remove) for bad in found.unreadable] == [
        ("bbbb2222", "kubectl --namespace llm delete configmap drill-receipt-bbbb2222-0-x")
    ]
    with pytest.raises(Refused, match="is no receipt of this version"):
        keeper.take(lock(), At(1000.0))
    done = recovering.recover(keeper, None, None, {}, Clock())
    assert (done.restored, [o.receipt for o in keeper.found().outstanding]) == (Restored.DIRTY, [])
    assert done.manual == [f"{found.unreadable[0].remove}  # when what that run changed is put back"]


@pytest.mark.parametrize("text", ["", "{", json.dumps({"run": "aaaa1111"})])
def test_a_lock_that_cannot_be_read_is_not_taken_for_none(store: Store, text: str) -> None:
    keeper = custody()
    keeper.take(lock(), At(1000.0))
    spoilt = lease(store)
    spoilt["metadata"]["annotations"]["drills/lock"] = text  # type: ignore[index]
    told = f"lease {NAME} in llm: is no lock that can be read.*kubectl --namespace llm delete lease {NAME}"
    with pytest.raises(LockUnreadable, match=told):
        custody().take(lock("bbbb2222"), At(1000.0))
    with pytest.raises(LockLost, match=told):
        keeper.renew(lock(), At(1000.0))
    keeper.release("aaaa1111")
    assert ("leases", "llm", NAME) in store.objects


def test_what_needs_a_timer_is_refused_before_anything_is_written(store: Store) -> None:
    with pytest.raises(Refused, match=r"needs a helper: name its image in kubernetes\.helper"):
        custody().arm(replace(receipt(), undo=({"do": "remove", "path": "/x"},)))
    assert store.objects == {}


def test_no_timer_is_armed_that_would_end_with_its_helper(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = custody()
    assert isinstance(keeper, ClusterCustody)
    made = Helpers(keeper._api, "llm", Helper("drills:1", lives_s=900.0), run="aaaa1111", labels={}, clock=Clock())
    made._made_mono["node-1"] = Clock().mono() - 300.0
    work = NodeWork(lambda run: made, "prod")
    made._hosts["node-1"] = cast("RemoteHost", SimpleNamespace())
    monkeypatch.setattr(work, "_custody", lambda run, node: pytest.fail("it was armed"))
    long = replace(receipt(), undo=({"do": "remove", "path": "/x"},), deadline_s=930.0)
    work._refuse_too_long(replace(long, deadline_s=590.0))
    with pytest.raises(Refused, match=r"node node-1: its timer runs for 930 s and its helper pod lives for [56]\d\d s"):
        work.arm(long)
