"""What is offered and what users send must fit into the replicas that are left, declared or measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from drills import gate, headroom, victims
from drills.clock import Clock
from drills.headroom import Live
from drills.model import Fault, Json, Replica, Target
from drills.probes import traffic
from drills.probes.http import ProbeError

REPLICAS = [
    *(Replica(f"replica-{i}", str(i), "primary", "", ready=True) for i in range(3)),
    Replica("small-0", "s", "fallback", "", ready=True),
]
NOBODY = Live(0.0, "")


def plan(rate: float | None, faults: list[Json] | None = None, **target: Any) -> Json:
    arrivals: Json = {"kind": "users", "users": 4} if rate is None else {"kind": "poisson", "rate": rate}
    limits: Json = {"windows": [], "freeze": []}
    return {
        "target": {"limits": limits} | target,
        "experiment": {"load": {"arrivals": arrivals}, "faults": faults or [], "checks": []},
    }


def shared(capacity: float | None, **more: Any) -> Target:
    """A target that others use as well."""
    found = SimpleNamespace(
        name="t", kind="kubernetes", capacity_per_replica=capacity, prometheus=None, alertmanager=None, **more
    )
    return cast("Target", found)


@pytest.mark.parametrize(("rate", "fits"), [(20.0, True), (24.0, True), (24.1, False)])
def test_the_load_must_fit_one_replica_fewer(rate: float, fits: bool) -> None:
    """Three primaries of 12/s: two of them carry 24/s. The fallback does not count."""
    found = headroom.refusals(plan(rate), shared(12.0), REPLICAS, NOBODY, gone=1)
    assert (found == []) is fits
    assert fits or "24.1/s offered, 2 replicas carry 24/s" in found[0]


def test_what_users_send_counts_as_well() -> None:
    assert headroom.refusals(plan(14.0), shared(12.0), REPLICAS, Live(10.0, ""), gone=1) == []
    [found] = headroom.refusals(plan(14.1), shared(12.0), REPLICAS, Live(10.0, ""), gone=1)
    assert "14.1/s offered and 10/s of users, 2 replicas carry 24/s" in found


def test_two_victims_leave_one_replica() -> None:
    faults: list[Json] = [{"fault": "pod-kill", "params": {"victims": 2}}, {"fault": "upstream-delay", "params": {}}]
    gone = victims.most_gone(faults, REPLICAS)
    assert gone == 2
    assert headroom.refusals(plan(12.0), shared(12.0), REPLICAS, NOBODY, gone=gone) == []
    assert "1 replicas carry 12/s" in headroom.refusals(plan(12.1), shared(12.0), REPLICAS, NOBODY, gone=gone)[0]


def test_a_share_of_victims_counts_as_it_would_be_drawn() -> None:
    assert victims.most_gone([{"params": {"victims": "67%"}}], REPLICAS) == 2
    assert victims.most_gone([], REPLICAS) == 1


def test_users_that_nobody_can_count_refuse() -> None:
    [found] = headroom.refusals(plan(1.0), shared(12.0), REPLICAS, Live(None, "replica-0: HTTP 404"), gone=1)
    assert "nobody knows what users send now (replica-0: HTTP 404); say it by capacity.live" in found


@pytest.mark.parametrize(("capacity", "rate"), [(None, 1000.0), (12.0, None)])
def test_what_is_not_declared_is_not_compared(capacity: float | None, rate: float | None) -> None:
    target = shared(capacity)
    assert not headroom.needed(plan(rate), target)
    assert headroom.refusals(plan(rate), target, REPLICAS, NOBODY, gone=1) == []


def test_an_embedded_target_has_no_users() -> None:
    target = shared(12.0, keep_alive=lambda: None, load_core=lambda: None)
    assert headroom.live(plan(1.0), target, REPLICAS, Clock()).rate == 0.0


class Instant(Clock):
    """A clock on which waits are over at once."""

    now = 5.0

    def mono(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


EXPOSITION = """\
vllm:request_generation_tokens_bucket{{le="1.0",model_name="m"}} {one}
vllm:request_generation_tokens_bucket{{le="2.0",model_name="m"}} {one}
vllm:request_generation_tokens_bucket{{le="+Inf",model_name="m"}} {all}
vllm:request_generation_tokens_count{{model_name="m"}} {all}
"""


def test_health_checks_are_no_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three engines, each asked twice: 30 answers more, 10 of them of one token, in ten seconds."""
    counts = iter([(0, 0)] * 3 + [(10, 30)] * 3)

    def answer(*_: Any, **__: Any) -> tuple[int, bytes]:
        one, everything = next(counts)
        return 200, EXPOSITION.format(one=one, all=everything).encode()

    monkeypatch.setattr(traffic, "request", answer)
    assert traffic.rate(cast("Any", None), REPLICAS[:3], Instant()) == pytest.approx(6.0)


def test_an_engine_that_began_anew_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([(0, 50), (0, 3)])
    monkeypatch.setattr(
        traffic,
        "request",
        lambda *_, **__: (200, EXPOSITION.format(one=0, all=next(counts)[1]).encode()),
    )
    with pytest.raises(ProbeError, match="began to count anew"):
        traffic.rate(cast("Any", None), REPLICAS[:1], Instant())


def test_an_engine_without_the_counter_is_named() -> None:
    with pytest.raises(ProbeError, match="replica-0: has no vllm:request_generation_tokens"):
        traffic.counted("vllm:num_requests_running 1\n", "replica-0")


def test_the_gate_refuses_where_nobody_can_tell() -> None:
    """Replicas without an address: their counters cannot be read."""
    fault = cast("Fault", SimpleNamespace(name="any", needs=frozenset))
    [found] = gate.refusals(plan(1.0), shared(12.0), REPLICAS, [fault], Instant())
    assert "nobody knows what users send now" in found


# ---- measured ------------------------------------------------------------------------------------------

PRIMARIES = ["a", "b", "c"]


def engines(waiting: float = 0.0, kv: float = 0.3) -> dict[str, list[Json]]:
    return {name: [{"waiting": waiting, "kv_usage": kv}] * 5 for name in PRIMARIES}


def test_idle_engines_bear_the_loss() -> None:
    assert headroom.measured(engines(), PRIMARIES, REPLICAS[:1]) == ""


def test_a_queue_with_all_of_them_leaves_no_room() -> None:
    found = headroom.measured(engines(waiting=1.5), PRIMARIES, REPLICAS[:1])
    assert found.startswith("headroom: 1.5 requests wait in a though nobody is gone")


def test_caches_that_would_not_fit_into_fewer_leave_no_room() -> None:
    assert headroom.measured(engines(kv=0.6), PRIMARIES, REPLICAS[:1]) == ""
    found = headroom.measured(engines(kv=0.61), PRIMARIES, REPLICAS[:1])
    assert "KV caches are 61% full, in 2 replicas they would be 92%, 90% may be" in found


@pytest.mark.parametrize("looks", [[], [{"running": 1.0}]])
def test_neither_declared_nor_measured_refuses(looks: list[Json]) -> None:
    found = headroom.measured(engines() | {"b": looks}, PRIMARIES, REPLICAS[:1])
    assert "neither declared nor measured: b does not tell its queue and KV cache" in found


def test_nobody_left_is_no_room() -> None:
    assert "nobody would be left" in headroom.measured(engines(), PRIMARIES, REPLICAS[:3])
