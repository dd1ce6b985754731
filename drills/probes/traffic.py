"""What users send to the engines now, by the engines' own counters.

A completion of one token is not counted: that is what health checks ask for, our own among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import urllib3

from drills.clock import Clock
from drills.model import Replica
from drills.probes import vllm
from drills.probes.http import ProbeError, request

FAMILY: Final = "vllm:request_generation_tokens"
TIMEOUT_S: Final = 3.0
#: A share of a tenth is to be told from this.
WINDOW_S: Final = 10.0


def rate(http: urllib3.PoolManager, replicas: Sequence[Replica], clock: Clock) -> float:
    """Return the requests that these engines end in a second, over ten seconds. Raises ProbeError."""
    before = [_ended(http, one) for one in replicas]
    began = clock.mono()
    clock.sleep(WINDOW_S)
    after = [_ended(http, one) for one in replicas]
    if any(late < early for early, late in zip(before, after, strict=True)):
        raise ProbeError("an engine began to count anew meanwhile")
    return (sum(after) - sum(before)) / max(clock.mono() - began, 1e-9)


def _ended(http: urllib3.PoolManager, replica: Replica) -> float:
    status, data = request(http, "GET", f"{replica.url}/metrics", timeout_s=TIMEOUT_S)
    if status != 200:
        raise ProbeError(f"{replica.name}: HTTP {status}")
    return counted(data.decode(errors="replace"), replica.name)


def counted(text: str, name: str) -> float:
    """Return how many requests of more than one token an exposition counts. Raises ProbeError."""
    whole, single, seen = 0.0, 0.0, False
    for sample, labels, value in vllm.samples(text):
        if sample == f"{FAMILY}_count":
            whole, seen = whole + value, True
        elif sample == f"{FAMILY}_bucket" and ('le="1"' in labels or 'le="1.0"' in labels):
            single += value
    if not seen:
        raise ProbeError(f"{name}: has no {FAMILY}")
    return whole - single
