"""Drills on the hosts: what dies comes back, what hangs goes on; whatever cuts one short, all of it is put back."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.model import Json
from tests.hosts import layout, traces
from tests.hosts.deeds import RUN, Deed
from tests.hosts.driving import drill, drilled, experiment, place, start
from tests.hosts.fleet import Fleet, Host
from tests.lab.drilling import events, eventually

pytestmark = pytest.mark.root

HANG: tuple[str, Json] = ("engine-hang", {})
ELSEWHERE = "/srv/drill-"
#: A timer fires so long after the planned end of its fault; what is left is for a machine that is busy.
TIMER_S = 40.0


@pytest.fixture
def settled(fleet: Fleet) -> Iterator[Fleet]:
    """The hosts in order; afterwards they are so again, and no drill has left anything."""
    fleet.wait_settled()
    before = traces.all_of(fleet)
    yield fleet
    for host in fleet.hosts:
        host.mend_driver()
        host.wait_ready()
    eventually(lambda: traces.all_of(fleet) == before, 30.0)
    assert traces.all_of(fleet) == before


# ---- whole drills ------------------------------------------------------------------------------------------


def test_the_control_touches_nobody(settled: Fleet, tmp_path: Path) -> None:
    ids = traces.runs(settled)
    ran = drilled(settled, tmp_path, "noop: {victims: 1}", "  - accounted\n  - untouched")
    assert ran.code == 0, ran.out + ran.err
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    assert traces.runs(settled) == ids
    [armed] = ran.events("timer.armed")
    assert armed["data"]["unit"] == f"drill-{armed['data']['receipt']}"


def test_a_process_tree_that_is_killed_comes_back_whole(settled: Fleet, tmp_path: Path) -> None:
    before = traces.runs(settled)
    ran = drilled(
        settled,
        tmp_path,
        "pod-kill: {victims: 1, how: kill-process}",
        "  - failover: {within: 10s}\n  - replica_restart: {within: 60s, by: supervisor}\n  - accounted\n  - untouched",
    )
    assert ran.code == 0, ran.out + ran.err
    [victim] = ran.events("receipt")[0]["data"]["receipt"]["victims"]
    host = settled.host(victim["name"])
    dead = {victim["pid"], victim["engine_pid"]}
    assert not dead & {row.pid for row in traces.processes(host)}
    assert len(traces.engines(host)) == 1, "no engine is left without its server"
    after = traces.runs(settled)
    assert {name for name in before if before[name] != after[name]} == {victim["name"]}


def test_an_engine_that_dies_takes_its_server_along_and_both_come_back(settled: Fleet, tmp_path: Path) -> None:
    checks = "  - failover: {within: 10s}\n  - replica_restart: {within: 60s, by: supervisor}\n  - untouched"
    ran = drilled(settled, tmp_path, "engine-kill: {victims: 1}", checks)
    assert ran.code == 0, ran.out + ran.err
    [victim] = ran.events("receipt")[0]["data"]["receipt"]["victims"]
    assert len(traces.engines(settled.host(victim["name"]))) == 1


def test_an_engine_that_hangs_goes_on_as_the_same_process(settled: Fleet, tmp_path: Path) -> None:
    ids = traces.runs(settled)
    ran = drilled(settled, tmp_path, "engine-hang: {victims: 1}", "  - failover: {within: 15s}\n  - untouched")
    assert ran.code == 0, ran.out + ran.err
    assert traces.runs(settled) == ids


def test_what_a_tree_shares_in_memory_goes_with_it(settled: Fleet, tmp_path: Path) -> None:
    """The real engine's processes share memory by files, which nobody takes away for a process that was killed."""
    host = settled.host("h1")
    with sharing(host) as name, Deed(settled, tmp_path, ("pod-kill", {"how": "kill-process"}), victims=["h1"]) as deed:
        assert name in host.run(["ls", "/dev/shm"]).stdout
        assert deed.until("proof.on")["ok"] is True
        eventually(lambda: name not in host.run(["ls", "/dev/shm"]).stdout, 20.0)
        assert deed.back() == "clean"
    host.wait_ready()


