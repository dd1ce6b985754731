"""Whole drills on a whole lab: what passes, what is found, what is put back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from drills import lock
from drills.access import procs
from drills.clock import Clock
from drills.lab import manage
from drills.lab.client import Lab
from drills.lab.config import LabConfig
from drills.lab.target import custody
from drills.probes.prometheus import Prometheus
from drills.report import pictures
from tests.lab import labs
from tests.lab.drilling import Driller, Ran, events, eventually, records

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab whose replicas are away long enough for the alert."""
    folder = tmp_path_factory.mktemp("drills") / "lab"
    try:
        yield manage.up(LabConfig(port_base=labs.free_port_base(), startup_s=8.0), folder=folder)
    finally:
        manage.down(folder)


@pytest.fixture(scope="module")
def drill(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Driller:
    """`drill` on that lab."""
    return Driller(lab.dir, tmp_path_factory.mktemp("reports"), lab.data["port_base"])


@pytest.fixture(scope="module")
def gpu_reset(drill: Driller) -> Ran:
    """One gpu-reset drill that several tests look at."""
    return drill.run("short-gpu-reset", "--seed", "1")


def settled(lab: Lab) -> None:
    """Wait until the lab is well and nothing fires, so that the next drill may begin."""
    control, prometheus = lab.control(), Prometheus(lab.data["prometheus"])
    labs.eventually(lambda: labs.all_ready(control) and not prometheus.alerts(), 60)


# ---- drills that pass ----------------------------------------------------------------------------------


def test_gpu_reset_passes_and_proves_the_reset(gpu_reset: Ran) -> None:
    assert gpu_reset.code == 0, gpu_reset.out + gpu_reset.err
    assert {row["verdict"] for row in gpu_reset.verdict["checks"]} == {"pass"}
    assert (gpu_reset.verdict["restored"], gpu_reset.verdict["left"]) == ("clean", "healthy")
    steps = [e["data"]["step"] for e in gpu_reset.events("inject.step")]
    wanted = [
        "gate.held",
        "engine.killed",
        "holders.gone",
        "reset.begin",
        "reset.end",
        "device.verified",
        "gate.opened",
    ]
    assert [s for s in steps if s in wanted] == wanted
    [on] = gpu_reset.events("proof.on")
    assert on["data"]["ok"] is True
    assert on["data"]["bystanders_ok"] is True
    [receipt] = gpu_reset.events("receipt")
    [armed] = gpu_reset.events("timer.armed")
    [hit] = gpu_reset.events("inject.hit")
    assert receipt["n"] < armed["n"] < hit["n"]


def test_the_postmortem_names_what_a_reader_asks_for(gpu_reset: Ran) -> None:
    assert gpu_reset.folder is not None
    text = (gpu_reset.folder / "postmortem.md").read_text()
    [gpu] = gpu_reset.events("receipt")[0]["data"]["receipt"]["victims"][0]["gpus"]
    for wanted in (
        gpu,
        "left: healthy",
        "restored: clean",
        "failover",
        "in flight on the victim",
        "notified",
        "baseline",
    ):
        assert wanted in text, wanted


def test_probes_that_only_some_checks_need_ask_the_real_thing(gpu_reset: Ran) -> None:
    honest, metrics = gpu_reset.row("health_honest"), gpu_reset.row("metrics")
    [victim] = gpu_reset.events("inject.hit")[0]["data"]["victims"]
    assert honest["detail"]["replicas"][victim]["200"] > 0
    assert honest["detail"]["replicas"][victim].keys() - {"200"}  # a dead engine's proxy refuses, or says 503
    assert honest["detail"]["not_completing_s"].keys() == {victim}
    judged = {row["metric"]: (row["verdict"], row["value"]) for row in metrics["detail"]["rows"]}
    assert (judged["scraped"], judged["business metric"][0]) == (("pass", 4.0), "pass")
    found = gpu_reset.events("metrics.names")[0]["data"]
    assert found["names"]["prefix_hits"] == "vllm:prefix_cache_hits_total"
    assert found["absent"] == ["prefix_hit_rate", "swapped"]


def test_judging_and_reporting_again_give_the_same_bytes(gpu_reset: Ran, drill: Driller, tmp_path: Path) -> None:
    """Offline: with no lab to be found and every connection refused."""
    assert gpu_reset.folder is not None
    written = ("verdict.json", "postmortem.md", "postmortem.json", *pictures.FILES)
    before = {name: (gpu_reset.folder / name).read_bytes() for name in written}
    for name in written:
        (gpu_reset.folder / name).unlink()
    offline = Driller(tmp_path / "no-lab", drill.reports, 1)
    offline.env |= {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    assert offline("judge", str(gpu_reset.folder)).code == 0
    assert offline("report", str(gpu_reset.folder)).code == 0
    assert {name: (gpu_reset.folder / name).read_bytes() for name in written} == before


def test_a_script_that_knows_nothing_of_us_agrees(gpu_reset: Ran) -> None:
    assert gpu_reset.folder is not None
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "recompute.py"), str(gpu_reset.folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    latency, failover = gpu_reset.row("latency"), gpu_reset.row("failover")
    assert found["fault"]["n"] == latency["n"]
    assert found["fault"]["violations"] == latency["detail"]["violations"]
    assert found["fault"]["p99_s"] == pytest.approx(latency["value"], abs=1e-5)
    assert found["failover_s"] == pytest.approx(failover["value"], abs=1e-5)
    lines = (gpu_reset.folder / "postmortem.md").read_text().splitlines()
    [row] = [line.split(" | ") for line in lines if line.startswith("| client: sent ÷ arrivals")]
    assert row[2] == f"{found['fault']['attempts']:.3f}"


def test_pod_kill_is_restarted_by_the_supervisor_as_the_same_incarnation(drill: Driller, lab: Lab) -> None:
    settled(lab)
    ran = drill.run("short-pod-kill", "--seed", "2")
    assert ran.code == 0, ran.out + ran.err
    assert "by supervisor" in ran.row("replica_restart")["reason"]


def test_a_deleted_pod_is_replaced_by_the_controller(drill: Driller, lab: Lab) -> None:
    settled(lab)
    ran = drill.run("short-pod-delete", "--seed", "3")
    assert ran.code == 0, ran.out + ran.err
    assert "by controller" in ran.row("replica_restart")["reason"]
    [before] = ran.events("receipt")[0]["data"]["receipt"]["victims"]
    started = [e["data"] for e in ran.events("replica") if e["data"]["change"] == "started"]
    assert [s["replica"] for s in started] == [before["name"]]
    assert started[0]["uid"] != before["uid"]


# ---- cut short -----------------------------------------------------------------------------------------


def test_a_killed_driver_leaves_a_fault_that_ends_by_itself_and_a_target_that_refuses(drill: Driller, lab: Lab) -> None:
    """SIGKILL of the driver's process group in the middle of the fault."""
    settled(lab)
    before = drill.latest()
    process = drill.start("short-noop")
    folder = drill.until("proof.on", process, before)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    run = folder.name.rsplit("-", 1)[1]
    [armed] = events(folder, "timer.armed")
    assert procs.alive(armed["data"]["pid"], armed["data"]["start"]), "the timer died with the driver"

    said = drill("status", "--reports", str(drill.reports)).out
    assert "to be put back" in said
    assert run in said
    refused = drill.run("short-noop")
    assert refused.code == 3
    assert "drill recover" in refused.out + refused.err

    eventually(lambda: [o.timer_state for o in custody(lab.dir).outstanding()] == ["undone"], 40)
    assert not list((lab.dir / "drill").glob("*.marker"))

    first = drill("recover", "--reports", str(drill.reports))
    assert first.code == 0, first.out + first.err
    assert "put back" in first.out
    again = drill("recover", "--reports", str(drill.reports))
    assert (again.code, again.out.strip()) == (0, "nothing to put back")
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["restored"]) == ("inconclusive", "clean")
    arrivals = records(folder)
    assert len({r["arrival"] for r in arrivals}) == len(arrivals) > 0
    after = drill.run("short-noop")
    assert after.code == 0, after.out + after.err


def test_an_interrupt_puts_back_at_once_and_loses_no_record(drill: Driller, lab: Lab) -> None:
    settled(lab)
    before = drill.latest()
    process = drill.start("short-gpu-reset", "--seed", "4")
    folder = drill.until("inject.hit", process, before)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4, out
    [stopped] = events(folder, "signal")
    assert stopped["data"]["signal"] == "SIGINT"
    [reverted] = events(folder, "revert.end")
    assert reverted["data"]["restored"] == "clean"
    [final] = events(folder, "load.stopped")
    assert final["data"]["drawn"] == final["data"]["records"] == len(records(folder))
    assert sum(final["data"]["outcomes"].values()) == final["data"]["drawn"]
    assert custody(lab.dir).outstanding() == []
    settled(lab)


def test_a_run_that_lost_its_lock_puts_everything_back(drill: Driller, lab: Lab) -> None:
    """Somebody else took the target over while this driver could not show that it lives."""
    settled(lab)
    before = drill.latest()
    process = drill.start("short-noop")
    folder = drill.until("proof.on", process, before)
    theirs = lock.mine("another", folder, 600, os.getpid(), Clock())
    (lab.dir / "drill" / "lock" / "lock.json").write_text(json.dumps(asdict(theirs)))
    try:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 2, out
        assert custody(lab.dir).held() == theirs
    finally:
        custody(lab.dir).release(theirs.run)
    [changed] = events(folder, "changed_by_others")
    assert "run another" in changed["data"]["lock"]
    # The lock is looked at every ten seconds, and the fault may well be over by then.
    [reverted] = events(folder, "revert.end")
    assert reverted["data"]["restored"] == "clean"
    assert custody(lab.dir).outstanding() == []


def test_the_stop_button_ends_a_run_from_elsewhere(drill: Driller, lab: Lab) -> None:
    settled(lab)
    before = drill.latest()
    process = drill.start("short-noop")
    folder = drill.until("phase", process, before)
    run = folder.name.rsplit("-", 1)[1]
    assert drill("stop", "00000000").code == 64
    asked = drill("stop", run)
    assert asked.code == 0, asked.err
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4, out
    assert events(folder, "stop")


# ---- no coordinated omission ---------------------------------------------------------------------------


def test_a_freeze_of_all_replicas_shows_in_the_p99(drill: Driller, lab: Lab, tmp_path: Path) -> None:
    """Straight at the router, 20/s, five seconds of SIGSTOP, judged over thirty."""
    settled(lab)
    targets = tmp_path / "drill.yaml"
    targets.write_text("targets:\n  straight: {kind: lab, entry: router}\n")
    before = drill.latest()
    process = drill.start("freeze", "--targets", str(targets), "--target", "straight")
    folder = drill.until("proof.on", process, before)
    time.sleep(5)
    engines = [
        (r["engine_pid"], r["engine_start"]) for r in lab.control().status()["replicas"] if r["role"] == "primary"
    ]
    try:
        assert all(procs.signal(pid, start, signal.SIGSTOP) for pid, start in engines)
        time.sleep(5)
    finally:
        for pid, start in engines:
            procs.signal(pid, start, signal.SIGCONT)
    out, _ = process.communicate(timeout=120)
    [hit] = events(folder, "inject.hit")
    end = next(e for e in events(folder, "phase") if e["data"]["phase"] == "recovery")["mono"]
    cohort = [r for r in records(folder) if hit["mono"] <= r["intended"] < end]
    ttft = sorted(
        r["first_token"] - r["intended"] if r["outcome"] in ("ok", "degraded") else float("inf") for r in cohort
    )
    assert len(cohort) > 400, out
    assert ttft[-max(1, len(ttft) // 100)] > 4
    assert sum(t > 1 for t in ttft) > 50, "the freeze hid arrivals"
