"""An order that comes late, by a link that was cut, changes nothing once its fault is being put back."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drills import active
from drills.access import fence, ontarget, procs, unittimer
from drills.access.filecustody import FileCustody
from drills.access.remote import RemoteHost
from drills.clock import Clock
from drills.errors import Refused, Unreachable
from drills.model import Completed, Context, Json, Receipt, Restored
from drills.parts import Parted
from tests.unit import processes

RECEIPT = Receipt("0badf00d-0-noop", "0badf00d", "noop", "t", "g1", ({"name": "r"},), {}, (), (), 600.0)


def nothing(*_: Any) -> Any:
    """Neither tell nor note."""


def prompt(argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
    """Carry an order to this machine at once."""
    assert timeout_s > 0
    return Completed(tuple(argv), 0, json.dumps(processes.answer(stdin)), "")


class Cut:
    """A link that was cut: what is sent lies in a buffer, and whoever sent it is told that its end is not known."""

    def __init__(self) -> None:
        self.buffer: list[str] = []

    def __call__(self, argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
        assert timeout_s > 0
        self.buffer.append(stdin)
        raise Unreachable("g1: the answer is not known")

    def mend(self) -> Json:
        """Deliver it after all; returns what is answered to nobody."""
        [late] = self.buffer
        return processes.answer(late)


@pytest.fixture
def custody(tmp_path: Path) -> Iterator[FileCustody]:
    """Custody on this machine as on another one; timers that a test leaves behind are ended."""
    yield FileCustody(RemoteHost("g1", prompt, python=sys.executable), str(tmp_path / "state"), "t")
    for file in tmp_path.glob("state/receipts/*.timer.json"):
        said = json.loads(file.read_text())
        procs.signal(said["pid"], said["start"], signal.SIGKILL)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


Deed = Callable[[RemoteHost], object]


def deeds(marker: Path, pid: int) -> dict[str, Deed]:
    """Return everything that can be ordered of a host and leaves something there."""
    return {
        "run": lambda host: host.run(["touch", str(marker)], timeout_s=10),
        "spawn": lambda host: host.spawn(["touch", str(marker)], log=f"{marker}.log"),
        "write": lambda host: host.write(str(marker), "ours"),
        "signal": lambda host: host.signal(pid, procs.start(pid) or 0, "STOP"),
    }


def lost(custody: FileCustody, deed: Deed) -> Cut:
    """Order a deed of the receipt by a link that is cut."""
    cut = Cut()
    with fence.deed({"g1": custody.receipt_file(RECEIPT)}), pytest.raises(Unreachable):
        deed(RemoteHost("g1", cut))
    return cut


def touched(marker: Path, sleeper: subprocess.Popen[bytes]) -> bool:
    return marker.exists() or (procs.stat(sleeper.pid) or ("",))[0] == "T"


# ---- in time, and late ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["run", "spawn", "write", "signal"])
def test_nothing_is_carried_out_once_the_undo_began(
    what: str, custody: FileCustody, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    marker = tmp_path / "marker"
    deed = deeds(marker, sleeper.pid)[what]
    custody.arm(RECEIPT)
    after_undo, after_disarm = lost(custody, deed), lost(custody, deed)
    assert custody.undo(RECEIPT) == (Restored.CLEAN, [])
    assert "was not carried out" in after_undo.mend()["error"]
    assert custody.disarm(RECEIPT)
    assert "was not carried out" in after_disarm.mend()["error"]
    assert not touched(marker, sleeper)
    assert custody.host.list(f"{custody.state_dir}/receipts") == []


@pytest.mark.parametrize("what", ["run", "write", "signal"])
def test_one_that_comes_in_time_is_carried_out_behind_the_fence(
    what: str, custody: FileCustody, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    custody.arm(RECEIPT)
    assert lost(custody, deeds(tmp_path / "marker", sleeper.pid)[what]).mend()["ok"]
    if what == "signal":
        os.waitpid(sleeper.pid, os.WUNTRACED)  # until it has stopped
    assert touched(tmp_path / "marker", sleeper)


def test_looks_are_not_fenced(custody: FileCustody) -> None:
    cut = Cut()
    with fence.deed({"g1": custody.receipt_file(RECEIPT)}), suppress(Unreachable):
        RemoteHost("g1", cut).read("/proc/self/comm")
    assert cut.mend()["ok"]


@pytest.mark.parametrize("program", [ontarget, unittimer])
def test_a_timer_shuts_the_fence_before_it_undoes(program: Any, custody: FileCustody, tmp_path: Path) -> None:
    """Its receipt still lies there; nothing would take back what comes now."""
    custody.arm(RECEIPT)
    cut = lost(custody, lambda host: host.run(["touch", str(tmp_path / "marker")], timeout_s=10))
    spec = Path(custody.receipt_file(RECEIPT))
    assert (program.fire if program is unittimer else program.undo)(spec)["ok"]
    assert not cut.mend()["ok"]
    assert not (tmp_path / "marker").exists()


def test_a_receipt_that_a_person_removed_lets_nobody_through(custody: FileCustody, tmp_path: Path) -> None:
    custody.arm(RECEIPT)
    cut = lost(custody, lambda host: host.write(str(tmp_path / "marker"), ""))
    Path(custody.receipt_file(RECEIPT)).unlink()
    assert not cut.mend()["ok"]


def test_what_is_under_way_is_waited_for(custody: FileCustody, tmp_path: Path) -> None:
    """An order that began before its undo has ended before the first step of it."""
    go, marker, spec = tmp_path / "go", tmp_path / "marker", Path(custody.receipt_file(RECEIPT))
    os.mkfifo(go)
    step: Json = {"do": "remove", "path": str(marker)}
    receipt = replace(RECEIPT, undo=(step,))
    custody.arm(receipt)
    cut = lost(custody, lambda host: host.run(["sh", "-c", f"read x <{go}; touch {marker}"], timeout_s=20))
    with ThreadOf(cut.mend) as order:
        with go.open("w") as told:  # it reads, so it is behind the fence
            assert (
                fence.shut(spec, 0.0) == "an order of the fault is still being carried out; what it does is not undone"
            )
            said: list[Json] = []
            with ThreadOf(lambda: said.append(ontarget.undo(spec))):
                told.write("now\n")
                told.close()
        order.join(20)
    assert said[0]["ok"]
    assert not marker.exists()


class ThreadOf(threading.Thread):
    """Does something meanwhile, and is waited for."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(target=act)

    def __enter__(self) -> ThreadOf:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.join(30)


