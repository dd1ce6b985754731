"""The router's view: how many workers it holds for healthy, breakers, retries. Corroboration, not truth."""

from __future__ import annotations

import urllib3

from drills.model import Json
from drills.probes.http import ProbeError, request
from drills.probes.vllm import samples

WANTED = (
    "_active_workers",
    "_worker_health",
    "_cb_state",
    "_retries_total",
    "_retries_exhausted_total",
    "_requests_total",
)


def scrape(http: urllib3.PoolManager, url: str, *, timeout_s: float) -> Json:
    """Return the router's gauges and counters of interest, keyed by name and labels. Raises ProbeError."""
    status, data = request(http, "GET", url, timeout_s=timeout_s)
    if status != 200:
        raise ProbeError(f"HTTP {status}")
    found = {
        f"{name}{{{labels}}}" if labels else name: value
        for name, labels, value in samples(data.decode(errors="replace"))
        if name.endswith(WANTED)
    }
    if not found:
        raise ProbeError("no router metric in the answer")
    return found
