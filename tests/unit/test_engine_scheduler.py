"""Continuous batching as a simulation: no process, no clock, no sleep."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from drills.lab.engine import tokens
from drills.lab.engine.config import SchedulerConfig
from drills.lab.engine.scheduler import JITTER, Output, Request, Scheduler, Stats

SMALL = SchedulerConfig(max_num_seqs=4, kv_blocks=64, block_size=4, step_base_ms=10, step_per_seq_ms=1)


def request(rid: int, prompt: str = "a b c d e", max_tokens: int = 3, at: float = 0.0) -> Request:
    return Request(rid, bytearray(tokens.encode(prompt)), max_tokens, "length", at)


@dataclass
class Bench:
    """Runs steps and keeps what came out."""

    scheduler: Scheduler
    now: float = 0.0
    outputs: list[tuple[float, Output]] = field(default_factory=list)
    stats: list[Stats] = field(default_factory=list)

    def step(self) -> bool:
        step_s = self.scheduler.begin_step(self.now)
        if step_s is None:
            return False
        self.now += step_s
        outputs, stats = self.scheduler.end_step(self.now)
        self.outputs += [(self.now, o) for o in outputs]
        self.stats.append(stats)
        return True

    def drain(self, most: int = 20_000) -> None:
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("it does not end")

    def first_token(self, rid: int) -> float:
        return next(at for at, o in self.outputs if o.rid == rid)


def bench(config: SchedulerConfig = SMALL) -> Bench:
    return Bench(Scheduler(config))


def test_a_request_gets_exactly_its_tokens_then_ends() -> None:
    b = bench()
    b.scheduler.add(request(1, max_tokens=3))
    b.drain()
    assert [(o.tokens, o.finish) for _, o in b.outputs] == [(1, None), (1, None), (1, "length")]
    assert b.scheduler.unfinished == 0
    assert b.scheduler.pool.usage == 0


def test_no_work_is_no_step() -> None:
    assert bench().scheduler.begin_step(0.0) is None


def test_a_step_costs_its_base_its_requests_and_its_prefill() -> None:
    b = bench(replace(SMALL, prefill_tokens_per_s=1000))
    for rid in (1, 2):
        b.scheduler.add(request(rid, prompt=f"p{rid} b c d e"))
    first = b.scheduler.begin_step(0.0)
    assert first == pytest.approx(0.010 + 2 * 0.001 + 2 * 4 / 1000, rel=JITTER)
    b.scheduler.end_step(1.0)
    assert b.scheduler.begin_step(1.0) == pytest.approx(0.012, rel=JITTER)


def test_more_requests_than_the_batch_wait_their_turn_in_order() -> None:
    b = bench()
    for rid in range(10):
        b.scheduler.add(request(rid, prompt=f"p{rid}", max_tokens=5))
    b.step()
    assert (b.stats[-1].running, b.stats[-1].waiting) == (4, 6)
    b.drain()
    firsts = [b.first_token(rid) for rid in range(10)]
    assert firsts == sorted(firsts)
    assert firsts[3] < firsts[4]
    assert firsts[7] < firsts[8]


def test_a_long_prompt_is_prefilled_in_chunks_beside_running_requests() -> None:
    b = bench(replace(SMALL, max_num_batched_tokens=8))
    b.scheduler.add(request(1, prompt="x", max_tokens=20))
    b.step()
    b.scheduler.add(request(2, prompt=" ".join(f"w{i}" for i in range(21)), max_tokens=1))
    for _ in range(3):
        b.step()
    assert [o.rid for _, o in b.outputs] == [1, 1, 1, 1, 2]
    assert max(s.step_tokens for s in b.stats) == 8


# ---- prefix cache -------------------------------------------------------------------------------------


def prefix(b: Bench) -> tuple[int, int]:
    return sum(s.prefix_queries for s in b.stats), sum(s.prefix_hits for s in b.stats)


def test_a_repeated_prompt_hits_in_whole_blocks_and_computes_its_last_token() -> None:
    b = bench()
    for rid, prompt in ((1, "a b c d e f g h"), (2, "a b c d e f g h"), (3, "a b c d x x x x x")):
        b.scheduler.add(request(rid, prompt, max_tokens=1))
        b.drain()
    assert prefix(b) == (8 + 8 + 9, 4 + 4)  # of 8 cached tokens in blocks of 4, the last one must be computed


def test_cached_tokens_cost_no_time() -> None:
    b = bench(replace(SMALL, prefill_tokens_per_s=1000))
    took = []
    for rid in (1, 2):
        b.scheduler.add(request(rid, " ".join(f"w{i}" for i in range(101)), max_tokens=1))
        before = b.now
        b.drain()
        took.append(b.now - before)
    assert took[0] == pytest.approx(0.011 + 0.100, rel=JITTER)
    assert took[1] == pytest.approx(0.011, rel=JITTER)


def test_generated_tokens_are_cached_for_the_next_turn() -> None:
    b = bench()
    b.scheduler.add(request(1, "a b c d", max_tokens=9))
    b.drain()
    b.scheduler.add(request(2, "a b c d " + tokens.answer_text(0, 9) + "next", max_tokens=1))
    b.drain()
    assert prefix(b)[1] == 12


def test_without_prefix_cache_nothing_is_asked_or_hit() -> None:
    b = bench(replace(SMALL, prefix_cache=False))
    for rid in (1, 2):
        b.scheduler.add(request(rid, "a b c d e f g h i"))
        b.drain()
    assert prefix(b) == (0, 0)


# ---- KV pressure --------------------------------------------------------------------------------------


def crowded() -> Bench:
    b = bench(replace(SMALL, kv_blocks=12))  # 48 tokens for 4 requests of 5 + 20
    for rid in range(4):
        b.scheduler.add(request(rid, f"p{rid} b c d e", max_tokens=20))
    return b


def test_kv_exhaustion_preempts_the_latest_and_everyone_completes() -> None:
    b = crowded()
    b.drain()
    emitted = Counter(o.rid for _, o in b.outputs)
    assert emitted == dict.fromkeys(range(4), 20)
    assert {o.finish for _, o in b.outputs if o.finish} == {"length"}
    assert sum(o.preemptions for _, o in b.outputs) > 0
    assert all(o.preemptions == 0 for _, o in b.outputs if o.rid == 0)
    assert b.scheduler.pool.usage == 0


def test_running_falls_and_waiting_rises_before_preemptions_are_told() -> None:
    b = crowded()
    told_at_fall: int | None = None
    while b.step():
        if b.stats[-1].waiting and told_at_fall is None:
            told_at_fall = sum(o.preemptions for _, o in b.outputs)
    assert told_at_fall == 0
    assert sum(o.preemptions for _, o in b.outputs) > 0


def test_prompts_are_counted_once_whatever_is_computed_again() -> None:
    b = crowded()
    b.drain()
    assert prefix(b)[0] == 4 * 5
    assert sum(o.cached is not None for _, o in b.outputs) == 4


# ---- the end of requests ------------------------------------------------------------------------------


def test_an_aborted_request_is_gone_at_once_wherever_it_is() -> None:
    b = bench(replace(SMALL, max_num_seqs=1))
    for rid in (1, 2):
        b.scheduler.add(request(rid, max_tokens=50))
    b.step()
    assert b.scheduler.begin_step(b.now) is not None
    assert b.scheduler.abort(1)  # running, in the middle of a step
    assert b.scheduler.abort(2)  # waiting
    assert not b.scheduler.abort(2)
    outputs, stats = b.scheduler.end_step(b.now)
    assert outputs == []
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0)


def test_aborting_all_ends_each_with_abort_and_its_times() -> None:
    b = bench(replace(SMALL, max_num_seqs=1))
    for rid in (1, 2):
        b.scheduler.add(request(rid, max_tokens=50))
    b.step()
    outputs = b.scheduler.abort_all(b.now)
    assert [(o.rid, o.tokens, o.finish) for o in outputs] == [(1, 0, "abort"), (2, 0, "abort")]
    assert all(o.times is not None for o in outputs)
    assert b.scheduler.unfinished == 0


def test_the_times_of_a_request_add_up() -> None:
    b = bench(replace(SMALL, max_num_seqs=1))
    b.scheduler.add(request(1, max_tokens=10))
    b.scheduler.add(request(2, max_tokens=10))
    b.drain()
    at, last = b.outputs[-1]
    assert last.times is not None
    queue_s, prefill_s, decode_s, preemptions = last.times
    assert queue_s + prefill_s + decode_s == pytest.approx(at)
    assert queue_s > 9 * 0.010
    assert preemptions == 0


# ---- capacity: what the shipped defaults carry --------------------------------------------------------


def chat_load(rate: float, duration_s: float) -> list[float]:
    """Return the TTFTs of a Poisson chat workload on one replica of three (two of three turns come uncached)."""
    draw = random.Random(7)
    b = bench(SchedulerConfig())
    arrivals: list[tuple[float, Request]] = []
    at, shared = 0.0, " ".join(f"system{i}" for i in range(512))
    while at < duration_s:
        at += draw.expovariate(rate)
        turn = draw.randint(1, 4)
        own = " ".join(f"r{len(arrivals)}w{i}" for i in range(64 * turn + 32 * (turn - 1)))
        arrivals.append((at, request(len(arrivals), f"{shared} {own}", max_tokens=32, at=at)))
    arrived = {r.rid: t for t, r in arrivals}
    while b.now < duration_s:
        while arrivals and arrivals[0][0] <= b.now:
            b.scheduler.add(arrivals.pop(0)[1])
        if not b.step():
            b.now = arrivals[0][0] if arrivals else duration_s
    first: dict[int, float] = {}
    for t, o in b.outputs:
        first.setdefault(o.rid, t - arrived[o.rid])
    return [first[rid] for rid in sorted(first)]


def test_at_10_requests_a_second_the_first_token_comes_fast() -> None:
    ttft = sorted(chat_load(10, 120))
    assert ttft[len(ttft) // 2] < 0.1
    assert ttft[int(len(ttft) * 0.99)] < 0.3


def test_beyond_capacity_the_queue_grows_without_bound() -> None:
    ttft = chat_load(22, 60)
    quarter = len(ttft) // 4
    parts = [sorted(ttft[i * quarter : (i + 1) * quarter])[quarter // 2] for i in range(4)]
    assert parts == sorted(parts)
    assert parts[3] > 2 * parts[1] > 1.0


def test_capacity_is_about_14_requests_a_second() -> None:
    served = len(chat_load(60, 60)) / 60
    assert 13 < served < 16
