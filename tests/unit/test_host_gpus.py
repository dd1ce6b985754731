"""Which GPUs a machine has, and which of them a replica holds: what nvidia-smi and the kernel say, and when not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from drills.errors import DrillError, Unreachable
from drills.hosts.gpus import GpusOfHosts, MachineGpus
from drills.hosts.units import Seen
from drills.model import Completed, Json
from drills.targetfile import GpuHost

MAIN, ENGINE = (10, 1), (11, 2)
XML = "<nvidia_smi_log>{}</nvidia_smi_log>".format(
    "".join(f"<gpu><uuid>GPU-{n}</uuid><minor_number>{n}</minor_number></gpu>" for n in range(3))
)


class FakeHost:
    """Says what it is told to say: `smi` as (status, text, timed out), then who has which device open."""

    name, python = "h1", "python3"

    def __init__(self) -> None:
        self.smi: list[tuple[int, str, bool]] = []
        self.open: list[Json] | DrillError = [process(11, "/dev/nvidia1", 10, 1), process(77, "/dev/nvidia0", 1)]
        self.asked: list[str] = []

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str | None = None) -> Completed:
        assert timeout_s > 0
        self.asked.append(argv[0])
        if argv[0] == "nvidia-smi":
            rc, out, timed_out = self.smi.pop(0) if self.smi else (0, XML, False)
            return Completed(tuple(argv), rc, out, "", timed_out=timed_out)
        assert stdin
        assert list(argv[2:]) == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"]
        if isinstance(self.open, DrillError):
            raise self.open
        return Completed(tuple(argv), 0, json.dumps(self.open), "")


def process(pid: int, device: str, *parents: int) -> Json:
    return {"pid": pid, "start": 2, "title": "x", "device": device, "state": "S", "parents": list(parents)}


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def gpus(host: Any) -> MachineGpus:
    return MachineGpus(host)


# ---- which there are -------------------------------------------------------------------------------------


def test_it_is_asked_once(host: FakeHost, gpus: MachineGpus) -> None:
    assert gpus.devices() == gpus.devices() == {f"GPU-{n}": f"/dev/nvidia{n}" for n in range(3)}
    assert host.asked == ["nvidia-smi"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((0, "", True), "no answer within 60 s"),
        ((0, XML[:40], False), "status 0: <nvidia_smi_log>"),
        ((0, "", False), "status 0: nothing"),
        ((9, "NVIDIA-SMI has failed because it", False), "status 9: NVIDIA-SMI has failed because it"),
        ((15, XML, False), "status 15"),  # one is lost: these are not all
    ],
)
def test_a_bad_answer_is_told_and_never_taken_for_none(
    host: FakeHost, gpus: MachineGpus, answer: tuple[int, str, bool], words: str
) -> None:
    host.smi = [answer]
    with pytest.raises(DrillError, match="h1: which GPUs it has: nvidia-smi -q -x: ") as caught:
        gpus.devices()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(gpus.devices()) == 3


def test_without_nvidia_smi_there_are_none(host: FakeHost, gpus: MachineGpus) -> None:
    host.smi = [(127, "", False)]
    assert gpus.devices() == {} == gpus.devices()
    assert gpus.held_by(MAIN, ENGINE) == ()
    assert host.asked == ["nvidia-smi"]


# ---- which a replica holds -------------------------------------------------------------------------------


def test_they_are_those_that_its_own_processes_have_open(host: FakeHost, gpus: MachineGpus) -> None:
    assert gpus.held_by(MAIN, ENGINE) == gpus.held_by(MAIN, ENGINE) == ("GPU-1",)
    assert host.asked == ["nvidia-smi", "python3"]
    host.open = [process(21, "/dev/nvidia2", 20), process(21, "/dev/nvidia0", 20)]
    assert gpus.held_by((20, 5), (21, 6)) == ("GPU-0", "GPU-2")


def test_while_nobody_can_tell_it_holds_none_and_is_asked_again(host: FakeHost, gpus: MachineGpus) -> None:
    held, host.open = host.open, DrillError("h1: holders.py: status 1")
    assert gpus.held_by(MAIN, ENGINE) == ()
    host.open = held
    assert gpus.held_by(MAIN, ENGINE) == ("GPU-1",)


def test_a_machine_that_does_not_answer_is_not_one_without_gpus(host: FakeHost, gpus: MachineGpus) -> None:
    host.open = Unreachable("h1: no answer")
    with pytest.raises(Unreachable):
        gpus.held_by(MAIN, ENGINE)


# ---- of a target -----------------------------------------------------------------------------------------


def seen(**changes: Any) -> Seen:
    known: Json = {"main": MAIN, "engine": ENGINE, **changes}
    words: Json = {"unit": "vllm.service", "loaded": "loaded", "active": "active", "sub": "running", "uid": "u"}
    return Seen(**words, restarts=0, policy="always", gate=None, **known)


@pytest.mark.parametrize(
    ("declared", "ready", "changes", "found"),
    [
        ("all", True, {}, ("GPU-1",)),
        ("all", False, {}, ()),  # it may not hold all of them yet
        ("all", True, {"engine": None}, ()),
        (("GPU-2",), False, {}, ("GPU-2",)),
    ],
)
def test_all_are_those_that_a_ready_replica_holds(
    gpus: MachineGpus, declared: Any, ready: bool, changes: Json, found: tuple[str, ...]
) -> None:
    class Machine:
        name = "h1"

    of_hosts = GpusOfHosts()
    of_hosts._gpus = {"h1": gpus}
    entry = GpuHost(name="h1", address="10.0.0.1", user="u", unit="vllm", gpus=declared)
    machine: Any = Machine()
    assert of_hosts.gpus_of(machine, entry, seen(**changes), ready=ready) == found
