"""What the engine writes: metrics text, framed messages, answers."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drills.lab.engine import answers, ipc
from drills.lab.engine.config import EngineConfig
from drills.lab.engine.exposition import number, series, token_edges
from drills.lab.engine.metrics import Clocked, Metrics
from drills.lab.engine.requests import CHAT, TEXT


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(EngineConfig(port=0, model="tiny", max_model_len=512))


def scrape(m: Metrics) -> list[str]:
    return m.scrape().decode().splitlines()


# ---- metrics ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0"), (1.5, "1.5"), (0.001, "0.001"), (1795997252.1375604, "1.7959972521375604e+09"), (math.inf, "+Inf")],
)
def test_numbers_are_written_as_prometheus_clients_write_them(value: float, text: str) -> None:
    assert number(value) == text


def test_token_buckets_go_up_to_the_longest_context() -> None:
    assert token_edges(512) == [1, 2, 5, 10, 20, 50, 100, 200, 500]
    assert token_edges(8192)[-1] == 5000


def test_labels_are_sorted_and_escaped() -> None:
    assert series("m", {"b": 'say "hi"\n', "a": "\\"}) == 'm{a="\\\\",b="say \\"hi\\"\\n"} '


@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0',
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 0.0',
        'vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 1.0',
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"} 0.0',
        'vllm:request_success_total{engine="0",finished_reason="repetition",model_name="tiny"} 0.0',
        'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_tokens"} 0.0',
        'vllm:request_prompt_tokens_bucket{engine="0",le="500.0",model_name="tiny"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="2560.0",model_name="tiny"} 0.0',
        'vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 0.0',
        'vllm:e2e_request_latency_seconds_bucket{engine="0",le="7680.0",model_name="tiny"} 0.0',
        "# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.",
        "# TYPE vllm:iteration_tokens_total histogram",
        "# TYPE vllm:iteration_tokens_total_created gauge",
        "http_request_duration_highr_seconds_count 0.0",
    ],
)
def test_a_captured_line_is_there_on_an_idle_engine(metrics: Metrics, line: str) -> None:
    assert line in scrape(metrics)


def test_every_series_belongs_to_the_family_announced_above_it(metrics: Metrics) -> None:
    metrics.answered("/v1/models", "GET", 200, 0, 10, 0.01)
    family = ""
    for line in scrape(metrics):
        if line.startswith("# HELP "):
            family = line.split()[2]
        elif not line.startswith("#"):
            name = re.split(r"[{ ]", line)[0]
            assert re.fullmatch(rf"{re.escape(family)}(_bucket|_count|_sum)?", name)
            assert math.isfinite(float(line.rpartition(" ")[2]))


def test_no_series_is_told_twice(metrics: Metrics) -> None:
    names = [line.rpartition(" ")[0] for line in scrape(metrics) if not line.startswith("#")]
    assert len(names) == len(set(names))
    assert len(names) > 400


def test_a_request_moves_its_histograms(metrics: Metrics) -> None:
    request = Clocked(prompt_tokens=9, max_tokens=2, arrived=10.0)
    metrics.admitted(request, 4, 10.03)
    metrics.generated(request, 1, 10.03)
    metrics.generated(request, 1, 10.05)
    metrics.finished(request, "length", [0.01, 0.02, 0.02, 1], 10.05)
    lines = scrape(metrics)
    common = 'engine="0",model_name="tiny"'
    for line in (
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.02",model_name="tiny"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.04",model_name="tiny"} 1.0',
        f"vllm:time_to_first_token_seconds_count{{{common}}} 1.0",
        f"vllm:inter_token_latency_seconds_count{{{common}}} 1.0",
        f"vllm:request_prefill_kv_computed_tokens_sum{{{common}}} 5.0",
        f"vllm:request_num_preemptions_sum{{{common}}} 1.0",
        f"vllm:generation_tokens_total{{{common}}} 2.0",
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_cache_hit"} 4.0',
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 1.0',
    ):
        assert line in lines


def test_http_answers_are_counted_by_class_but_not_the_probes(metrics: Metrics) -> None:
    metrics.answered("/v1/chat/completions", "POST", 503, 100, 200, 0.2)
    metrics.answered("/health", "GET", 200, 0, 0, 0.001)
    lines = scrape(metrics)
    assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="5xx"} 1.0' in lines
    assert not any("/health" in line for line in lines)


# ---- messages between the processes -------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.dictionaries(st.text(max_size=5), st.integers()), st.binary(max_size=50))), st.integers(1, 40)
)
def test_messages_survive_any_cut_of_the_stream(messages: list[tuple[dict[str, int], bytes]], piece: int) -> None:
    stream = b"".join(ipc.pack(value, blob) for value, blob in messages)
    unpacker = ipc.Unpacker()
    pieces = [stream[i : i + piece] for i in range(0, len(stream), piece)]
    assert [m for p in pieces for m in unpacker.feed(p)] == messages


# ---- answers, against lines captured from vLLM --------------------------------------------------------


def events(kind: str, *, usage: bool = True, continuous: bool = False) -> answers.Stream:
    return answers.Stream(kind, "ID", "tiny", 1795997349, 9, include_usage=usage, continuous_usage=continuous)


def test_a_chat_stream_in_captured_bytes() -> None:
    s = events(CHAT)
    head = 'data: {"id":"ID","object":"chat.completion.chunk","created":1795997349,"model":"tiny",'
    assert s.role() == (
        head + '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
        '"prompt_token_ids":null,"prompt_text":null}\n\n'
    )
    assert s.delta(3, 4, None) == (
        head
        + '"choices":[{"index":0,"delta":{"content":"t3 "},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
    )
    assert s.delta(6, 8, "length") == (
        head + '"choices":[{"index":0,"delta":{"content":"t6 t7 "},"logprobs":null,"finish_reason":"length",'
        '"stop_reason":null,"token_ids":null}]}\n\n'
    )
    assert s.end(8).decode() == (
        head + '"choices":[],"usage":{"prompt_tokens":9,"total_tokens":17,"completion_tokens":8},'
        '"system_fingerprint":"vllm-0.32.0-abdc3e39"}\n\ndata: [DONE]\n\n'
    )


def test_a_completions_stream_in_captured_bytes() -> None:
    s = events(TEXT)
    head = 'data: {"id":"ID","object":"text_completion","created":1795997349,"model":"tiny",'
    assert s.role() == ""
    assert s.delta(0, 1, None) == (
        head + '"choices":[{"index":0,"text":"t0 ","logprobs":null,"finish_reason":null,"stop_reason":null,'
        '"prompt_token_ids":null,"token_ids":null}]}\n\n'
    )
    assert s.delta(5, 6, "length") == (
        head + '"choices":[{"index":0,"text":"t5 ","logprobs":null,"finish_reason":"length","stop_reason":null,'
        '"prompt_token_ids":null,"token_ids":null}]}\n\n'
    )


def test_continuous_usage_in_captured_bytes() -> None:
    s = events(CHAT, continuous=True)
    counts = '"usage":{"prompt_tokens":9,"total_tokens":9,"completion_tokens":0,"completion_tokens_details":null}'
    assert s.role().endswith(f',{counts},"prompt_token_ids":null,"prompt_text":null}}\n\n')
    assert json.loads(s.delta(0, 1, None).removeprefix("data: "))["usage"]["total_tokens"] == 10


def test_without_usage_a_stream_just_ends() -> None:
    assert events(CHAT, usage=False).end(8) == b"data: [DONE]\n\n"
