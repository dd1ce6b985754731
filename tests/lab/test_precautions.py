"""Paging, what users feel, and production, on a whole lab with a real Prometheus and Alertmanager."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drills.lab import manage
from drills.lab.client import Lab
from drills.lab.config import LabConfig
from drills.lab.target import custody
from drills.probes.prometheus import Alertmanager
from drills.silence import OPEN
from tests.lab import labs
from tests.lab.drilling import Driller, Ran, events
from tests.lab.test_drills import settled

pytestmark = pytest.mark.lab
#: 1 as soon as one of the four engines is not scraped.
ENGINES = 'sum(up{job="vllm"}) < bool 4'
ALERT = "VllmReplicaDown"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab whose replicas are away long enough for the alert."""
    folder = tmp_path_factory.mktemp("precautions") / "lab"
    try:
        yield manage.up(LabConfig(port_base=labs.free_port_base(), startup_s=8.0), folder=folder)
    finally:
        manage.down(folder)


@pytest.fixture
def drill(lab: Lab, tmp_path: Path) -> Iterator[Driller]:
    """`drill` on that lab when it is well; afterwards nothing of it is silenced, and nothing is to be put back."""
    settled(lab)
    yield Driller(lab.dir, tmp_path / "reports", lab.data["port_base"])
    assert custody(lab.dir, "lab").outstanding() == []
    assert silences(lab) == []


def silences(lab: Lab) -> list[str]:
    """Return who made the silences that are on."""
    found = Alertmanager(lab.data["alertmanager"]).silences()
    return [str(one["createdBy"]) for one in found if one["status"]["state"] in OPEN]


def declared(drill: Driller, keys: str) -> list[str]:
    """Write a targets file and return the words that name it."""
    path = drill.reports.parent / "drill.yaml"
    path.write_text(f"targets:\n  lab: {{kind: lab, {keys}}}\n")
    return ["--targets", str(path)]


def begun(drill: Driller, keys: str) -> Ran:
    return drill.run("short-pod-kill", "--seed", "1", *declared(drill, keys))


# ---- observe ---------------------------------------------------------------------------------------------


def test_an_observed_alert_fires_and_notifies_nobody(lab: Lab, drill: Driller) -> None:
    ran = begun(drill, "alerts: {mode: observe}")
    assert ran.code == 0, ran.out + ran.err
    assert ran.folder is not None
    assert ran.row("alert")["verdict"] == "pass"
    told = [e["data"] for e in ran.events("alert") if e["data"]["alert"] == ALERT]
    assert {"firing", "inactive"} <= {d["state"] for d in told if d["source"] == "prometheus"}
    assert {d["state"] for d in told if d["source"] == "alertmanager"} <= {"suppressed", "inactive"}
    assert [e for e in ran.events("notified") if e["data"]["alert"] == ALERT] == []
    silence, fault = ran.events("receipt")
    assert (silence["data"]["receipt"]["fault"], fault["data"]["receipt"]["fault"]) == ("alert-silence", "pod-kill")
    [proof] = ran.events("beside.proof.off")
    assert proof["data"]["ok"] is True
    assert proof["mono"] > ran.events("load.stopped")[0]["mono"]  # as long as the alert may be on
    assert (ran.verdict["restored"], ran.verdict["left"]) == ("clean", "healthy")
    text = (ran.folder / "postmortem.md").read_text()
    assert "silenced on purpose: paging path not proven" in text


def test_a_driver_that_is_killed_leaves_a_silence_that_recover_expires(lab: Lab, drill: Driller) -> None:
    process = drill.start("short-pod-kill", "--seed", "1", *declared(drill, "alerts: {mode: observe}"))
    try:
        folder = drill.until("inject.hit", process, None)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
    finally:
        process.kill()
    [run] = {e["data"]["run"] for e in events(folder, "header")}
    assert silences(lab) == [f"drill run {run}"]
    refused = drill.run("short-noop")
    assert refused.code == 3
    assert "not put back yet" in refused.err
    done = drill("recover", "--reports", str(drill.reports))
    assert done.code == 0, done.out + done.err
    assert "alert-silence on" in done.out
    assert silences(lab) == []


# ---- users -----------------------------------------------------------------------------------------------


def test_what_users_feel_ends_the_run(drill: Driller) -> None:
    ran = begun(drill, f"limits: {{stop_if: ['{ENGINES}']}}")
    assert ran.code == 4, ran.out + ran.err
    [guard] = ran.events("guard")
    assert guard["data"] == {"guard": "stop_if", "value": 1.0, "bound": 0, "query": ENGINES}
    assert guard["mono"] > ran.events("inject.hit")[0]["mono"]
    assert ran.verdict["restored"] == "clean"


@contextmanager
def stopped(lab: Lab, name: str) -> Iterator[None]:
    """Have a process of the lab stand still."""
    [pid] = [row["pid"] for row in lab.control().status()["processes"] if row["name"] == name]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_not_knowing_how_users_fare_ends_the_run_as_well(lab: Lab, drill: Driller) -> None:
    process = drill.start("short-noop", *declared(drill, f"limits: {{stop_if: ['{ENGINES}']}}"))
    try:
        folder = drill.until("proof.on", process, None)
        with stopped(lab, "prometheus"):
            out = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode == 4, out
    [guard] = events(folder, "guard")
    assert guard["data"]["value"].startswith("not answered for 1")
    assert "timed out" in guard["data"]["value"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("sum(no_such_metric) > bool 0", "is not answered (no series"),
        ("up > 5", "is not answered (no series"),
        ('up{job="vllm"}', "4 series where one is meant"),
        ("vector(2)", "is 2 before the drill has begun"),
        ("sum(up", "is not answered (query:"),
    ],
)
def test_a_query_that_could_not_guard_refuses(drill: Driller, query: str, says: str) -> None:
    ran = begun(drill, f"limits: {{stop_if: ['{query}']}}")
    assert ran.code == 3, ran.out + ran.err
    assert says in ran.out + ran.err
    assert ran.events("load.started") == []


# ---- production ------------------------------------------------------------------------------------------

PRODUCTION = f"limits: {{environment: production, windows: ['Mon-Sun 00:00-24:00 UTC'], stop_if: ['{ENGINES}']}}"


def test_production_is_named_twice_before_anything_else(drill: Driller) -> None:
    ran = begun(drill, PRODUCTION)
    assert ran.code == 3
    assert "target lab is production: add --confirm lab and --oncall NAME" in ran.err
    assert ran.folder is None


def test_where_no_users_are_nothing_may_be_added_to_them(drill: Driller) -> None:
    words = ["short-pod-kill", *declared(drill, PRODUCTION), "--confirm", "lab", "--oncall", "ada"]
    ran = drill.run(*words)
    assert ran.code == 3, ran.out + ran.err
    assert "20/s would be added to 0/s of users (it is there for drills alone)" in ran.out + ran.err
    assert ran.events("header")[0]["data"]["oncall"] == "ada"
    assert "--confirm lab --oncall ada" in ran.events("header")[0]["data"]["command"]
    assert ran.events("load.started") == []
