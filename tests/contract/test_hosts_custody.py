"""Custody of several hosts: all of them or none, each with its part of a receipt; a silent one hides nothing else."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills import lock as locks
from drills import recover as recovering
from drills.access import procs
from drills.access.local import LocalHost
from drills.clock import Clock
from drills.custody import Lock, LockLost, LockUnreadable
from drills.errors import Refused, Unreachable
from drills.hosts.custody import HostsCustody
from drills.hosts.machines import Machine, grouped
from drills.model import Completed, Json, Receipt, Restored
from drills.targetfile import GpuHost

RUN, OTHER = "aaaa1111", "bbbb2222"


class Here(LocalHost):
    """A machine that is this one, by another name; it can fall silent."""

    def __init__(self, name: str) -> None:
        self.name, self.silent = name, False

    def __getattribute__(self, name: str) -> Any:
        if name in ("run", "read", "write", "remove", "list", "alive") and object.__getattribute__(self, "silent"):
            raise Unreachable(f"{object.__getattribute__(self, 'name')}: does not answer")
        return super().__getattribute__(name)


class Three:
    """Three machines, each with a folder of its own, and a fault's marker on each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts = {name: Here(name) for name in ("g1", "g2", "g3")}

    def custody(self, *names: str, target: str = "prod") -> HostsCustody:
        """Return the custody of these machines, of all if none is named."""
        return HostsCustody(self.machines(names or tuple(self.hosts)), target, timer="drills.access.ontarget")

    def machines(self, names: Sequence[str]) -> tuple[Machine, ...]:
        """Return them in the order in which everybody takes them."""
        entries = [
            GpuHost(name=name, address=f"10.0.0.{name[1]}", user="u", unit="vllm", state_dir=str(self.folder / name))
            for name in names
        ]
        found = grouped(entries, lambda entry: self.hosts[entry.name])
        return tuple(replace(machine, custody_dir=machine.state_dir) for machine in found)  # all of them are this one

    def lock_of(self, name: str) -> Path:
        """Return the lock's file on a machine."""
        return self.folder / name / "lock" / "lock.json"

    def marker(self, name: str) -> Path:
        """Return the fault on a machine: a file that is there."""
        (path := self.folder / f"marker-{name}").touch()
        return path

    def receipt(self, *names: str, run: str = RUN, **changes: Any) -> Receipt:
        """Return a receipt that leads to these machines."""
        victims: tuple[Json, ...] = tuple({"name": f"r-{name}", "host": name} for name in names)
        steps: list[Json] = [{"do": "remove", "path": str(self.marker(name)), "host": name} for name in names]
        made = Receipt(f"{run}-0-noop", run, "noop", "prod", names[0], victims, {}, (), tuple(steps), 600.0)
        return replace(made, **changes)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    """Three machines; timers that a test leaves behind are ended."""
    made = Three(tmp_path)
    yield made
    for file in tmp_path.glob("*/receipts/*.timer.json"):
        said = json.loads(file.read_text())
        procs.signal(said["pid"], said["start"], signal.SIGKILL)


def lock(run: str = RUN, *, machine: str = "elsewhere", lives_s: float = 900.0) -> Lock:
    now = Clock().wall()
    return Lock(run, "me@here", machine, 1, 1, now, now + lives_s, "/runs/x")


# ---- the lock ----------------------------------------------------------------------------------------


def test_a_run_holds_all_machines_until_it_lets_go(three: Three) -> None:
    keeper = three.custody()
    keeper.take(lock(), Clock())
    held = three.custody().held()
    assert held is not None
    assert held.run == RUN
    assert all(three.lock_of(name).exists() for name in three.hosts)
    keeper.renew(lock(), Clock())
    keeper.release(OTHER)
    assert three.custody().held() is not None
    keeper.release(RUN)
    assert three.custody().held() is None
    assert not any(three.lock_of(name).exists() for name in three.hosts)


