"""After `cluster-down` the machine is as it was, however the node came to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import cgroups, layout, machine, node
from tests.cluster.cache import TREE
from tests.cluster.conftest import DOWN_TIMEOUT_S, GIVEN, UP_TIMEOUT_S, run_node
from tests.cluster.kube import MANIFESTS, Namespace

STEP_TIMEOUT_S, POLL_S = 120.0, 0.02
SETTLE_S = 10.0  # what others on the machine begin and end meanwhile


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """Have the machine without a node, and nobody who would bring one up meanwhile."""
    if GIVEN:
        pytest.skip("is about the node of `make cluster-up`, and KUBECONFIG names another cluster")
    if reason := node.missing():
        pytest.skip(reason)
    with node.alone() as nobody_else:
        if not nobody_else:
            pytest.skip("a node is up, and this would take it down: make cluster-down")
        yield


@pytest.fixture(autouse=True)
def machine_as_it_was() -> Iterator[None]:
    """Compare the machine before and after; the test's own end takes the node down."""
    down()
    before = machine.snapshot()
    yield
    down()
    assert_same(before)
    assert not node.run_folder().exists()


def down() -> None:
    ended = run_node("down", DOWN_TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr


def assert_same(before: dict[str, list[str]]) -> None:
    deadline = time.monotonic() + SETTLE_S
    while different := machine.difference(before, machine.snapshot()):
        assert time.monotonic() < deadline, json.dumps(different, indent=1)
        time.sleep(1.0)


def up() -> None:
    begun = run_node("up", UP_TIMEOUT_S)
    assert begun.returncode == 0, begun.stderr


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(POLL_S)


def in_node(*command: str) -> str:
    """Run a command in the node's namespaces."""
    first = (node.run_folder() / "pid").read_text().strip()
    return subprocess.run(
        ["nsenter", f"--target={first}", "--mount", "--net", *command],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    ).stdout


def test_a_node_with_pods_leaves_nothing() -> None:
    before = machine.snapshot()
    up()
    up()  # a second time changes nothing
    namespace = Namespace.make(node.kubeconfig())
    try:
        namespace.create(MANIFESTS / "emulator.yaml")
        namespace.wait("three Ready replicas", lambda: len(namespace.ready_pods()) == 3, STEP_TIMEOUT_S)
    finally:
        namespace.api.close()
    # What would be left if it were not the node's own: so there is something to leave.
    assert "KUBE-SERVICES" in in_node("iptables-save")
    assert "cni0" in in_node("ip", "link")
    assert "/kubepods/" in "".join(Path(f"/proc/{pid}/cgroup").read_text() for pid in node.members())
    assert in_node("cat", "/proc/sys/vm/overcommit_memory").strip() == "1"
    came = machine.difference(before, machine.snapshot())
    assert layout.HOST_LINK in came["links"]["came"]
    assert len(came["processes"]["came"]) >= len(layout.components(node.run_folder())) - 1
    assert not any("KUBE" in rule for kind in machine.RULES for rule in came.get(kind, {"came": []})["came"])
    down()
    down()  # a second time finds nothing to do


def test_a_node_whose_first_process_is_killed_leaves_nothing() -> None:
    up()
    os.kill(int((node.run_folder() / "pid").read_text()), signal.SIGKILL)
    until("its processes are gone", lambda: not any(node.pids(c.name) for c in layout.components(node.run_folder())))


def written(name: str) -> Callable[[], bool]:
    return (node.run_folder() / name).exists


STEPS: dict[str, Callable[[], bool]] = {
    "its folder is there": lambda: node.run_folder().exists(),
    "its cgroups are named": written("cgroups.json"),
    "something is in them": lambda: bool(node.members()),
    "its first process runs": written("pid"),
    "the images are in order": written(f"hold/{layout.IMAGE_STORE}"),
    "the kubelet runs": written("log/kubelet.log"),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_up_that_is_killed_leaves_nothing(step: str) -> None:
    command = [sys.executable, "-m", "tests.cluster.node", "up"]
    with subprocess.Popen(command, cwd=TREE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as begun:
        until(step, STEPS[step])
        begun.kill()


def test_an_up_after_a_killed_one_works() -> None:
    command = [sys.executable, "-m", "tests.cluster.node", "up"]
    with subprocess.Popen(command, cwd=TREE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as begun:
        until("the API server runs", lambda: bool(node.members()) and written("log/kube-apiserver.log")())
        begun.kill()
    up()
    assert node.is_up()


def test_the_nodes_cgroups_are_below_ours() -> None:
    """What bounds the command bounds the node: a child of the command's own cgroup, not of the root."""
    found = cgroups.hierarchies()
    assert found
    if not cgroups.version_2_only(found):
        assert [path.parent for path in cgroups.planned("drills-x", found)] == [h.here for h in found]


def test_what_is_left_is_seen() -> None:
    """The comparison finds one of each kind, so that finding none means something.

    Rules are left out: the first rule makes a table that iptables cannot remove. They are seen in the node above.
    """
    before = machine.snapshot()
    cgroup = cgroups.planned("drills-left", cgroups.hierarchies())[0]
    left = [
        (["ip", "link", "add", "drills-left", "type", "veth"], ["ip", "link", "delete", "drills-left"]),
        (["mkdir", str(node.run_folder())], ["rmdir", str(node.run_folder())]),
        (["mount", "-t", "tmpfs", "tmpfs", str(node.run_folder())], ["umount", str(node.run_folder())]),
        (["mkdir", str(cgroup)], ["rmdir", str(cgroup)]),
        (["mkdir", "/run/drills-left"], ["rmdir", "/run/drills-left"]),
    ]
    done = []
    try:
        for leave, remove in left:
            subprocess.run(leave, check=True, timeout=20)
            done.append(remove)
        came = {kind for kind, lines in machine.difference(before, machine.snapshot()).items() if lines["came"]}
    finally:
        for remove in reversed(done):
            subprocess.run(remove, check=True, timeout=20)
    assert came >= {"links", "mounts", "cgroups", "files"}
