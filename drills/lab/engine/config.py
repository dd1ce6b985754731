"""The settings of one emulated replica, and its command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerConfig:
    """What decides how fast tokens come. Defaults carry about 14 chat requests a second (32 tokens out)."""

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    step_base_ms: float = 15.0
    step_per_seq_ms: float = 0.8
    prefill_tokens_per_s: float = 20_000.0
    kv_blocks: int = 8192
    block_size: int = 16
    prefix_cache: bool = True


@dataclass(frozen=True)
class EngineConfig:
    """Everything on the command line of `drills.lab.engine.server`."""

    port: int
    host: str = "127.0.0.1"
    model: str = "lab-chat"
    name: str = "replica-0"
    startup_s: float = 15.0
    gpu_device: str | None = None
    gpu_uuid: str | None = None
    gpu_state: str | None = None
    max_model_len: int = 8192
    max_num_queued_reqs: int | None = None
    shutdown_timeout_s: float = 0.0
    drain_teardown_s: float = 5.2
    orphan_lives_s: float = 600.0
    seed: int = 0
    scheduler: SchedulerConfig = SchedulerConfig()


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1 (argparse type)."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def seconds(text: str) -> float:
    """Parse a duration in seconds, not negative (argparse type)."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not negative, got {text}")
    return value


def above_zero(text: str) -> float:
    """Parse a number above 0 (argparse type)."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


def parser() -> argparse.ArgumentParser:
    """Return the command line, option for option in vLLM's words where vLLM has the option."""
    p = argparse.ArgumentParser(
        prog="python -m drills.lab.engine.server",
        description="An emulated vLLM 0.32 replica: API server plus EngineCore process.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    d, s = EngineConfig(port=0), SchedulerConfig()
    add = p.add_argument
    add("--port", type=int, required=True, help="port to listen on")
    add("--host", default=d.host, help="address to listen on")
    add("--model", default=d.model, help="served model name")
    add("--name", default=d.name, help="name of the replica in log lines")
    add("--startup-s", type=seconds, default=d.startup_s, help="seconds from start until the port opens")
    add("--gpu-device", help="device file the core holds open")
    add("--gpu-uuid", help="UUID of that GPU, for the log; --gpu-state knows it by its device file too")
    add("--gpu-state", help="state file of the GPU stand-ins; a step takes longer by as much as the SM clock is capped")
    add("--max-num-seqs", type=positive_int, default=s.max_num_seqs, help="most requests in one step")
    add("--max-num-batched-tokens", type=positive_int, default=s.max_num_batched_tokens, help="most tokens in one step")
    add("--step-base-ms", type=above_zero, default=s.step_base_ms, help="duration of a step, fixed part")
    add("--step-per-seq-ms", type=seconds, default=s.step_per_seq_ms, help="duration of a step, for each request in it")
    add("--prefill-tokens-per-s", type=above_zero, default=s.prefill_tokens_per_s, help="prefill rate")
    add("--kv-blocks", type=positive_int, default=s.kv_blocks, help="blocks of KV cache")
    add("--block-size", type=positive_int, default=s.block_size, help="tokens in a block")
    add("--no-prefix-cache", action="store_true", help="compute every prompt token, also those seen before")
    add("--max-model-len", type=positive_int, default=d.max_model_len, help="most tokens of prompt and answer")
    add("--max-num-queued-reqs", type=positive_int, help="reject (503) beyond so many running and waiting requests")
    add("--shutdown-timeout", type=seconds, default=0.0, help="seconds SIGTERM lets running requests finish; 0: abort")
    add("--drain-teardown-s", type=seconds, default=d.drain_teardown_s, help="seconds from the end of a drain to exit")
    add(
        "--orphan-lives-s",
        type=seconds,
        default=d.orphan_lives_s,
        help="seconds the core outlives a killed API server (vLLM's lives for ever; this one must not leak)",
    )
    add("--seed", type=int, default=d.seed, help="seed of step jitter and of answer lengths nobody asked for")
    return p


def parse(argv: Sequence[str] | None = None) -> EngineConfig:
    """Return the settings of a command line; exits 2 with a usage line when it cannot be used."""
    p = parser()
    a = p.parse_args(argv)
    if a.kv_blocks * a.block_size < a.max_model_len:
        p.error(
            f"--kv-blocks {a.kv_blocks} x --block-size {a.block_size} hold fewer tokens than "
            f"--max-model-len {a.max_model_len}: one request could never finish; raise the first or lower the last"
        )
    return EngineConfig(
        port=a.port,
        host=a.host,
        model=a.model,
        name=a.name,
        startup_s=a.startup_s,
        gpu_device=a.gpu_device,
        gpu_uuid=a.gpu_uuid,
        gpu_state=a.gpu_state,
        max_model_len=a.max_model_len,
        max_num_queued_reqs=a.max_num_queued_reqs,
        shutdown_timeout_s=a.shutdown_timeout,
        drain_teardown_s=a.drain_teardown_s,
        orphan_lives_s=a.orphan_lives_s,
        seed=a.seed,
        scheduler=SchedulerConfig(
            max_num_seqs=a.max_num_seqs,
            max_num_batched_tokens=a.max_num_batched_tokens,
            step_base_ms=a.step_base_ms,
            step_per_seq_ms=a.step_per_seq_ms,
            prefill_tokens_per_s=a.prefill_tokens_per_s,
            kv_blocks=a.kv_blocks,
            block_size=a.block_size,
            prefix_cache=not a.no_prefix_cache,
        ),
    )