def test_where_one_machine_is_held_none_is_taken(three: Three) -> None:
    """Another target may share a machine with this one, under another name for it."""
    three.custody("g3", target="other").take(lock(OTHER), Clock())
    with pytest.raises(Refused, match="host g3: target prod: run bbbb2222 of me@here holds it"):
        three.custody().take(lock(), Clock())
    assert [name for name in three.hosts if three.lock_of(name).exists()] == ["g3"]
    held = three.custody("g3").held()
    assert held is not None
    assert held.run == OTHER


def test_of_many_at_once_one_gets_all(three: Three) -> None:
    got: list[str] = []
    start = threading.Barrier(4)

    def attempt(number: int) -> None:
        mine = lock(f"{number}aaa1111")
        start.wait(10)
        try:
            three.custody().take(mine, Clock())
        except Refused:
            return
        got.append(mine.run)

    threads = [threading.Thread(target=attempt, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    texts = [three.lock_of(name).read_text() for name in three.hosts if three.lock_of(name).exists()]
    assert [json.loads(text)["run"] for text in texts] == 3 * got
    assert len(got) <= 1  # two that meet on the way may both be refused; never are two let in


def test_a_driver_that_is_gone_is_taken_over(three: Three) -> None:
    three.custody().take(lock(OTHER, machine=locks.machine()), Clock())  # pid 1 with another start
    three.custody().take(lock(), Clock())
    held = three.custody().held()
    assert held is not None
    assert held.run == RUN


def test_the_lock_of_a_driver_that_lives_is_told_first(three: Three) -> None:
    three.custody("g1").take(lock(OTHER, machine=locks.machine()), Clock())
    three.custody("g2").take(lock(), Clock())
    held = three.custody().held()
    assert held is not None
    assert held.run == RUN


def test_who_has_lost_one_machine_has_lost_the_target(three: Three) -> None:
    keeper = three.custody()
    keeper.take(lock(), Clock())
    three.lock_of("g2").unlink()
    three.hosts["g1"].silent = True  # which is no reason to think that all is well
    with pytest.raises(LockLost, match=r"host g2: target prod: the lock of run aaaa1111 was lost: its file is gone"):
        keeper.renew(lock(), Clock())


def test_a_machine_that_is_silent_is_no_lost_lock(three: Three) -> None:
    keeper = three.custody()
    keeper.take(lock(), Clock())
    three.hosts["g2"].silent = True
    with pytest.raises(Unreachable, match="g2: does not answer"):
        keeper.renew(lock(), Clock())
    held = keeper.held()
    assert held is not None
    with pytest.raises(Unreachable):
        keeper.release(RUN)
    assert [name for name in three.hosts if three.lock_of(name).exists()] == ["g2"]


def test_nobody_begins_while_a_machine_is_silent(three: Three) -> None:
    three.hosts["g3"].silent = True
    with pytest.raises(Unreachable, match="g3: does not answer"):
        three.custody().take(lock(), Clock())
    with pytest.raises(Unreachable):
        three.custody().held()
    assert not any(three.lock_of(name).exists() for name in three.hosts)


def test_a_lock_that_cannot_be_read_is_not_taken_for_none(three: Three) -> None:
    three.custody().take(lock(), Clock())
    three.lock_of("g2").write_text("{")
    told = f"{three.lock_of('g2')}: is no lock that can be read"
    with pytest.raises(LockUnreadable, match=told):
        three.custody().held()
    with pytest.raises(LockLost, match=told):
        three.custody().renew(lock(), Clock())


# ---- receipts ----------------------------------------------------------------------------------------


def test_each_machine_has_its_part_and_its_timer(three: Three) -> None:
    receipt = three.receipt("g1", "g3")
    armed = three.custody().arm(receipt)
    assert armed["hosts"] == ["g1", "g3"]
    [left] = three.custody().outstanding()
    assert left.receipt == receipt
    assert left.timer_state == "armed"
    parts = {name: sorted(p.name for p in (three.folder / name / "receipts").glob("*")) for name in three.hosts}
    there = [f"{RUN}-0-noop.fence", f"{RUN}-0-noop.json", f"{RUN}-0-noop.timer.json"]
    assert parts == {"g1": there, "g2": [], "g3": there}
    with pytest.raises(Refused, match="not put back yet: noop on r-g1, r-g3"):
        three.custody().take(lock(), Clock())
    assert three.custody().undo(left.receipt) == (Restored.CLEAN, [])
    assert not any((three.folder / f"marker-{name}").exists() for name in ("g1", "g3"))
    assert three.custody().disarm(left.receipt)
    assert three.custody().disarm(left.receipt)
    assert three.custody().outstanding() == []


def test_steps_that_name_no_machine_are_for_the_first(three: Three) -> None:
    marker: Json = {"do": "remove", "path": str(three.marker("g2"))}
    receipt = three.receipt("g2", undo=(marker,), holds=(str(three.folder / "gate"),))
    three.custody().arm(receipt)
    assert [one.receipt for one in three.custody().outstanding()] == [receipt]
    three.custody().undo(receipt)
    assert [one.timer_state for one in three.custody().outstanding()] == ["released"]
    assert three.custody().disarm(receipt)


def test_what_leaves_nothing_to_undo_lies_on_its_machine_all_the_same(three: Three) -> None:
    receipt = three.receipt("g2", undo=())
    three.custody().arm(receipt)
    assert [one.receipt for one in three.custody("g2").outstanding()] == [receipt]
    assert three.custody().undo(receipt) == (Restored.CLEAN, [])
    assert three.custody().disarm(receipt)


def test_where_one_timer_cannot_be_armed_none_is(three: Three) -> None:
    (three.folder / "g3").mkdir()
    (three.folder / "g3" / "receipts").write_text("no folder")
    with pytest.raises((Refused, OSError)):
        three.custody().arm(three.receipt("g1", "g3"))
    assert three.custody("g1", "g2").outstanding() == []


def test_a_machine_that_is_not_declared_any_more_is_named(three: Three) -> None:
    with pytest.raises(Refused, match="target prod: no host 'g9' is declared any more"):
        three.custody().arm(three.receipt("g1", host="g9", undo=({"do": "remove", "path": "/x"},)))


def test_the_worst_timer_speaks_for_a_receipt(three: Three) -> None:
    receipt = three.receipt("g1", "g2")
    three.custody().arm(receipt)
    said = json.loads((three.folder / "g2" / "receipts" / f"{receipt.id}.timer.json").read_text())
    procs.signal(said["pid"], said["start"], signal.SIGKILL)
    while procs.alive(said["pid"], said["start"]):
        os.sched_yield()
    [left] = three.custody().outstanding()
    assert (left.timer_state, left.timer["node"]) == ("dead", "g2")


def test_what_cannot_be_read_says_on_which_machine(three: Three) -> None:
    (folder := three.folder / "g2" / "receipts").mkdir(parents=True)
    (folder / f"{OTHER}-0-noop.json").write_text("{")
    [bad] = three.custody().found().unreadable
    assert bad.what.startswith(f"g2: {folder}/{OTHER}-0-noop.json: is no receipt of this version")
    assert bad.remove == f"# on g2: rm -f {folder}/{OTHER}-0-noop.json"


# ---- silence -----------------------------------------------------------------------------------------


def test_one_silent_machine_keeps_nobody_from_putting_the_others_back(three: Three) -> None:
    three.custody().take(lock(machine=locks.machine()), Clock())  # its driver is gone
    receipt = three.receipt("g1", "g2")
    three.custody().arm(receipt)
    three.hosts["g2"].silent = True
    found = three.custody().found()
    assert [one.receipt.id for one in found.outstanding] == [receipt.id]
    assert found.silent == ["g2: does not answer"]
    with pytest.raises(Unreachable):
        three.custody().outstanding()

    done = recovering.recover(three.custody(), None, None, {}, Clock())
    assert done.restored is Restored.DIRTY
    assert any(line.startswith("g2: does not answer: what lies there is not known") for line in done.lines)
    assert "drill recover  # when it can be reached again" in done.manual
    assert not (three.folder / "marker-g1").exists()
    assert (three.folder / "marker-g2").exists()
    assert three.custody().held() is not None

    three.hosts["g2"].silent = False
    again = recovering.recover(three.custody(), None, None, {}, Clock())
    assert (again.restored, again.manual) == (Restored.CLEAN, [])
    assert not (three.folder / "marker-g2").exists()
    assert three.custody().outstanding() == []
    assert three.custody().held() is None
    assert recovering.recover(three.custody(), None, None, {}, Clock()).lines == []


def test_what_one_machine_cannot_undo_now_is_no_failure_of_the_others(three: Three) -> None:
    receipt = three.receipt("g1", "g2", "g3")
    three.custody().arm(receipt)
    three.hosts["g1"].silent = True
    with pytest.raises(Unreachable, match="g1: does not answer"):
        three.custody().undo(receipt)
    assert [name for name in three.hosts if (three.folder / f"marker-{name}").exists()] == ["g1"]
    with pytest.raises(Unreachable):
        three.custody().disarm(receipt)
    three.hosts["g1"].silent = False
    assert three.custody().undo(receipt) == (Restored.CLEAN, [])
    assert three.custody().disarm(receipt)


# ---- the stop button ---------------------------------------------------------------------------------


def test_a_run_is_asked_to_stop_on_any_machine(three: Three) -> None:
    assert three.custody().asked_to_stop(RUN) is None
    three.custody("g3").ask_to_stop(RUN, "you@there")
    assert three.custody().asked_to_stop(RUN) == "you@there"
    assert three.custody().asked_to_stop(OTHER) is None
    three.custody().forget_stop(RUN)
    assert three.custody().asked_to_stop(RUN) is None


def test_the_stop_button_works_past_a_silent_machine(three: Three) -> None:
    three.hosts["g1"].silent = True
    three.custody().ask_to_stop(RUN, "you@there")
    assert three.custody().asked_to_stop(RUN) == "you@there"
    three.custody().forget_stop(RUN)
    with pytest.raises(Unreachable):  # whether somebody asked there nobody knows
        three.custody().asked_to_stop(RUN)
    for host in three.hosts.values():
        host.silent = True
    with pytest.raises(Unreachable):
        three.custody().ask_to_stop(RUN, "you@there")


# ---- what belongs together ---------------------------------------------------------------------------


def test_replicas_of_one_address_are_one_machine() -> None:
    def entry(name: str, **more: Any) -> GpuHost:
        return GpuHost(name=name, user="u", unit=name, **{"address": "10.0.0.9", **more})

    jump: Json = {"jump": {"address": "gate"}}
    found = grouped(
        [entry("b"), entry("a", address="10.0.0.1"), entry("c"), entry("d", ssh_port=2222), entry("e", **jump)],
        lambda one: Here(one.name),
    )
    assert [(machine.name, [one.name for one in machine.entries]) for machine in found] == [
        ("a", ["a"]), ("b", ["b", "c"]), ("d", ["d"]), ("e", ["e"]),
    ]  # fmt: skip


def test_a_call_of_a_silent_machine_is_none(three: Three) -> None:
    """The stand-in for silence is silent, whatever is asked."""
    three.hosts["g1"].silent = True
    for act in (lambda: three.hosts["g1"].run(["true"], timeout_s=1), lambda: three.hosts["g1"].read("/etc/hostname")):
        with pytest.raises(Unreachable):
            act()
    three.hosts["g1"].silent = False
    assert isinstance(three.hosts["g1"].run(["true"], timeout_s=5), Completed)
