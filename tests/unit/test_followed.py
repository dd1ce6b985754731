"""Ledger proxies of a run: who gets one, who is followed, and what is said of those that had none for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drills.custody import Found
from drills.errors import DrillError, Refused
from drills.followed import TRIES, Followed, collect
from drills.fronts.fronts import Clock as NodeClock
from drills.fronts.fronts import shifted
from drills.model import Context, Json, Receipt, Replica, Restored

OLD = Replica("vllm-0", "u-old", "primary", "", ready=True, host="node1")
NEW = Replica("vllm-0", "u-new", "primary", "", ready=False, host="node1")


class Bench:
    """A target whose proxies stand or fall as the test says."""

    name, kind = "t", "kubernetes"

    def __init__(self) -> None:
        self.covered: set[str] = set()
        self.wanted, self.fails, self.ready_meanwhile = True, "", False
        self.going_up: Callable[[], object] = lambda: None
        self.mono = 100.0
        self.told: list[tuple[str, Json]] = []
        self.there = [OLD]
        self.custody: Any = SimpleNamespace(
            arm=lambda receipt: {"pid": 1, "start": 1},
            undo=self.undo,
            disarm=lambda receipt: True,
            found=lambda: Found([], []),
        )

    def undo(self, receipt: Receipt) -> tuple[Restored, list[str]]:
        self.covered -= {victim["uid"] for victim in receipt.victims}
        return Restored.CLEAN, []

    def sleep(self, seconds: float) -> None:
        self.mono += seconds

    def replicas(self) -> list[Replica]:
        return self.there

    def reach(self, replicas: Sequence[Replica], tell: Callable[[str, Json], None]) -> list[Replica]:
        return list(replicas)

    def wants_proxies(self, faults: Sequence[Any]) -> bool:
        return self.wanted

    def aim_proxies(self, replicas: Sequence[Replica], tag: str) -> list[Json]:
        if self.fails == "aim":
            raise Refused("no network yet")
        return [{"replica": r.name, "uid": r.uid, "tag": tag, "node": r.host} for r in replicas]

    def receipts_dir_of(self, host: str) -> str:
        return f"/run/drill/of/{host}/receipts"

    def put_up_proxies(self, spots: Sequence[Json]) -> list[Json]:
        self.mono += 2.0
        self.going_up()
        if self.fails == "half":  # rules and proxy stand, and no request goes through
            self.covered |= {spot["uid"] for spot in spots}
            return [{"error": "no request from its node goes through the proxy"} for _ in spots]
        if self.fails == "up":
            return [{"error": "does not start"} for _ in spots]
        self.covered |= {spot["uid"] for spot in spots}
        return [{"let_go": {"idle": 0, "busy": 0}} for _ in spots]

    def look_at_proxies(self, spots: Sequence[Json]) -> list[Json]:
        up = [spot["uid"] in self.covered for spot in spots]
        return [{"lives": one, "rules": int(one), "through": one, "beside": 0, "changed": []} for one in up]

    def undo_of_proxies(self, spots: Sequence[Json]) -> Sequence[Json]:
        return ({"do": "remove", "path": "/lives"},)

    def without_proxy(self, now: Sequence[Replica]) -> list[Replica]:
        return [r for r in now if r.uid not in self.covered]

    def followed(self) -> Followed:
        clock: Any = SimpleNamespace(mono=lambda: self.mono)
        context = Context(lambda e, d: self.told.append((e, d)), self.sleep, clock.mono, lambda: False)
        target: Any = self
        return Followed("r", target, clock, note=context.tell, context=context, lasts_s=60.0)

    def events(self, name: str) -> list[Json]:
        return [data for event, data in self.told if event == name]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def begun(bench: Bench) -> Followed:
    followed = bench.followed()
    assert followed.preflight([], bench.there) == []
    followed.put_up([[OLD]], say=lambda text: None)
    return followed


def look(followed: Followed, *now: Replica) -> None:
    for job in followed.jobs(lambda: now):
        job.look()


def test_nobody_gets_one_where_none_is_wanted(bench: Bench) -> None:
    bench.wanted = False
    followed = begun(bench)
    assert (bench.covered, bench.told, followed.jobs(list)) == (set(), [], [])


def test_nothing_of_them_looks_like_a_fault(bench: Bench) -> None:
    begun(bench)
    names = [event for event, _ in bench.told]
    assert {"receipt", "beside.timer.armed", "beside.inject.hit", "beside.proof.on"} <= set(names)
    assert all(name == "receipt" or name.startswith("beside.") for name in names)
    assert bench.events("receipt")[0]["beside"] is True


def test_one_that_does_not_stand_ends_the_run_before_its_load(bench: Bench) -> None:
    followed, bench.fails = bench.followed(), "up"
    followed.preflight([], bench.there)
    with pytest.raises(DrillError, match="vllm-0: does not start"):
        followed.put_up([[OLD]], say=lambda text: None)


def test_a_new_replica_is_followed_and_seen_from_its_first_request_on(bench: Bench) -> None:
    followed = begun(bench)
    look(followed, NEW)
    assert "u-new" in bench.covered
    assert bench.events("ledger.gap") == []


def test_no_timer_outlasts_the_run_however_late_it_is_armed(bench: Bench) -> None:
    followed = begun(bench)
    bench.mono += 10.0
    look(followed, NEW)
    first, later = (data["receipt"]["deadline_s"] for data in bench.events("receipt"))
    assert first < 60.0
    assert later == first - 12.0  # two seconds took the first one


def test_one_that_was_ready_before_leaves_a_gap(bench: Bench) -> None:
    followed = begun(bench)
    began = bench.mono
    look(followed, Replica("vllm-0", "u-new", "primary", "", ready=True, host="node1"))
    assert bench.events("ledger.gap") == [{"replica": "vllm-0", "since_mono": began, "until_mono": began + 2.0}]


def test_one_that_is_too_new_is_tried_again_and_one_that_fails_only_so_often(bench: Bench) -> None:
    followed = begun(bench)
    bench.fails = "aim"
    for _ in range(2 * TRIES):
        look(followed, NEW)
    assert bench.events("ledger.late") == []
    bench.fails = "up"
    for _ in range(2 * TRIES):
        look(followed, NEW)
    assert len(bench.events("ledger.late")) == TRIES
    ready = Replica("vllm-0", "u-new", "primary", "", ready=True, host="node1")
    followed._cover(ready, lambda: [ready])
    followed.end([ready])
    [gap] = bench.events("ledger.gap")
    assert gap["until_mono"] is None


def test_one_that_stands_by_half_goes_at_once(bench: Bench) -> None:
    followed = begun(bench)
    bench.fails = "half"
    look(followed, NEW)
    assert bench.covered == {"u-old"}  # the others stay
    assert [one.victims[0]["uid"] for _, one in followed.active.on] == ["u-old"]
    assert followed.active.restored is Restored.CLEAN
    assert len(bench.events("ledger.late")) == 1
    bench.fails = ""
    look(followed, NEW)
    assert bench.covered == {"u-old", "u-new"}


def test_the_end_waits_for_one_that_is_going_up_and_nothing_comes_after_it(bench: Bench) -> None:
    followed = begun(bench)
    ends = threading.Thread(target=followed.end, args=([],))
    bench.going_up = ends.start  # the run ends in the middle of it
    look(followed, NEW)
    ends.join(10)
    assert not ends.is_alive()
    assert (bench.covered, followed.active.on) == (set(), [])
    laid = len(bench.events("receipt"))
    look(followed, NEW)
    assert (bench.covered, len(bench.events("receipt"))) == (set(), laid)


def test_without_proxies_there_is_no_ledger(tmp_path: Path) -> None:
    none: Any = SimpleNamespace(collect_ledger=lambda since: None, clock_error_s=0.0)
    assert collect(none, 0.0, tmp_path / "ledger.ndjson") is None
    assert not (tmp_path / "ledger.ndjson").exists()


# ---- the clock of a node ---------------------------------------------------------------------------------


def test_two_looks_at_a_clock_say_more_than_one() -> None:
    both = NodeClock(9.0, 11.0).met(NodeClock(10.0, 12.0))
    assert (both.ahead_s, both.error_s) == (10.5, 0.5)


def test_a_node_that_started_again_has_another_clock() -> None:
    assert NodeClock(9.0, 11.0).met(NodeClock(-5.0, -4.0)) == NodeClock(-5.0, -4.0)


def test_all_stamps_of_an_attempt_move_and_nothing_else() -> None:
    seen = {"id": "a", "start": 12.0, "connected": None, "first_byte": 12.5, "last_byte": 13.0, "end": 13.5, "bytes": 7}
    moved = {**seen, "start": 2.0, "first_byte": 2.5, "last_byte": 3.0, "end": 3.5}
    assert shifted(seen, 10.0) == moved
