"""What must be true before anything is touched, as far as it can be told without a target."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills import gate
from drills.faults.engine_hang import EngineHang
from drills.faults.gpu_reset import GpuReset
from drills.faults.pod_kill import PodKill
from drills.faults.upstream_delay import UpstreamDelay
from drills.model import Fault, Json, Replica, Target

REPLICAS = [
    *(Replica(f"replica-{i}", str(i), "primary", "", ready=True) for i in range(3)),
    Replica("small-0", "s", "fallback", "", ready=True),
]


def plan(rate: float | None, **limits: Any) -> Json:
    return {
        "target": {"limits": {"windows": [], "freeze": []} | limits},
        "experiment": {"load": {"arrivals": {"kind": "poisson"} if rate is None else {"rate": rate}}},
    }


def target(capacity: float | None, **more: Any) -> Target:
    """An embedded target, so that nobody sends anything but the drill."""
    own = {"keep_alive": lambda: None, "load_core": lambda: None}
    found = SimpleNamespace(name="lab", kind="lab", capacity_per_replica=capacity, prometheus=None, **own, **more)
    return cast("Target", found)


def test_an_ability_that_the_target_lacks_is_named() -> None:
    faults: list[Fault] = [
        GpuReset(GpuReset.Params(how="crash"), "lab"),
        PodKill(PodKill.Params(how="delete"), "lab"),
        PodKill(PodKill.Params(how="kill-process"), "lab"),
    ]
    found = gate.refusals(plan(1.0), target(12.0), REPLICAS, faults)
    needs = ("GPUs that nvidia-smi can reset", "a controller that", "access to the processes of the replicas")
    assert [f"needs {need}" in line for need, line in zip(needs, found, strict=True)] == [True] * 3


def test_a_route_has_no_replica_to_spare_and_is_not_asked_for_one() -> None:
    route = UpstreamDelay(UpstreamDelay.Params(), "lab")
    other = EngineHang(EngineHang.Params(), "lab")
    able = target(12.0, proxy=lambda replica: {}, reach=list)
    assert gate.refusals(plan(30.0), able, REPLICAS, [route]) == []
    assert "headroom" in gate.refusals(plan(30.0), able, REPLICAS, [route, other])[0]


def test_alerts_that_cannot_be_read_refuse() -> None:
    """Nobody listens on port 9."""
    unreachable = cast("Target", SimpleNamespace(prometheus="http://127.0.0.1:9"))
    [found] = gate.firing(unreachable)
    assert "cannot be read" in found


def test_a_silence_that_would_stand_for_nobody_is_refused_before_anything() -> None:
    """On Kubernetes no replica has a GPU by name."""
    content = plan(1.0)
    content["target"]["alerts"] = {"mode": "observe", "labels": {}}
    content["experiment"]["checks"] = [{"check": "alert", "params": {"name": "Down", "labels": {"gpu": "{gpu}"}}}]
    [found] = gate.refusals(content, target(12.0, alertmanager="http://127.0.0.1:9"), REPLICAS, [])
    assert "gpu: {gpu} stands for nobody here" in found
    hit = [replace(one, gpus=("GPU-1",)) for one in REPLICAS]
    [found] = gate.refusals(content, target(12.0, alertmanager="http://127.0.0.1:9"), hit, [])
    assert "cannot be asked" in found  # which is what is asked next


def test_a_page_without_a_name_fires_too(monkeypatch: pytest.MonkeyPatch) -> None:
    alert = {"labels": {"severity": "page"}, "state": "firing"}
    monkeypatch.setattr(gate, "prometheus_of", lambda _target: SimpleNamespace(alerts=lambda: [alert]))
    assert gate.firing(target(None)) == [
        "alerts: an alert without a name fires already: this is an incident, not a drill"
    ]


def test_a_page_of_another_service_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says nothing of a service may be of this one."""

    def fires(**labels: str) -> list[str]:
        alert = {"labels": {"alertname": "Down", "severity": "page"} | labels, "state": "firing"}
        monkeypatch.setattr(gate, "prometheus_of", lambda _target: SimpleNamespace(alerts=lambda: [alert]))
        return gate.firing(target(None, alert_labels={"namespace": "llm"}))

    assert fires(namespace="other") == []
    assert fires(namespace="llm") == fires() == ["alerts: Down fires already: this is an incident, not a drill"]


def test_a_drill_that_would_end_outside_its_window_refuses() -> None:
    """A window of which less than an hour is left, and a drill of a day; by the minute, for the clock goes on."""
    now = datetime.now(UTC)
    begin = now.replace(minute=0) if now.minute < 55 else now
    today = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[begin.weekday()]
    end = begin + timedelta(hours=1)
    window = f"{today} {begin:%H:%M}-{end:%H:%M} UTC"
    phases = {f"{phase}_s": 21600.0 for phase in ("warmup", "baseline", "fault", "recovery")}
    content = plan(1.0, windows=[window])
    assert gate.refusals(content, target(12.0), REPLICAS, []) == []
    [found] = gate.refusals(content | {"phases": phases}, target(12.0), REPLICAS, [])
    assert found.startswith("the drill may take 1440 min, and its end would be outside every window")


def test_a_frozen_day_refuses() -> None:
    [found] = gate.refusals(plan(1.0, freeze=["2000-01-01..2999-12-31"]), target(12.0), REPLICAS, [])
    assert "is frozen" in found