def test_an_undo_beside_an_order_that_hangs_is_not_called_done(
    custody: FileCustody, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence.shut, "__defaults__", (0.0,))
    (marker := tmp_path / "marker").touch()
    receipt = replace(RECEIPT, undo=({"do": "remove", "path": str(marker)},))
    custody.arm(receipt)
    spec = Path(custody.receipt_file(receipt))
    with fence.behind(spec):
        said = ontarget.undo(spec)
        assert (said["ok"], [step["do"] for step in said["steps"]]) == (False, ["remove", "fence"])
        assert not marker.exists()  # what can be put back is
        assert not ontarget.undo(spec)["ok"]  # nor the second time
    assert ontarget.undo(spec)["ok"]


def test_a_receipt_that_has_no_fence_is_undone_all_the_same(custody: FileCustody, tmp_path: Path) -> None:
    """The host lost its part, or was booted with an empty folder."""
    assert custody.undo(RECEIPT) == (Restored.CLEAN, [])
    assert not lost(custody, lambda host: host.write(str(tmp_path / "marker"), "")).mend()["ok"]


def test_a_fence_that_cannot_be_shut_keeps_no_step_from_its_undo(
    custody: FileCustody, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (marker := tmp_path / "marker").touch()
    receipt = replace(RECEIPT, undo=({"do": "remove", "path": str(marker)},))
    custody.arm(receipt)

    def without_locks(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    said = ontarget.undo(Path(custody.receipt_file(receipt)))
    assert (said["ok"], said["steps"][-1]["error"].endswith("cannot be shut: No locks available")) == (False, True)
    assert not marker.exists()
    assert not lost(custody, lambda host: host.write(str(marker), "")).mend()["ok"]
    assert not marker.exists()


def test_a_driver_that_dies_while_it_takes_a_receipt_away_leaves_one_that_is_found(
    custody: FileCustody, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what lies beside it would lie there for ever."""
    custody.arm(RECEIPT)
    assert custody.undo(RECEIPT)[0] is Restored.CLEAN
    removed: list[str] = []

    def dies_after(calls: int) -> Callable[[str], None]:
        def remove(path: str) -> None:
            if len(removed) == calls:
                raise ZeroDivisionError
            removed.append(path)
            Path(path).unlink(missing_ok=True)

        return remove

    for calls in range(6):
        removed.clear()
        with monkeypatch.context() as dying, suppress(ZeroDivisionError):
            dying.setattr(custody.host, "remove", dies_after(calls))
            custody.disarm(RECEIPT)
        assert [one.receipt.id for one in custody.found().outstanding] == [RECEIPT.id]
    assert custody.disarm(RECEIPT)
    assert custody.host.list(f"{custody.state_dir}/receipts") == []


def test_the_lock_of_an_order_ends_with_it(custody: FileCustody) -> None:
    custody.arm(RECEIPT)
    spec = Path(custody.receipt_file(RECEIPT))
    with suppress(ZeroDivisionError), fence.behind(spec):
        raise ZeroDivisionError
    with spec.with_suffix(".fence").open() as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


# ---- whose order it is ---------------------------------------------------------------------------------------


def test_what_a_fault_orders_where_its_receipt_lies_belongs_to_it() -> None:
    """No fault has to say so; what it orders elsewhere, and what others do, does not."""
    seen: dict[str, str | None] = {}

    def inject(*_: Any) -> None:
        seen.update({name: fence.receipt_for(name) for name in ("g1", "g2", "g3")})
        worker = ThreadOf(lambda: seen.update(other=fence.receipt_for("g1")))
        with worker:
            pass
        mine = copy_context()
        with ThreadOf(lambda: seen.update(mine=mine.run(fence.receipt_for, "g1"))):
            pass
        raise Refused("that is enough")

    fault: Any = SimpleNamespace(name="noop", inject=inject, aim=lambda *_, **__: RECEIPT)
    armed = {"pid": 1, "start": 1, "hosts": ["g1", "g2"]}
    custody = SimpleNamespace(arm=lambda _: armed)
    target: Any = SimpleNamespace(custody=custody, receipts_dir_of=lambda host: f"/{host}/receipts")
    context = Context(lambda *_: None, lambda _: None, lambda: 0.0, lambda: False)
    faults = active.ActiveFaults("0badf00d", target, Clock(), tell=nothing, note=nothing, context=context)
    with pytest.raises(Refused, match="that is enough"):
        faults.put_on(0, fault, [], fault_s=1.0)
    file = f"receipts/{RECEIPT.id}.json"
    assert seen == {"g1": f"/g1/{file}", "g2": f"/g2/{file}", "g3": None, "other": None, "mine": f"/g1/{file}"}
    assert fence.receipt_for("g1") is None


@pytest.mark.parametrize("word", ["host", "node"])
def test_custody_says_where_the_parts_of_a_receipt_lie(word: str) -> None:
    class Keepers(Parted):
        machine = word

        def _keeper(self, run: str, name: str) -> Any:
            return SimpleNamespace(arm=lambda receipt: {"pid": 1, "start": 1})

    steps: tuple[Mapping[str, str], ...] = (
        {"do": "remove", "path": "/x", "host": "g2"},
        {"do": "remove", "path": "/y"},
    )
    armed = Keepers().arm(replace(RECEIPT, undo=tuple(dict(step) for step in steps)))
    target: Any = SimpleNamespace(receipts_dir_of=lambda host: f"/{host}")
    context = Context(nothing, nothing, lambda: 0.0, lambda: False)
    faults = active.ActiveFaults("0badf00d", target, Clock(), tell=nothing, note=nothing, context=context)
    assert sorted(faults._receipt_files(RECEIPT, armed)) == ["g1", "g2"]
