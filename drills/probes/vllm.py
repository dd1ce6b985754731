"""vLLM's own /metrics, old and new names understood; a name that is absent stays absent.

kv_cache_usage_perc            was gpu_cache_usage_perc until 0.9
prefix_cache_hits, _queries    were gpu_prefix_cache_hits, _queries until 0.9; before that, in the V0 engine, there
                               was only gpu_prefix_cache_hit_rate, a gauge over the engine's whole life
inter_token_latency_seconds    was time_per_output_token_seconds until 0.11, beside which there is now
                               request_time_per_output_token_seconds, of whole requests
num_requests_swapped           is gone with the V0 engine: what does not fit is preempted and computed again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean

import urllib3

from drills.model import Json
from drills.probes.http import ProbeError, request

#: what we call it → the names vLLM has given it, newest first
NAMES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "requests": ("vllm:request_success_total",),  # ended, by whatever reason
    "preemptions": ("vllm:num_preemptions_total",),
    "swapped": ("vllm:num_requests_swapped",),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hit_rate": ("vllm:gpu_prefix_cache_hit_rate",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "ttft_sum": ("vllm:time_to_first_token_seconds_sum",),
    "ttft_count": ("vllm:time_to_first_token_seconds_count",),
    "e2e_sum": ("vllm:e2e_request_latency_seconds_sum",),
    "e2e_count": ("vllm:e2e_request_latency_seconds_count",),
    "tpot_sum": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    "tpot_count": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
    "started": ("process_start_time_seconds",),
}
#: How the series of several engines behind one /metrics become one value; all others are summed.
_TOGETHER: dict[str, Callable[[list[float]], float]] = {"kv_usage": max, "prefix_hit_rate": fmean, "started": max}


def scrape(http: urllib3.PoolManager, url: str, *, timeout_s: float) -> tuple[Json, dict[str, str]]:
    """Return the values found by our names, and the name by which vLLM has each. Raises ProbeError."""
    status, data = request(http, "GET", f"{url}/metrics", timeout_s=timeout_s)
    if status != 200:
        raise ProbeError(f"HTTP {status}")
    values, names = read(data.decode(errors="replace"))
    if not any(name.startswith("vllm:") for name in names.values()):
        raise ProbeError("no vllm metric in the answer")
    return values, names


def read(text: str) -> tuple[Json, dict[str, str]]:
    """Return the values in an exposition by our names, and the name by which each was found."""
    series: dict[str, list[float]] = {}
    for name, _, value in samples(text):
        series.setdefault(name, []).append(value)
    names = {ours: found for ours, theirs in NAMES.items() if (found := next((n for n in theirs if n in series), None))}
    return {ours: _TOGETHER.get(ours, sum)(series[theirs]) for ours, theirs in names.items()}, names


def samples(text: str) -> Iterator[tuple[str, str, float]]:
    """Yield (name, labels as written, value) of each sample in Prometheus text format."""
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        brace = line.find("{")
        if brace >= 0:
            end = line.rfind("}")
            name, labels, rest = line[:brace], line[brace + 1 : end], line[end + 1 :]
        else:
            name, _, rest = line.partition(" ")
            labels = ""
        try:
            yield name, labels, float(rest.split()[0])
        except (ValueError, IndexError):
            continue
