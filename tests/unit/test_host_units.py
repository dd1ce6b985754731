"""Units of systemd as replicas: what is read of them, and what the difference between two looks tells."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from drills.errors import Refused, Unreachable
from drills.hosts import units
from drills.hosts.changes import Changes
from drills.hosts.units import Seen, UnitLooks, parsed
from drills.model import Completed, Json

SHOWN = """Restart=always
NRestarts=2
MainPID=32
ExecStartPre={ path=/bin/mkdir ; argv[]=/bin/mkdir -p /run/g ; ignore_errors=no ; start_time=[n/a] }
ExecStartPre={ path=/usr/bin/flock ; argv[]=/usr/bin/flock --shared /run/g/vllm.service /bin/true ; pid=0 }
Id=vllm.service
LoadState=loaded
ActiveState=active
SubState=running
InvocationID=aa11
"""
GONE = """Restart=no
NRestarts=0
MainPID=0
Id=other.service
LoadState=not-found
ActiveState=inactive
SubState=dead
InvocationID=
"""
STAT = "32 (python3 -m x) S 1 32 32 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 {start} 9 9"


class Machine:
    """A host whose systemctl says what a test wants."""

    name = "g1"
    python = "python3"

    def __init__(self, shown: str = SHOWN) -> None:
        self.shown, self.start, self.rc, self.looks = shown, 700, 0, 0
        self.engines: list[Json] = [{"pid": 33, "start": 710, "title": "VLLM::EngineCore"}]
        self.silent = False

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        self.looks += 1
        if self.silent:
            raise Unreachable("g1: does not answer")
        return Completed(tuple(argv), self.rc, self.shown, "systemctl: no bus")

    def read(self, path: str) -> str | None:
        assert path == "/proc/32/stat"
        return STAT.format(start=self.start)

    def alive(self, pid: int, pid_start: int) -> bool:
        return any((e["pid"], e["start"]) == (pid, pid_start) for e in self.engines)

    def tree(self, pid: int, pid_start: int) -> list[Json]:
        assert (pid, pid_start) == (32, self.start)
        return [{"pid": 31, "start": 701, "title": "python -m multiprocessing.resource_tracker"}, *self.engines]


def looks(machine: Machine, *names: str) -> UnitLooks:
    found = UnitLooks(machine, names or ("vllm",))  # type: ignore[arg-type] # as much of a host as it needs
    found._began = float("-inf")
    return found


@pytest.fixture(autouse=True)
def _never_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "FRESH_S", 0.0)
    monkeypatch.setattr(units, "SILENT_S", 0.0)


# ---- one look ----------------------------------------------------------------------------------------


def test_a_unit_that_runs_has_its_processes_and_its_gate() -> None:
    seen = looks(Machine()).look()["vllm.service"]
    assert seen == Seen(
        "vllm.service", "loaded", "active", "running", "aa11", 2, "always", "/run/g/vllm.service", (32, 700), (33, 710)
    )
    assert seen.runs


def test_units_are_told_in_the_order_in_which_they_are_asked_for() -> None:
    found = looks(Machine(f"{SHOWN}\n{GONE}"), "vllm", "other").look()
    assert [(name, one.loaded, one.runs) for name, one in found.items()] == [
        ("vllm.service", "loaded", True), ("other.service", "not-found", False),
    ]  # fmt: skip


def test_what_systemd_does_not_answer_is_refused_with_its_words() -> None:
    machine = Machine("")
    machine.rc = 1
    with pytest.raises(Refused, match="g1: systemctl show: status 1: systemctl: no bus"):
        looks(machine).look()


def test_of_no_engine_or_several_none_is_meant() -> None:
    machine = Machine()
    machine.engines.append({"pid": 34, "start": 711, "title": "VLLM::EngineCore_DP1"})
    seen = looks(machine).look()["vllm.service"]
    assert (seen.engine, seen.several) == (None, True)
    machine.engines.clear()
    seen = looks(machine).look()["vllm.service"]
    assert (seen.engine, seen.several) == (None, False)


def test_an_engine_that_was_replaced_is_looked_for_again() -> None:
    machine = Machine()
    found = looks(machine)
    assert found.look()["vllm.service"].engine == (33, 710)
    machine.engines[0] = {"pid": 40, "start": 900, "title": "VLLM::EngineCore"}
    assert found.look()["vllm.service"].engine == (40, 900)


def test_a_main_process_that_ends_between_two_looks_is_none() -> None:
    machine = Machine()
    machine.read = lambda path: None  # type: ignore[method-assign] # its processes cannot be read any more
    seen = looks(machine).look()["vllm.service"]
    assert (seen.main, seen.engine, seen.runs) == (None, None, False)


def test_those_who_look_at_the_same_time_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "FRESH_S", 60.0)
    machine = Machine()
    found = looks(machine)
    assert found.look() is found.look()
    assert machine.looks == 1


def test_a_silence_is_not_waited_for_by_each_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "SILENT_S", 60.0)
    machine = Machine()
    found = looks(machine)
    found.look()
    machine.silent = True
    for _ in range(2):
        with pytest.raises(Unreachable):
            found.look()
    assert machine.looks == 2
    found._ended = time.monotonic() - 61.0
    machine.silent = False
    assert found.look()


def test_what_several_lines_say_is_put_together() -> None:
    assert parsed("A=1\nB=x=y\n\nA=2\nA=3\n") == [{"A": "1", "B": "x=y"}, {"A": "2 3"}]


# ---- from one look to the next -----------------------------------------------------------------------

RUNS = Seen("vllm.service", "loaded", "active", "running", "aa11", 0, "always", None, (32, 700), (33, 710))
DOWN = replace(RUNS, active="activating", sub="auto-restart", main=None, engine=None)
AGAIN = replace(RUNS, uid="bb22", restarts=1, main=(50, 900), engine=None)


def told(*seen: tuple[Seen, bool], expected: bool = False) -> list[tuple[str, str, str | None]]:
    """Return (change, uid, by) of all that is told of these looks."""
    changes = Changes()
    for number, (one, ready) in enumerate(seen):
        changes.take("r1", "primary", one, ready=ready)
        if expected and number == 0:
            changes.expect("r1")
    events = changes.after(0)
    assert [event["n"] for event in events] == list(range(1, len(events) + 1))
    return [(event["change"], event["uid"], event["by"]) for event in events]


def test_what_stays_as_it_is_is_no_event() -> None:
    assert told((RUNS, True), (RUNS, True)) == []


def test_a_unit_that_systemd_starts_again() -> None:
    came = told((RUNS, True), (DOWN, False), (AGAIN, False), (AGAIN, True))
    assert came == [
        ("notready", "aa11", None),
        ("gone", "aa11", None),
        ("started", "bb22", "supervisor"),
        ("ready", "bb22", None),
    ]


def test_a_restart_between_two_looks_is_seen_all_the_same() -> None:
    came = told((RUNS, True), (AGAIN, True))
    assert [change for change, *_ in came] == ["notready", "gone", "started", "ready"]


def test_who_else_started_it_nobody_knows() -> None:
    by_hand = replace(AGAIN, restarts=0)
    assert told((RUNS, True), (by_hand, False))[-1] == ("started", "bb22", None)


def test_what_the_drill_starts_is_said_to_be_its_doing() -> None:
    by_hand = replace(AGAIN, restarts=0)
    assert told((RUNS, True), (DOWN, False), (by_hand, False), expected=True)[-1] == ("started", "bb22", "drill")


def test_a_health_endpoint_that_comes_and_goes() -> None:
    came = told((RUNS, True), (RUNS, False), (RUNS, True))
    assert came == [("notready", "aa11", None), ("ready", "aa11", None)]


def test_a_unit_that_did_not_run_at_first() -> None:
    assert told((DOWN, False), (AGAIN, False)) == [("started", "bb22", "supervisor")]


def test_an_event_names_its_process() -> None:
    changes = Changes()
    changes.take("r1", "primary", RUNS, ready=True)
    changes.take("r1", "primary", AGAIN, ready=False)
    started = changes.after(2)[0]
    wanted = {"replica": "r1", "role": "primary", "change": "started", "uid": "bb22", "pid": 50, "start": 900}
    assert {key: started[key] for key in wanted} == wanted
    assert (started["restarts"], started["unit"], started["source"]) == (1, "vllm.service", "systemd")
