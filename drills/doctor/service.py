"""The service itself: whether endpoint and replicas complete, what their probes say of it, and what they count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import urllib3

from drills import gate
from drills.doctor.finding import Finding, missing, ok, unknown
from drills.doctor.wanted import Wanted
from drills.errors import DrillError
from drills.model import Replica, Target
from drills.probes import completion, http, vllm
from drills.probes.http import ProbeError

GROUP, METRICS = "service", "metrics"
ENDPOINT_TIMEOUT_S: Final = 10.0
SCRAPE_TIMEOUT_S: Final = 3.0
#: What checks read of an engine, by our names for it: any one of the names of a group will do.
READ: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "cache_recovery": (("prefix_hits", "prefix_hit_rate"), ("prompt_tokens",)),
    "engine_vs_client": (("ttft_sum",), ("ttft_count",)),
    "metrics": (("kv_usage",), ("prefix_hits", "prefix_hit_rate"), ("preemptions", "swapped")),
    "retry_storm": (("requests",), ("running",), ("waiting",)),
}


def look(wanted: Wanted, target: Target, key: str | None) -> Iterator[Finding]:
    """Yield whether it serves. Each replica, and with its `key` the endpoint, is asked for one token."""
    try:
        replicas, answers = target.replicas(), gate.look_at_replicas(target)
    except DrillError as error:
        yield unknown(GROUP, "replicas", str(error), refuses=True)
        return
    yield _counted(target, replicas)
    ready = {r.name: r.ready for r in replicas}
    silent = [row for row in answers if not row["ok"]]
    for row in silent:
        yield _silent(row["name"], row["error"], ready=ready.get(row["name"], False))
    if answers and not silent:
        slowest = max(row["ttft_ms"] for row in answers)
        yield ok(GROUP, "completions", f"all {len(answers)} replicas complete, the slowest in {slowest:.0f} ms")
    yield _endpoint(target, key)
    yield from _counters(wanted, target, [r for r in replicas if r.ready and r.role == "primary"])


def _counted(target: Target, replicas: list[Replica]) -> Finding:
    primaries = [r for r in replicas if r.role == "primary"]
    there = sum(r.ready for r in primaries)
    if there >= target.expected_replicas:
        return ok(GROUP, "replicas", f"{there} of {target.expected_replicas} are ready")
    states = ", ".join(f"{r.name} {r.state or 'not ready'}" for r in primaries if not r.ready)
    what = f"{there} of {target.expected_replicas} are ready" + (f" ({states})" if states else "")
    return missing(GROUP, "replicas", what, "wait until all of them are ready: drill status", refuses=True)


def _silent(name: str, error: str, *, ready: bool) -> Finding:
    if ready:  # what its readiness probe asks is not what users ask
        what = f"is ready, and completes nothing ({error}): its readiness probe lies"
        return missing("probes", name, what, "let the readiness probe ask for a one-token completion", refuses=True)
    return missing(GROUP, name, f"completes nothing: {error}", refuses=True)


def _endpoint(target: Target, key: str | None) -> Finding:
    base = target.endpoint.removesuffix("/v1")
    try:
        found = completion.complete(http.pool(key), base, target.model, timeout_s=ENDPOINT_TIMEOUT_S)
    except ProbeError as error:
        what = f"{target.endpoint} completes nothing as {target.model}: {error}"
        return missing(GROUP, "endpoint", what, f"curl --max-time 10 {target.endpoint}/models", refuses=True)
    return ok(GROUP, "endpoint", f"{target.endpoint} completes in {found['ttft_ms']:.0f} ms")


# ---- what engines count ----------------------------------------------------------------------------------


def _counters(wanted: Wanted, target: Target, replicas: list[Replica]) -> Iterator[Finding]:
    pool = http.pool_for(target)
    names: dict[str, str] = {}
    for replica in replicas:
        try:
            found = vllm.scrape(pool, replica.url, timeout_s=SCRAPE_TIMEOUT_S)[1]
        except ProbeError as error:
            what = f"{replica.name}: its /metrics cannot be read: {error}"
            yield missing(METRICS, "engine", what, "let vLLM serve /metrics on the port of kubernetes.port")
            return
        names = found if not names else {ours: name for ours, name in names.items() if ours in found}
    if not names:
        return
    old = sorted(name for ours, name in names.items() if name != vllm.NAMES[ours][0])
    said = f"; old ones: {', '.join(old)}" if old else "; all by their present names"
    yield ok(METRICS, "engine", f"{len(names)} of {len(vllm.NAMES)} metrics found{said}")
    for check, groups in READ.items():
        lacking = [" or ".join(group) for group in groups if not any(name in names for name in group)]
        if lacking and (asked := [drill for drill, _ in wanted.checks(check)]):
            wants = ", ".join(vllm.NAMES[name][0] for group in lacking for name in group.split(" or ")[:1])
            yield missing(METRICS, check, f"{', '.join(asked)} would not decide it: the engines have no {wants}",
                          "update vLLM, or leave out the check")  # fmt: skip


def version(target: Target, replica: Replica) -> str | None:
    """Return which vLLM a replica says it is; None when it does not say."""
    pool: urllib3.PoolManager = http.pool_for(target)
    try:
        status, data = http.request(pool, "GET", f"{replica.url}/version", timeout_s=SCRAPE_TIMEOUT_S)
        return str(json.loads(data)["version"]) if status == 200 else None
    except (ProbeError, ValueError, LookupError, TypeError):
        return None
