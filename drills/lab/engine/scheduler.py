"""Continuous batching with chunked prefill, preemption and prefix caching, as a pure simulation.

Time comes in from outside: `begin_step` plans a step and says how long it takes, `end_step` carries it
out. A step costs a base, a little for each request in it, and the prefill of tokens that no cache holds, so
throughput saturates and beyond it the queue grows without bound.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from drills.lab.engine.config import SchedulerConfig
from drills.lab.engine.kv import BlockPool
from drills.lab.engine.tokens import ID_BYTES, answer_id

JITTER = 0.03  # a step's duration varies by so much either way
LENGTH, STOP, ABORT = "length", "stop", "abort"


@dataclass(eq=False)
class Request:
    """A request in the engine. `ids` grows as tokens are generated; `computed` tokens have their KV."""

    rid: int
    ids: bytearray
    max_tokens: int
    finish: str  # why it ends when max_tokens are out
    queued_at: float
    prompt_tokens: int = 0
    computed: int = 0
    cached: int = 0  # prompt tokens the prefix cache served at first admission
    generated: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    remembered: int = 0
    preemptions: int = 0
    untold: int = 0  # preemptions since the last output; vLLM counts them only when the request speaks again
    scheduled_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.ids) // ID_BYTES

    @property
    def total(self) -> int:
        """Return how many tokens it has, prompt and answer."""
        return self.prompt_tokens + self.generated


@dataclass(frozen=True)
class Output:
    """What a step did for one request: one token, the first with facts of its admission, the last with times."""

    rid: int
    tokens: int
    finish: str | None = None
    preemptions: int = 0
    cached: int | None = None
    times: tuple[float, float, float, int] | None = None  # queue_s, prefill_s, decode_s, preemptions


@dataclass(frozen=True)
class Stats:
    """The engine's state after a step."""

    running: int
    waiting: int
    kv_usage: float
    step_tokens: int
    prefix_queries: int
    prefix_hits: int


