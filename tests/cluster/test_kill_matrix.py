"""SIGKILL of the driver at any step of a drill on a cluster: `drill recover` leaves everything as it was.

By default one point of each drill, drawn by a seed that a failure shows; FULL=1 tries all, SEED=N draws again. Compared
object by object: leases, configmaps, jobs, labels, cordon; rules of iptables in every network on the node; processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.clock import rng
from drills.cluster import rbac
from tests.cluster import traces
from tests.cluster.cases import CASES, experiment
from tests.cluster.driving import begun, driller, kill_group, place, signed_in, words, written
from tests.cluster.emulator import serving
from tests.cluster.served import Served
from tests.lab.drilling import Driller, events
from tests.sampling import SEED

POLL_S = 0.02
REACH_S = 240.0


def points() -> list[tuple[str, str]]:
    """Return the (drill, event or step) to die at."""
    every = [[(name, at) for at in case.points] for name, case in CASES.items()]
    if os.environ.get("FULL"):
        return [point for of_one in every for point in of_one]
    drawn = rng(SEED, "points")
    return [drawn.choice(of_one) for of_one in every]


@pytest.fixture(scope="module")
def shared(own_node: Path) -> Iterator[Served]:
    """All of it, on a node whose networks can be looked into."""
    with serving(Served, own_node) as made:
        yield made


@pytest.fixture(scope="module")
def account(shared: Served, cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the kubeconfig of somebody who may what these drills need: what others do to the node is not seen."""
    needed = rbac.needed([name for name in rbac.FAULTS if not name.startswith("gpu-reset")], proxy=True)
    role = rbac.role("drill", shared.namespace.name, needed | rbac.HELPER)
    return signed_in(tmp_path_factory.mktemp("account"), cluster, shared.token("drill", role))


@pytest.fixture
def drill(tmp_path: Path, account: Path, shared: Served) -> Iterator[Driller]:
    """`drill` at a service that is well, with its baseline as short as its SLA allows."""
    shared.renewed()
    shared.declare(tmp_path, e2e="3s")
    made = driller(tmp_path, account, timeout_s=400.0)
    yield made
    made("recover", *place(made))


def kill_at(drill: Driller, process: subprocess.Popen[str], at: str) -> Path:
    """Kill the process group as soon as the journal tells of that event or step; return the run folder."""
    deadline = time.monotonic() + REACH_S
    while not (found := _reached(drill.latest(), at)):
        assert process.poll() is None, f"ended before {at}: {process.communicate()[0]}"
        assert time.monotonic() < deadline, f"no {at} within {REACH_S} s"
        time.sleep(POLL_S)
    kill_group(process)
    assert process.returncode == -signal.SIGKILL, f"ended by itself at {at}"
    return found


def _reached(folder: Path | None, at: str) -> Path | None:
    try:
        text = (folder / "journal.jsonl").read_text() if folder else ""
    except FileNotFoundError:
        return None
    return folder if f'"event":"{at}"' in text or f'"step":"{at}"' in text else None


@pytest.mark.parametrize(("name", "at"), points(), ids=lambda word: word.replace(" ", "-"))
def test_a_driver_that_dies_leaves_what_recover_puts_back(name: str, at: str, drill: Driller, shared: Served) -> None:
    print(f"seed {SEED}")
    objects, pods = traces.objects(shared), traces.pods(shared)
    rules = traces.rules(pods)
    assert traces.ours(rules) == []
    with begun(drill, [*words(drill, written(drill, experiment(name))), "--seed", str(SEED)]) as process:
        folder = kill_at(drill, process, at)
    run = json.loads((folder / "plan.json").read_text())["run"]
    receipts = [event["data"]["receipt"] for event in events(folder, "receipt") if not event["data"].get("beside")]
    victims = {victim["uid"] for receipt in receipts for victim in receipt["victims"]} if CASES[name].dies else set()

    first = drill("recover", *place(drill))
    assert first.code == 0, first.out + first.err
    again = drill("recover", *place(drill))
    assert (again.code, again.out.strip()) == (0, "nothing to put back"), again.out + again.err
    shared.until_ready()

    assert shared.left() == []
    left = traces.objects(shared)  # the node only while no other test could change it
    assert {key: left[key] for key in left if key in objects} == {key: objects[key] for key in objects if key in left}
    assert {key for key in left.keys() ^ objects.keys() if not key.startswith("node ")} == set()
    assert traces.processes(run) == []
    now = traces.pods(shared)
    after = traces.rules(now)
    assert {uid: pod for uid, pod in pods.items() if uid not in victims and now.get(uid) != pod} == {}
    assert len(set(now) - set(pods)) <= len(victims)
    assert traces.ours(after) == []
    assert run not in traces.everywhere()
    same = rules.keys() & after.keys()
    assert {number: after[number] for number in same} == {number: rules[number] for number in same}
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["restored"]) == ("inconclusive", "clean")
    assert [event["data"]["status"] for event in events(folder, "end")] == ["crashed"]
    said = drill("status", *place(drill)).out
    assert "nothing is to be put back" in said
    assert "not finished" not in said
