"""vLLM's own /metrics, old and new names understood; a name that is absent stays absent."""

from __future__ import annotations

from collections.abc import Iterator

import urllib3

from drills.model import Json
from drills.probes.http import ProbeError, request

#: what we call it → the names vLLM has given it, newest first
NAMES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions": ("vllm:num_preemptions_total",),
    "swapped": ("vllm:num_requests_swapped",),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
}


def scrape(http: urllib3.PoolManager, url: str, *, timeout_s: float) -> Json:
    """Return the values found, summed over engines, by our names. Raises ProbeError."""
    status, data = request(http, "GET", f"{url}/metrics", timeout_s=timeout_s)
    if status != 200:
        raise ProbeError(f"HTTP {status}")
    sums: dict[str, float] = {}
    for name, _, value in samples(data.decode(errors="replace")):
        sums[name] = sums.get(name, 0.0) + value
    found: Json = {}
    for ours, theirs in NAMES.items():
        for name in theirs:
            if name in sums:
                found[ours] = sums[name]
                break
    if not found:
        raise ProbeError("no vllm metric in the answer")
    return found


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