class sharing:  # noqa: N801 - reads as what it does
    """The unit of a host has a child that shares memory, as long as the block lasts."""

    PROGRAM = (
        "import subprocess, sys\n"
        "child = 'import time; from multiprocessing import shared_memory as m; "
        'b = m.SharedMemory("drill-test", create=True, size=4096); time.sleep(600)\'\n'
        "subprocess.Popen([sys.executable, '-c', child])\n"
        "import runpy\n"
        "runpy.run_module('drills.lab.engine.server', run_name='__main__', alter_sys=True)\n"
    )

    def __init__(self, host: Host) -> None:
        self.host = host

    def __enter__(self) -> str:
        argv = self.host.run(["systemctl", "show", "--value", "--property=ExecStart", layout.UNIT]).stdout
        words = argv.partition("argv[]=")[2].partition(" ; ")[0].split()
        own = f"[Service]\nExecStart=\nExecStart={words[0]} /run/sharing.py {' '.join(words[3:])}\n"
        self.host.run(["tee", "/run/sharing.py"], stdin=self.PROGRAM)
        self.host.run(["mkdir", "-p", f"/run/systemd/system/{layout.UNIT}.d"])
        self.host.run(["tee", f"/run/systemd/system/{layout.UNIT}.d/50-sharing.conf"], stdin=own)
        try:
            self._again()
        except BaseException:
            self.__exit__()
            raise
        return "drill-test"

    def __exit__(self, *_: object) -> None:
        self.host.run(["rm", "-f", f"/run/systemd/system/{layout.UNIT}.d/50-sharing.conf", "/run/sharing.py"])
        self._again()

    def _again(self) -> None:
        self.host.run(["systemctl", "daemon-reload"])
        self.host.run(["systemctl", "restart", layout.UNIT])
        self.host.wait_ready()


# ---- cut short ---------------------------------------------------------------------------------------------


def stopped(host: Host) -> bool:
    """Whether the engine of a host is stopped."""
    [engine] = traces.engines(host)
    return engine.state == "T"


def test_a_driver_that_is_killed_leaves_it_to_the_timer(settled: Fleet, tmp_path: Path) -> None:
    host = settled.host("h2")
    with Deed(settled, tmp_path, HANG, victims=["h2"], fault_s=5.0) as deed:
        assert deed.until("proof.on")["ok"] is True
        deed.kill()
    assert stopped(host), "nobody but the timer undoes it"
    eventually(lambda: not stopped(host), TIMER_S)
    host.wait_ready()
    said = drill(settled, tmp_path, "status")
    assert "undone by its timer at" in said.out, said.out + said.err
    first = drill(settled, tmp_path, "recover")
    assert first.code == 0, first.out + first.err
    assert f"run {RUN}: engine-hang on h2: put back" in first.out
    again = drill(settled, tmp_path, "recover")
    assert (again.code, again.out.strip()) == (0, "nothing to put back"), again.out + again.err


def test_a_link_that_is_cut_leaves_it_to_the_timer(settled: Fleet, tmp_path: Path) -> None:
    """Driver, network and all: the host is alone with what was done to it."""
    host = settled.host("h3")
    with Deed(settled, tmp_path, HANG, victims=["h3"], fault_s=5.0) as deed:
        assert deed.until("proof.on")["ok"] is True
        host.cut_driver()
        deed.kill()
        assert stopped(host)
        eventually(lambda: not stopped(host), TIMER_S)
        cut = drill(settled, tmp_path, "recover")
        assert cut.code != 0
        assert "h3: " in cut.out + cut.err
        host.mend_driver()
    mended = drill(settled, tmp_path, "recover")
    assert mended.code == 0, mended.out + mended.err


def test_a_host_that_was_away_is_put_back_by_the_run_itself(settled: Fleet, tmp_path: Path) -> None:
    """Its link is cut in the middle of a drill, and is back while the run waits to put it back."""
    process = start(settled, tmp_path, "engine-hang: {victims: 1}", fault_s=20)
    folder = until(tmp_path, process, "proof.on")
    [victim] = events(folder, "receipt")[0]["data"]["receipt"]["victims"]
    host = settled.host(victim["name"])
    host.cut_driver()
    eventually(lambda: not stopped(host), 20.0 + 2 * TIMER_S)
    host.mend_driver()
    out, _ = process.communicate(timeout=300)
    [end] = events(folder, "revert.end")
    assert (end["data"]["restored"], end["data"]["by"]) == ("clean", "timer"), out
    assert events(folder, "unreachable") != []
    assert json.loads((folder / "verdict.json").read_text())["restored"] == "clean"


