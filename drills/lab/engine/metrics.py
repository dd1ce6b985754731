"""What an engine counts: the API server's numbers, fed by the core's steps and by HTTP answers.

Like vLLM's, the gauges are the state after the last step the core told of: they freeze when it hangs.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drills.lab.engine.config import EngineConfig
from drills.lab.engine.exposition import Registry

UNCOUNTED = frozenset({"/health", "/metrics", "/ping", "/load", "/version"})


@dataclass
class Clocked:
    """A request as metrics see it, from its arrival at the API server on."""

    prompt_tokens: int
    max_tokens: int
    arrived: float
    last: float = 0.0
    cached: int = 0
    generated: int = 0


class Metrics:
    """The registry and the few verbs that change it."""

    def __init__(self, config: EngineConfig) -> None:
        s = config.scheduler
        cache = {
            "block_size": str(s.block_size),
            "effective_attention_block_size": str(s.block_size),
            "num_gpu_blocks": str(s.kv_blocks),
            "kv_cache_size_tokens": str(s.kv_blocks * s.block_size),
            "kv_cache_max_concurrency": str(s.kv_blocks * s.block_size / config.max_model_len),
            "enable_prefix_caching": str(s.prefix_cache),
        }
        common = {"engine": "0", "model_name": config.model}
        self.registry = Registry(common, config.max_model_len, {"vllm:cache_config_info": cache})
        self.registry["vllm:engine_sleep_state"].child("awake").value = 1
        version = platform.python_version_tuple()
        info = (platform.python_implementation(), version[0], version[1], version[2], platform.python_version())
        self.registry["python_info"].child(*info).value = 1

    def _value(self, name: str, *labels: str) -> Any:
        return self.registry[f"vllm:{name}"].child(*labels)

    # ---- the engine -----------------------------------------------------------------------------------

    def step(self, stats: list[float]) -> None:
        """Take the state after a step: running, waiting, kv_usage, step_tokens, prefix_queries, prefix_hits."""
        running, waiting, kv_usage, step_tokens, queries, hits = stats
        self._value("num_requests_running").value = running
        self._value("num_requests_waiting").value = waiting
        self._value("num_requests_waiting_by_reason", "capacity").value = waiting
        self._value("kv_cache_usage_perc").value = kv_usage
        self._value("prefix_cache_queries_total").add(queries)
        self._value("prefix_cache_hits_total").add(hits)
        if step_tokens:
            self._value("iteration_tokens_total").observe(step_tokens)

    def admitted(self, r: Clocked, cached: int, now: float) -> None:
        """Count a first token, and with it the prompt."""
        r.cached = cached
        self._value("time_to_first_token_seconds").observe(now - r.arrived)
        self._value("prompt_tokens_total").add(r.prompt_tokens)
        self._value("prompt_tokens_by_source_total", "local_compute").add(r.prompt_tokens - cached)
        self._value("prompt_tokens_by_source_total", "local_cache_hit").add(cached)
        self._value("prompt_tokens_cached_total").add(cached)
        self._value("prompt_tokens_cached_by_source_total", "device").add(cached)

    def generated(self, r: Clocked, tokens: int, now: float) -> None:
        """Count new tokens of a request."""
        self._value("generation_tokens_total").add(tokens)
        if r.generated:
            self._value("inter_token_latency_seconds").observe(now - r.last)
        r.generated += tokens
        r.last = now

    def preempted(self, count: int) -> None:
        """Count preemptions of a request that is back."""
        self._value("num_preemptions_total").add(count)

    def finished(self, r: Clocked, reason: str, times: list[float], now: float) -> None:
        """Count a request that the engine ended (a client that left is not counted anywhere)."""
        queue_s, prefill_s, decode_s, preemptions = times
        self._value("request_success_total", reason).add()
        for name, value in (
            ("request_prompt_tokens", r.prompt_tokens),
            ("request_generation_tokens", r.generated),
            ("request_max_num_generation_tokens", r.generated),
            ("request_params_n", 1),
            ("request_params_max_tokens", r.max_tokens),
            ("e2e_request_latency_seconds", now - r.arrived),
            ("request_queue_time_seconds", queue_s),
            ("request_inference_time_seconds", prefill_s + decode_s),
            ("request_prefill_time_seconds", prefill_s),
            ("request_decode_time_seconds", decode_s),
            ("request_num_preemptions", preemptions),
            ("request_prefill_kv_computed_tokens", r.prompt_tokens - r.cached),
        ):
            self._value(name).observe(value)
        if r.generated > 1:
            self._value("request_time_per_output_token_seconds").observe(decode_s / (r.generated - 1))

    def rejected(self) -> None:
        """Count a request over `--max-num-queued-reqs`."""
        self._value("admission_rejections_total", "max_num_queued_reqs").add()

    # ---- HTTP -----------------------------------------------------------------------------------------

    def answered(self, path: str, method: str, status: int, bytes_in: int, bytes_out: int, seconds: float) -> None:
        """Count an HTTP answer; `path` is "none" for one that is not served."""
        if path in UNCOUNTED:
            return
        self.registry["http_requests_total"].child(path, method, f"{status // 100}xx").add()
        self.registry["http_request_size_bytes"].child(path).observe(bytes_in)
        self.registry["http_response_size_bytes"].child(path).observe(bytes_out)
        self.registry["http_request_duration_highr_seconds"].child().observe(seconds)
        self.registry["http_request_duration_seconds"].child(path, method).observe(seconds)

    def scrape(self) -> bytes:
        """Return the text of `/metrics`."""
        self._process()
        return self.registry.render()

    def _process(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        size, resident = (int(n) * page for n in Path("/proc/self/statm").read_text().split()[:2])
        now = {
            "process_virtual_memory_bytes": size,
            "process_resident_memory_bytes": resident,
            "process_start_time_seconds": _STARTED,
            "process_cpu_seconds_total": sum(os.times()[:2]),
            "process_open_fds": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - names only, once a second
            "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }
        for name, value in now.items():
            self.registry[name].child().value = value
        for generation, stats in enumerate(gc.get_stats()):
            for what in ("collected", "uncollectable"):
                self.registry[f"python_gc_objects_{what}_total"].child(str(generation)).value = stats[what]
            self.registry["python_gc_collections_total"].child(str(generation)).value = stats["collections"]


def _start_time() -> float:
    """Return when this process began, in seconds since the epoch."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


_STARTED = _start_time()
