"""The GPUs of every host that has some are looked at in a run, and by nobody while a fault is put on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from drills.errors import Unreachable
from drills.model import Json, Replica
from drills.probes import gpu_host
from drills.probes.http import ProbeError
from drills.probes.sampler import Job
from drills.watch import Watch


@dataclass
class Hosts:
    """As much of a target with GPUs on two hosts as whoever looks at them needs."""

    name: str = "farm"
    kind: str = "hosts"
    model: str = "m"
    fallback_models: tuple[str, ...] = ()
    expected_replicas: int = 3
    prometheus: str | None = None
    alertmanager: str | None = None
    router_metrics: str | None = None
    sla: Any = None
    endpoint: str = "http://127.0.0.1:9/v1"
    capacity_per_replica: float | None = None
    custody: Any = None
    asked: list[str] = field(default_factory=list)

    def replicas(self) -> list[Replica]:
        places = (
            ("a", "gpu-2", ("GPU-1",)),
            ("b", "gpu-1", ("GPU-2",)),
            ("c", "gpu-1", ("GPU-3",)),
            ("d", "cpu-1", ()),
        )
        return [
            Replica(name, "u", "primary", "http://127.0.0.1:9", ready=True, host=h, gpus=g) for name, h, g in places
        ]

    def control_host(self) -> Any:
        raise AssertionError("there is none on hosts")

    host = facts = nvidia_smi = gpu_device = clock_lock = control_host


def jobs(target: Hosts) -> tuple[Watch, list[Job]]:
    watch = Watch(cast("Any", target), lambda *_: None, {"experiment": {"checks": []}})
    return watch, [job for job in watch.jobs() if job.probe == "gpu"]


def test_each_host_with_gpus_is_looked_at_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Hosts()

    def look(_: object, host: str) -> Json:
        target.asked.append(host)
        return {"gpus": {}, "host": host}

    monkeypatch.setattr(gpu_host, "look", look)
    watch, found = jobs(target)
    assert [job.subject for job in found] == ["gpu-1", "gpu-2"]
    assert [(job.look() or {})["host"] for job in found] == ["gpu-1", "gpu-2"]
    watch.hands_off = True  # NVML would be a client of the GPU that is to be reset
    assert [job.look() for job in found] == [None, None]
    assert target.asked == ["gpu-1", "gpu-2"]


def test_a_host_that_does_not_answer_is_a_failed_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_: object, host: str) -> Json:
        raise Unreachable(f"{host}: no answer")

    monkeypatch.setattr(gpu_host, "look", look)
    _, (first, _) = jobs(Hosts())
    with pytest.raises(ProbeError, match="gpu-1: no answer"):
        first.look()
