"""SIGKILL of the driver's process group at any step of a drill: `drill recover` leaves the target as it was.

By default one point of each drill, drawn by a seed that a failure shows; FULL=1 tries all, SEED=N draws again.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.clock import rng
from drills.lab.client import Control, Lab
from drills.lab.gpu import state as gpu_state
from drills.probes.prometheus import Prometheus
from tests.lab import labs, traces
from tests.lab.drilling import Driller, events, eventually

pytestmark = pytest.mark.lab
POLL_S = 0.01
REACH_S = 60.0
#: The workers of one test run must draw the same points.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex(4))
SEED = int(os.environ.get("SEED") or rng(0, RUN).randrange(10_000))

# An e2e SLA of 1 s: the baseline has to be longer than it.
TARGETS = "targets:\n  quick: {kind: lab, sla: {e2e: {p99: 1s}}}\n"

BEFORE = ("header", "lock.taken", "gate", "load.started", "phase")
COMMON = ("receipt", "timer.armed", "inject.begin", "inject.hit", "inject.end", "proof.on", "revert.begin")
AFTER = ("timer.disarmed", "revert.end")
STEPS = {
    "noop": ("marker.written",),
    "pod-kill": ("delete.sent",),
    "gpu-reset": (
        "gate.held",
        "engine.killed",
        "holders.gone",
        "reset.begin",
        "reset.end",
        "device.verified",
        "settings.restored",
    ),
    "packet-loss": ("rules.placed",),
    "engine-kill": ("engine.killed",),
    "engine-hang": ("engine.stopped",),
    "upstream-delay": ("delay.on",),
    "thermal-throttle": ("clocks.locked",),
}


def points() -> list[tuple[str, str]]:
    """Return the (fault, event or step) to die at."""
    every = [[(fault, at) for at in (*COMMON, *steps, *AFTER)] for fault, steps in STEPS.items()]
    every[0] += [("noop", at) for at in BEFORE]  # where all drills are alike
    if os.environ.get("FULL"):
        return [point for of_fault in every for point in of_fault]
    drawn = rng(SEED, "points")
    return [drawn.choice(of_fault) for of_fault in every]


@pytest.fixture
def drill(lab: Lab, control: Control, tmp_path: Path) -> Iterator[Driller]:
    """`drill` on the shared lab, which is well, where nothing fires and resets would drop a setting."""
    prometheus = Prometheus(lab.data["prometheus"])
    labs.eventually(lambda: labs.all_ready(control) and not prometheus.alerts(), 60)
    for gpu in traces.gpus(lab):
        gpu_state.change_gpu(lab.dir / "gpu" / "state.json", gpu["uuid"], power_limit_w=500.0)
    driller = Driller(lab.dir, tmp_path / "reports", lab.data["port_base"])
    yield driller
    driller("recover", "--reports", str(driller.reports))
    for gpu in traces.gpus(lab):
        gpu_state.change_gpu(lab.dir / "gpu" / "state.json", gpu["uuid"], power_limit_w=700.0)


def start(drill: Driller, fault: str, folder: Path) -> subprocess.Popen[str]:
    """Start a drill with the shortest phases there can be."""
    targets = folder / "targets.yaml"
    targets.write_text(TARGETS)
    return drill.start(f"cut-{fault}", "--targets", str(targets), "--target", "quick", "--seed", str(SEED))


def kill_at(drill: Driller, process: subprocess.Popen[str], at: str) -> Path:
    """Kill the process group as soon as the journal tells of that event or step; return the run folder."""
    deadline = time.monotonic() + REACH_S
    while not (found := _reached(drill.latest(), at)):
        assert process.poll() is None, f"ended before {at}: {process.communicate()[0]}"
        assert time.monotonic() < deadline, f"no {at} within {REACH_S} s"
        time.sleep(POLL_S)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGKILL, f"ended by itself at {at}"
    return found


def _reached(folder: Path | None, at: str) -> Path | None:
    try:
        text = (folder / "journal.jsonl").read_text() if folder else ""
    except FileNotFoundError:
        return None
    return folder if f'"event":"{at}"' in text or f'"step":"{at}"' in text else None


@pytest.mark.parametrize(("fault", "at"), points(), ids=lambda word: word)
def test_a_driver_that_dies_leaves_what_recover_puts_back(
    fault: str, at: str, drill: Driller, lab: Lab, control: Control, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    if fault == "packet-loss" and os.geteuid() != 0:
        pytest.skip("a network to shape needs root")
    settings, before = traces.settings(lab), traces.identities(lab)
    folder = kill_at(drill, start(drill, fault, tmp_path), at)
    told = [event["data"]["receipt"] for event in events(folder, "receipt")]
    victims = {victim["name"] for receipt in told for victim in receipt["victims"]}

    first = drill("recover", "--reports", str(drill.reports))
    assert first.code == 0, first.out + first.err
    again = drill("recover", "--reports", str(drill.reports))
    assert (again.code, again.out.strip()) == (0, "nothing to put back"), again.out + again.err

    assert traces.left_behind(lab) == []
    assert traces.settings(lab) == settings
    eventually(lambda: not [line for line in traces.command_lines() if str(folder) in line], 10)
    labs.eventually(lambda: labs.all_ready(control), 30)
    now = traces.identities(lab)
    assert {name for name in now if now[name] != before[name]} <= (victims if fault != "noop" else set())
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["restored"]) == ("inconclusive", "clean")
    assert [e["data"]["status"] for e in events(folder, "end")] == ["crashed"]
    said = drill("status", "--reports", str(drill.reports)).out
    assert "nothing is to be put back" in said
    assert "not finished" not in said