def until(folder: Path, process: subprocess.Popen[str], event: str) -> Path:
    """Wait until the run of this folder has told of that event; returns its folder."""
    found: list[Path] = []

    def told() -> bool:
        found[:] = [run for run in (folder / "reports" / "runs").glob("*") if events(run, event)]
        assert found or process.poll() is None, f"it ended before {event}: {process.communicate()[0]}"
        return bool(found)

    eventually(told, 120.0)
    return found[0]


def test_a_run_is_told_to_stop_from_elsewhere_and_keeps_others_out(settled: Fleet, tmp_path: Path) -> None:
    process = start(settled, tmp_path, "engine-hang: {victims: 1}", fault_s=200)
    folder = until(tmp_path, process, "proof.on")
    run = json.loads((folder / "plan.json").read_text())["run"]
    said = drill(settled, tmp_path, "status")
    assert f"run {run} of" in said.out
    assert "on: engine-hang on" in said.out
    second = drill(settled, tmp_path, "run", str(experiment(tmp_path, "noop: {victims: 1}", "  - accounted")))
    assert second.code == 3, second.out + second.err
    stop = drill(settled, tmp_path, "stop", run)
    assert stop.code == 0, stop.out + stop.err
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 4, out
    [end] = events(folder, "revert.end")
    assert (end["data"]["restored"], end["data"]["by"]) == ("clean", "driver")


def test_a_target_with_other_folders_meets_a_run_and_finds_what_it_left(settled: Fleet, tmp_path: Path) -> None:
    """Each of its machines has a folder of its own, and what a run leaves there goes again."""
    (other := tmp_path / "other").mkdir()
    place(settled, other)
    text, number = (other / "drill.yaml").read_text(), itertools.count()
    text = re.sub("      unit:", lambda found: f"      state_dir: {ELSEWHERE}{next(number)}\n{found[0]}", text)
    (other / "drill.yaml").write_text(text)
    assert text.count(ELSEWHERE) == len(settled.hosts)
    driver = start(settled, tmp_path, "engine-hang: {victims: 1}", fault_s=200)
    try:
        until(tmp_path, driver, "proof.on")
        refused = drill(settled, other, "run", str(experiment(other, "noop: {victims: 1}", "  - accounted")))
        assert (refused.code, "holds it" in refused.err) == (3, True), refused.out + refused.err
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate(timeout=30)
    refused = drill(settled, other, "run", str(other / "short.yaml"))
    assert (refused.code, "not put back yet: engine-hang" in refused.err) == (3, True), refused.out + refused.err
    done = drill(settled, other, "recover")
    assert done.code == 0, done.out + done.err
    assert not any(stopped(host) for host in settled.hosts)
    assert drill(settled, tmp_path, "recover").code == 0, "nothing is left for the target that began it"
    ran = drill(settled, other, "run", str(experiment(other, "noop: {victims: 1}", "  - accounted")))
    assert ran.code == 0, ran.out + ran.err
    for host in settled.hosts:
        left = host.run(["sh", "-c", f"find {ELSEWHERE}* -path '*/lib' -prune -o -type f -print"]).stdout.split()
        host.run(["sh", "-c", f"rm -rf {ELSEWHERE}*"])
        assert left == []


def test_a_host_that_lost_its_power_has_nothing_left_to_undo(settled: Fleet, tmp_path: Path) -> None:
    """Its timer is gone with it, and so is the process it was for; the receipt lies on its disk."""
    host = settled.host("h1")
    with Deed(settled, tmp_path, HANG, victims=["h1"], fault_s=120.0) as deed:
        assert deed.until("proof.on")["ok"] is True
        deed.kill()
    host.tear_down()
    away = drill(settled, tmp_path, "recover")
    assert away.code != 0
    host.rebuild()
    host.wait_ready()
    said = drill(settled, tmp_path, "status")
    assert "its timer was killed" in said.out, said.out + said.err
    back = drill(settled, tmp_path, "recover")
    assert back.code == 0, back.out + back.err


def test_a_timer_that_is_stopped_by_hand_ends_the_run(settled: Fleet, tmp_path: Path) -> None:
    process = start(settled, tmp_path, "engine-hang: {victims: 1}", fault_s=200)
    folder = until(tmp_path, process, "proof.on")
    [armed] = events(folder, "timer.armed")
    settled.host(armed["data"]["host"]).run(["systemctl", "stop", f"{armed['data']['unit']}.timer"])
    out, _ = process.communicate(timeout=180)
    assert "the on-target timer is dead, so the fault was put back at once" in out
    assert json.loads((folder / "verdict.json").read_text())["restored"] == "clean"
