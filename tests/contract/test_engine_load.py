"""What an engine does with more work than it can do at once: waves, rejections, KV pressure, slow readers."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.engine_harness import KINDS, Conversation, Engine, Pool, Reply, until

BUSY = {
    "message": "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance.",
    "type": "Service Unavailable",
    "param": None,
    "code": 503,
}
HI = [{"role": "user", "content": "hi"}]
Start = Callable[..., Engine]


@pytest.fixture(params=sorted(KINDS))
def start(request: pytest.FixtureRequest, tmp_path: Path, pool: Pool) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            pool.borrow(request.param, tmp_path, **({"step_base_ms": "4"} | options))
        )


@contextlib.contextmanager
def asking(engine: Engine, count: int, tokens: int) -> Iterator[list[Conversation]]:
    with ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(engine.ask(tokens))) for _ in range(count)]


def finish_all(talks: list[Conversation]) -> list[Reply]:
    """Read all to their ends at the same time."""
    replies: dict[int, Reply] = {}

    def read(i: int) -> None:
        replies[i] = talks[i].finish()

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(talks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [replies[i] for i in range(len(talks))]


def test_three_times_the_batch_is_served_in_three_waves_and_none_is_refused(start: Start) -> None:
    engine = start(max_num_seqs="4")
    with asking(engine, 12, 40) as talks:
        assert all("200 OK" in talk.headers() for talk in talks)  # at once, also for those that wait
        until(lambda: (engine.running(), engine.waiting()) == (4, 8), "4 run and 8 wait")
        assert engine.metric("vllm:num_requests_waiting_by_reason", reason="capacity") == 8
        replies = finish_all(talks)
    assert {r.finish() for r in replies} == {"length"}
    assert {r.usage()["completion_tokens"] for r in replies} == {40}
    ends = sorted(talk.stamps[-1] for talk in talks)
    waves = [ends[i : i + 4] for i in (0, 4, 8)]
    inside = max(wave[-1] - wave[0] for wave in waves)
    between = min(waves[1][0] - waves[0][-1], waves[2][0] - waves[1][-1])
    assert between > inside
    assert (engine.running(), engine.waiting()) == (0, 0)


def test_a_full_queue_rejects_before_headers_and_takes_requests_again_later(start: Start) -> None:
    engine = start(max_num_queued_reqs="2")
    with asking(engine, 2, 60) as talks:
        for talk in talks:
            talk.tokens(1)
        for stream in (True, False):
            reply = engine.post("/v1/chat/completions", {"messages": HI, "stream": stream})
            assert (reply.status, reply.json()) == (503, {"error": BUSY})
            assert "retry-after" not in reply.headers
        assert engine.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 2
        finish_all(talks)
    assert engine.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1}).status == 200


def test_a_burst_is_rejected_in_either_form_but_never_served(start: Start) -> None:
    engine = start(max_num_queued_reqs="1")
    with asking(engine, 6, 60) as talks:
        replies = finish_all(talks)
    served = [r for r in replies if r.status == 200 and r.finish() == "length"]
    rejected = [r for r in replies if r not in served]
    assert len(served) == 1
    for reply in rejected:
        error = reply.json() if reply.status == 503 else reply.events()[0]
        assert error == {"error": BUSY}
        assert reply.status == 503 or reply.events()[1:] == ["[DONE]"]


def test_an_exhausted_kv_cache_preempts_and_then_completes(start: Start) -> None:
    engine = start(max_num_seqs="8", max_model_len="512", kv_blocks="40", block_size="16", step_base_ms="2")
    seen: list[tuple[float, float]] = []
    with asking(engine, 8, 150) as talks:
        until(lambda: engine.running() == 8, "all run")
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                seen.append((engine.running(), engine.waiting()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        replies = finish_all(talks)
        done.set()
        watcher.join(10)
    assert any(waiting >= 2 for _, waiting in seen), "some went back to the queue"
    for reply in replies:
        assert reply.content().split() == [f"t{i}" for i in range(150)]
        assert reply.finish() == "length"
    preemptions = engine.metric("vllm:num_preemptions_total")
    assert preemptions > 0
    assert engine.metric("vllm:request_num_preemptions_sum") == preemptions
    prompt = replies[0].usage()["prompt_tokens"]
    assert engine.metric("vllm:prompt_tokens_total") == 8 * prompt  # computing again does not count again
    assert engine.metric("vllm:kv_cache_usage_perc") == 0


def test_a_slow_reader_gets_every_token_in_merged_chunks(start: Start) -> None:
    engine = start(step_base_ms="0.1", step_per_seq_ms="0")
    count = 6000
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # a small window, so that the server has to wait
        sock.connect(("127.0.0.1", engine.port))
        talk = engine.ask(count, sock=sock)
        until(lambda: engine.metric("vllm:generation_tokens_total") == count, "the engine is not held up")
        reply = talk.finish()
    deltas = [e for e in reply.events() if e != "[DONE]" and e["choices"] and e["choices"][0]["delta"].get("content")]
    assert reply.content().split() == [f"t{i}" for i in range(count)]
    assert reply.usage()["completion_tokens"] == count
    assert len(deltas) < count


def test_a_stopped_api_server_does_not_stop_the_engine_and_sends_all_it_missed_at_once(start: Start) -> None:
    engine = start(step_base_ms="0.5", step_per_seq_ms="0")
    with contextlib.closing(engine.ask(1500)) as talk:
        talk.tokens(2)
        engine.signal(signal.SIGSTOP)
        try:
            assert talk.falls_silent(1.0)  # long enough for more messages than a socket holds
        finally:
            engine.signal(signal.SIGCONT)
        reply = talk.finish()
    deltas = [e["choices"][0]["delta"].get("content", "") for e in reply.events()[:-1] if e["choices"]]
    assert reply.content().split() == [f"t{i}" for i in range(1500)]
    assert max(len(d.split()) for d in deltas) > 20


@pytest.mark.emulator
def test_cached_prompts_are_faster_and_can_be_switched_off(start: Start) -> None:
    words = " ".join(f"t{i}" for i in range(2000))
    value = {"messages": [{"role": "user", "content": words}], "max_tokens": 1}
    slow = {"prefill_tokens_per_s": "8000", "max_model_len": "4096"}

    def took(engine: Engine) -> float:
        began = time.monotonic()
        assert engine.post("/v1/chat/completions", value).status == 200
        return time.monotonic() - began

    cached = start(**slow)
    first, second = took(cached), took(cached)
    assert first > 0.25  # 2000 tokens at 8000 a second
    assert second < first
    uncached = start(**slow, no_prefix_cache=True)
    took(uncached)
    assert took(uncached) > 0.25
    assert uncached.metric("vllm:prefix_cache_hits_total") == 0