class Scheduler:
    """Waiting and running requests, first come first served."""

    def __init__(self, config: SchedulerConfig, *, seed: int = 0) -> None:
        self.config = config
        self.pool = BlockPool(config.kv_blocks)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._requests: dict[int, Request] = {}
        self._plan: dict[Request, int] = {}
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._random = random.Random(seed)

    @property
    def unfinished(self) -> int:
        """Return how many requests are waiting or running."""
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._requests[request.rid] = request
        self.waiting.append(request)

    def abort(self, rid: int) -> bool:
        """Drop a request and free its blocks; False when it is already gone."""
        request = self._requests.pop(rid, None)
        if request is None:
            return False
        self._plan.pop(request, None)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._free(request)
        return True

    def abort_all(self, now: float) -> list[Output]:
        """Drop every request; each gets an output that ends it with `abort`."""
        requests = list(self._requests.values())
        for request in requests:
            self.abort(request.rid)
        return [Output(r.rid, 0, ABORT, r.untold, times=_times(r, now)) for r in requests]

    # ---- a step ---------------------------------------------------------------------------------------

    def begin_step(self, now: float) -> float | None:
        """Plan the next step; return its duration in seconds, None when there is nothing to do."""
        self._plan = {}
        budget, preempted = self._plan_running(self.config.max_num_batched_tokens)
        if not preempted:
            self._admit(now, budget)
        if not self._plan:
            return None
        prefill = sum(n if r.computed + n < r.total else n - 1 for r, n in self._plan.items())
        step_s = (self.config.step_base_ms + self.config.step_per_seq_ms * len(self._plan)) / 1e3
        step_s += prefill / self.config.prefill_tokens_per_s
        return step_s * self._random.uniform(1 - JITTER, 1 + JITTER)

    def _plan_running(self, budget: int) -> tuple[int, bool]:
        preempted = False
        for request in list(self.running):
            new = min(request.total - request.computed, budget)
            if new == 0 or request not in self.running:
                continue
            while not self._grow(request, new):
                victim = self.running[-1]
                budget += self._plan.pop(victim, 0)
                self._preempt(victim)
                preempted = True
                if victim is request:
                    break
            else:
                self._plan[request] = new
                budget -= new
        return budget, preempted

    def _grow(self, request: Request, new: int) -> bool:
        more = self._blocks_for(request.computed + new) - len(request.blocks)
        if more <= 0:
            return True
        blocks = self.pool.take(more)
        if blocks is None:
            return False
        request.blocks += blocks
        return True

    def _preempt(self, request: Request) -> None:
        """Take everything from a running request; it computes its tokens again when it is back."""
        self.running.remove(request)
        self._free(request)
        request.computed = request.remembered = 0
        request.preemptions += 1
        request.untold += 1
        self.waiting.appendleft(request)

    def _admit(self, now: float, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            cached = self._cached_blocks(request)
            hit = len(cached) * self.config.block_size
            new = min(request.total - hit, budget)
            blocks = self.pool.take(self._blocks_for(hit + new) - len(cached), cached)
            if blocks is None:
                return
            self.waiting.popleft()
            request.blocks, request.computed, request.remembered = blocks, hit, len(cached)
            if request.scheduled_at is None:
                request.scheduled_at, request.cached = now, hit
                self._prefix_queries += request.total if self.config.prefix_cache else 0
                self._prefix_hits += hit
            self.running.append(request)
            self._plan[request] = new
            budget -= new

    def end_step(self, now: float) -> tuple[list[Output], Stats]:
        """Carry the planned step out; return an output for each request that got a token, and the state after."""
        outputs = []
        step_tokens = sum(self._plan.values())
        for request, new in self._plan.items():
            request.computed += new
            self._remember(request)
            if request.computed == request.total:
                outputs.append(self._generate(request, now))
        self._plan = {}
        return outputs, self.stats(step_tokens)

    def stats(self, step_tokens: int = 0) -> Stats:
        """Return the state now; prefix-cache figures count since the last call."""
        queries, self._prefix_queries = self._prefix_queries, 0
        hits, self._prefix_hits = self._prefix_hits, 0
        return Stats(len(self.running), len(self.waiting), self.pool.usage, step_tokens, queries, hits)

    def _generate(self, request: Request, now: float) -> Output:
        request.ids += answer_id(request.generated)
        request.generated += 1
        request.last_at = now
        cached = None
        if request.first_at is None:
            request.first_at, cached = now, request.cached
        untold, request.untold = request.untold, 0
        if request.generated < request.max_tokens:
            return Output(request.rid, 1, None, untold, cached)
        del self._requests[request.rid]
        self.running.remove(request)
        self._free(request)
        return Output(request.rid, 1, request.finish, untold, cached, _times(request, now))

    # ---- blocks ---------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _free(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []

    def _cached_blocks(self, request: Request) -> list[int]:
        """Return the cached blocks of its beginning; the last token is always computed, to get the next one."""
        if not self.config.prefix_cache:
            return []
        usable = (request.total - 1) // self.config.block_size
        self._hash_up_to(request, usable)
        return self.pool.match(request.hashes[:usable])

    def _remember(self, request: Request) -> None:
        if not self.config.prefix_cache:
            return
        full = request.computed // self.config.block_size
        if full > request.remembered:
            self._hash_up_to(request, full)
            for i in range(request.remembered, full):
                self.pool.remember(request.blocks[i], request.hashes[i])
            request.remembered = full

    def _hash_up_to(self, request: Request, blocks: int) -> None:
        width = self.config.block_size * ID_BYTES
        for i in range(len(request.hashes), blocks):
            parent = request.hashes[-1] if i else 0
            request.hashes.append(hash((parent, bytes(request.ids[i * width : (i + 1) * width]))))


def _times(r: Request, now: float) -> tuple[float, float, float, int]:
    scheduled = now if r.scheduled_at is None else r.scheduled_at
    first = now if r.first_at is None else r.first_at
    last = first if r.last_at is None else r.last_at
    return scheduled - r.queued_at, first - scheduled, last - first, r.preemptions
