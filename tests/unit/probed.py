"""What the probes write of engines and GPUs in a run of `runs.py`, a line a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

PROMPT, CACHED = 700, 500  # tokens of a request
QUEUE_S = 0.01  # between client and engine
ONE_TOKEN_S = 0.02
NAMES = {
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "preemptions": "vllm:num_preemptions_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "ttft_sum": "vllm:time_to_first_token_seconds_sum",
    "ttft_count": "vllm:time_to_first_token_seconds_count",
    "e2e_sum": "vllm:e2e_request_latency_seconds_sum",
    "e2e_count": "vllm:e2e_request_latency_seconds_count",
    "tpot_sum": "vllm:inter_token_latency_seconds_sum",
    "tpot_count": "vllm:inter_token_latency_seconds_count",
    "started": "process_start_time_seconds",
}


def counters(served: float, probes: int, ttft_s: float, service_s: float, started: float) -> Json:
    """Return the counters of an engine that has served so many requests, and so many of one token."""
    return {
        "running": 3, "waiting": 0, "kv_usage": 0.2, "preemptions": 0, "started": started,
        "prefix_hits": served * CACHED, "prefix_queries": served * PROMPT, "prompt_tokens": served * PROMPT,
        "generation_tokens": 32 * served + probes,
        "ttft_sum": served * (ttft_s - QUEUE_S) + probes * ONE_TOKEN_S, "ttft_count": served + probes,
        "e2e_sum": served * (service_s - QUEUE_S) + probes * ONE_TOKEN_S, "e2e_count": served + probes,
        "tpot_sum": served * (service_s - ttft_s), "tpot_count": 31 * served,
    }  # fmt: skip


def sample(mono: float, probe: str, subject: str, values: Json) -> Json:
    return {"mono": mono, "time": "", "probe": probe, "subject": subject, "ok": True, "values": values}


def refused(mono: float, probe: str, subject: str) -> Json:
    return {"mono": mono, "time": "", "probe": probe, "subject": subject, "ok": False, "error": "connection refused"}


def engine(mono: float, name: str, values: Json | None) -> Iterator[Json]:
    """Yield what `vllm`, `completion` and `health` see of a replica, which is away where there are no values."""
    endpoint = f"http://{name}/health"
    if values is None:
        yield refused(mono, "vllm", name)
        yield refused(mono, "completion", name)
    else:
        yield sample(mono, "vllm", name, values)
        yield sample(mono, "completion", name, {"ttft_ms": 1000 * ONE_TOKEN_S, "tokens": 1})
    status = None if values is None else 200
    yield sample(mono, "health", name, {"endpoint": endpoint, "status": status, "ms": 20.0, "error": None})


def gpus(mono: float, uuids: list[str], **more: Any) -> Json:
    """Return what the probe `gpu` sees."""
    seen = {"utilisation": 70, "memory_used_mib": 73000, "memory_total_mib": 81559, "temperature_c": 60} | more
    return sample(mono, "gpu", "lab", {"source": "nvml", "count": len(uuids), "gpus": {u: dict(seen) for u in uuids}})
